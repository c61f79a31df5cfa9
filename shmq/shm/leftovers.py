"""Every generation of segments that lies on this host: its owner, and whether it is still needed.

`shmq health`, `shmq doctor` and the start of a broker all ask here, so they agree. Only `remove_leftover` changes
anything, one generation at a time and only with proof.

    state      because                                                                  removed
    living     a recorded process lives, or the kernel counts attached processes        never
    foreign    another user made it                                                     never
    unjudged   it has no presence semaphore here: another IPC namespace, or not ours;   never
               or only what SysV segments have beside them, and these are not to be found
    waiting    no process lives; its broker can be started again and goes on from it    by the start of that broker
    mapped     as dead, but a process has it mapped                                     never
    dead       none of these                                                            when the proof holds

    a generation is found by                            it may have
    the name shmq.<broker>.<generation>.<part>          segments in /dev/shm
    the name sem.shmq.<broker>.<generation>.w<slot>     semaphores of its clients in /dev/shm
    an instance.json beside ours                        SysV segments; a presence semaphore whose segments are gone
    its own words, where no instance.json has any       SysV segments (`sysv_generations.py`)

Proof, repeated at the moment of removal: no recorded process lives (pid and start time), presence is zero, the kernel
grants a lease on every file (no process of this host has it open or mapped), no /proc/<pid>/maps names it, and no SysV
segment is attached.

A lease (F_SETLEASE) is refused while any process of the host, of any user or namespace, has the file open or mapped.
/proc/*/maps alone would miss the processes that this user may not see; it is read as well because it says who they are.

Rule: mappings are looked for last, and only of what would else be dead, because it means reading /proc/*/maps.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import posix_ipc
import sysv_ipc

from shmq.errors import SegmentError, ShmqError
from shmq.plain_file import allocated_bytes, open_plain
from shmq.shm.core import Store
from shmq.shm.descriptors import above_standard
from shmq.shm.instance import SEGMENT_PARTS, Instance, read_instance
from shmq.shm.liveness import ProcessMark, boot_id, is_alive
from shmq.shm.place import Place
from shmq.shm.presence import presence_key_of, presence_of_key, remove_presence
from shmq.shm.segment import SHM_DIRECTORY
from shmq.shm.sysv_table import SysvSegment, sysv_segments

if TYPE_CHECKING:
    from shmq.shm.sysv_generations import SysvGeneration

_PATIENCE_SECONDS = 0.5  # with other processes that judge it at the same moment
_LOOK_AGAIN_SECONDS = 0.05
_LOOKS_MAX = round(_PATIENCE_SECONDS / _LOOK_AGAIN_SECONDS)  # counted: on a busy host one look takes as long as all
STATES = ("living", "foreign", "unjudged", "waiting", "mapped", "dead")

_OWN_PARTS = tuple(f".{part}" for part in SEGMENT_PARTS)
_NAME = (
    r"(?P<semaphore>sem\.)?shmq\.(?P<broker>.+)\.(?P<generation>[0-9a-f]{16})"
    r"\.(?(semaphore)w[0-9]+|(?:control|units|readers|counters))"
)


class Leftover(NamedTuple):
    """One generation, as it was when it was looked at."""

    broker_name: str
    generation: int
    names: tuple[str, ...]  # of its segments and semaphores in /dev/shm
    size_bytes: int  # memory they take
    uid: int  # -1: its parts belong to several users
    state: str  # one of STATES
    reason: str
    holders: tuple[ProcessMark, ...] = ()  # living processes that use it, as far as they can be seen
    sysv: Mapping[str, SysvSegment] = MappingProxyType({})  # by part

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the segments in /dev/shm alone."""
        return tuple(name for name in self.names if not is_semaphore(name))

    @property
    def paths(self) -> list[Path]:
        """The paths of its files."""
        return [SHM_DIRECTORY / name for name in self.names]


class _Found(NamedTuple):
    """A generation before it is judged."""

    broker_name: str
    generation: int
    names: list[str]
    uid: int
    size_bytes: int
    instance: Instance | None
    sysv: Mapping[str, SysvSegment]
    store_path: str = ""  # as it says itself, where no instance.json does


def is_semaphore(name: str) -> bool:
    """Say whether a name in /dev/shm is that of a client's semaphore."""
    return name.startswith("sem.")


def find_leftovers(place: Place) -> list[Leftover]:
    """Return every generation that can be seen, the living ones too, by broker and generation.

    Args:
        place: brokers whose runtime directories lie beside this one are asked for what they recorded.
    """
    recorded = recorded_instances(place)
    all_sysv = sysv_segments()
    unnamed = {(each.broker_name, each.generation): each for each in _unnamed(recorded, all_sysv)}
    by_key: dict[tuple[str, int], list[str]] = {}
    for name in _names():
        match = re.fullmatch(_NAME, name)
        if match is not None:
            by_key.setdefault((match["broker"], int(match["generation"], 16)), []).append(name)
    for entry in recorded:
        if entry.boot_id == boot_id() and (_sysv_of(entry, all_sysv) or _has_presence(entry)):
            by_key.setdefault((entry.broker_name, entry.generation), [])
    for key in unnamed:
        by_key.setdefault(key, [])
    found = [_seen(key, names, recorded, all_sysv, unnamed.get(key)) for key, names in sorted(by_key.items())]
    mapping = _Mapping(found)
    return [_judged(entry, recorded, mapping.of) for entry in found]


def find_settled_leftovers(place: Place) -> list[Leftover]:
    """Return every generation as `find_leftovers` does, once other processes that judge it have let go of it.

    A broker that starts and another command map what they judge, for some milliseconds. What is mapped at each of ten
    looks is in use.
    """
    return _settled(lambda: find_leftovers(place))


def recorded_instances(place: Place) -> list[Instance]:
    """Return what brokers wrote about themselves, the one of `place` and those beside it; they may be dead."""
    found = []
    for path in sorted({place.instance_path, *place.runtime_dir.parent.glob(f"*/{place.instance_path.name}")}):
        with contextlib.suppress(SegmentError, OSError):
            instance = read_instance(path)
            if instance is not None and os.lstat(path).st_uid == instance.uid:
                found.append(instance)
    return found


def remove_leftover(place: Place, leftover: Leftover, *, also_waiting: bool = False) -> list[str]:
    """Remove a dead generation, and return the names that are gone.

    Args:
        also_waiting: whether it may be one that waits, because its broker itself asks and goes on without it.

    Raises:
        StillHeld: the proof does not hold (any more); nothing was removed.
    """
    from shmq.shm.holders import StillHeld, proven_free

    again = _settled(lambda: _again(place, leftover))
    if not again:
        return []
    [now] = again
    if now.state != "dead" and not (also_waiting and now.state == "waiting"):
        raise StillHeld(now.reason)
    with proven_free(now.paths, uid=os.geteuid(), patience_seconds=_PATIENCE_SECONDS):
        presence_key = presence_key_of(now.generation)
        if presence_of_key(presence_key, uid=os.geteuid()) != 0:
            raise StillHeld("a process has just attached to it")
        if any(segment.attached for segment in now.sysv.values()):
            raise StillHeld("a process is attached to its SysV segments")
        removed = [*_unlinked(now.names), *_removed(now.sysv.values())]
        remove_presence(presence_key, uid=os.geteuid())
    return removed or [f"sem:{presence_key:#x}"]


def _settled(look: Callable[[], list[Leftover]]) -> list[Leftover]:
    """Look until none is mapped, some times at most."""
    found = look()
    for _ in range(_LOOKS_MAX - 1):
        if not any(entry.state == "mapped" for entry in found):
            break
        time.sleep(_LOOK_AGAIN_SECONDS)
        found = look()
    return found


def _again(place: Place, leftover: Leftover) -> list[Leftover]:
    key = (leftover.broker_name, leftover.generation)
    return [entry for entry in find_leftovers(place) if key == (entry.broker_name, entry.generation)]


def _names() -> list[str]:
    try:
        return sorted(os.listdir(SHM_DIRECTORY))
    except OSError:
        return []


def _has_presence(instance: Instance) -> bool:
    return presence_of_key(presence_key_of(instance.generation), uid=instance.uid) is not None


def _sysv_of(instance: Instance | None, all_sysv: Mapping[int, SysvSegment]) -> dict[str, SysvSegment]:
    """The kernel may have used an id again since: owner and size must still be those of the instance."""
    if instance is None or instance.kind != "sysv":
        return {}
    identifiers = map(int, instance.segments)
    told = zip(SEGMENT_PARTS, identifiers, instance.segment_bytes, strict=True)
    known = ((part, all_sysv.get(identifier), size) for part, identifier, size in told)
    return {part: each for part, each, size in known if each and (each.uid, each.size_bytes) == (instance.uid, size)}


def _unnamed(recorded: Sequence[Instance], all_sysv: Mapping[int, SysvSegment]) -> list[SysvGeneration]:
    """Those whose instance.json is gone; only looked for while the kernel has segments that no file names."""
    named = {segment.identifier for entry in recorded for segment in _sysv_of(entry, all_sysv).values()}
    if not all_sysv.keys() - named:
        return []
    from shmq.shm.sysv_generations import unnamed_generations

    return unnamed_generations(all_sysv.values(), named)


def _seen(
    key: tuple[str, int],
    names: list[str],
    recorded: Sequence[Instance],
    all_sysv: Mapping[int, SysvSegment],
    unnamed: SysvGeneration | None,
) -> _Found:
    instance = next((entry for entry in recorded if entry.generation == key[1]), None)
    sysv = _sysv_of(instance, all_sysv) or (unnamed.segments if unnamed is not None else {})
    uids = {segment.uid for segment in sysv.values()}
    size_bytes = sum(segment.resident_bytes for segment in sysv.values())
    for name in names:
        with contextlib.suppress(OSError):
            status = os.lstat(SHM_DIRECTORY / name)
            uids.add(status.st_uid)
            size_bytes += allocated_bytes(status)
    if not uids and instance is not None:
        uids.add(instance.uid)
    store_path = unnamed.store_path if unnamed is not None else ""
    return _Found(*key, names, uids.pop() if len(uids) == 1 else -1, size_bytes, instance, sysv, store_path)


class _Mapping:
    """The processes that map the files of each generation, from one pass over /proc at the first call."""

    def __init__(self, found: Sequence[_Found]) -> None:
        self._found = found
        self._known: dict[int, list[ProcessMark]] | None = None

    def of(self, wanted: _Found) -> list[ProcessMark]:
        """Return the processes that can be seen to map it."""
        if self._known is None:
            from shmq.shm.holders import identity, mapping_processes

            files = {
                entry.generation: [file for name in entry.names if (file := identity(SHM_DIRECTORY / name))]
                for entry in self._found
            }
            mapped = mapping_processes(file for each in files.values() for file in each)
            self._known = {
                generation: [mark for file in each for mark in mapped[file]] for generation, each in files.items()
            }
        return self._known[wanted.generation]


def _judged(found: _Found, recorded: Sequence[Instance], mapped_by: Callable[[_Found], list[ProcessMark]]) -> Leftover:
    state, reason = _state_without_maps(found, recorded)
    holders = {mark.pid: mark for mark in _living(found.instance)}
    if state == "dead":
        holders |= {mark.pid: mark for mark in mapped_by(found)}
        if holders or any(segment.attached for segment in found.sysv.values()):
            state, reason = "mapped", "a living process maps it"
    return Leftover(
        broker_name=found.broker_name,
        generation=found.generation,
        names=tuple(found.names),
        size_bytes=found.size_bytes,
        uid=found.uid,
        state=state,
        reason=reason,
        holders=tuple(holders[pid] for pid in sorted(holders)),
        sysv=found.sysv,
    )


def _living(instance: Instance | None) -> list[ProcessMark]:
    if instance is None or instance.boot_id != boot_id():
        return []
    return [mark for mark in instance.processes.values() if is_alive(mark)]


def _state_without_maps(found: _Found, recorded: Sequence[Instance]) -> tuple[str, str]:
    if _living(found.instance):
        return "living", "a process of its broker lives"
    uid = found.uid if found.uid >= 0 else os.geteuid()
    presence = presence_of_key(presence_key_of(found.generation), uid=uid)
    if presence:
        return "living", f"the kernel counts {presence} attached"
    if found.uid != os.geteuid():
        return "foreign", f"it belongs to uid {found.uid}" if found.uid >= 0 else "its parts belong to several users"
    if presence is None:
        return "unjudged", "it has no presence semaphore in this IPC namespace"
    if found.instance is None and not found.sysv and not any(name.endswith(_OWN_PARTS) for name in found.names):
        return "unjudged", "its segments are SysV ones that cannot be found: in use, or of another user"
    store = found.instance.store_path if found.instance else found.store_path or _store_named_in(found.names)
    is_superseded = found.instance is None and any(
        entry.uid == found.uid and entry.store_path == store and entry.generation != found.generation
        for entry in recorded
    )
    if _may_return(store) and not is_superseded:
        return "waiting", f"the next start of a broker on {store} takes care of it"
    return "dead", "no process uses it and no start of a broker would"


def _may_return(store_path: str) -> bool:
    """Say whether a broker can be started on this store, which would want its memory back."""
    return bool(store_path) and os.path.isdir(os.path.join(store_path, "commitlog"))


@above_standard
def _store_named_in(names: Sequence[str]) -> str:
    """Return the store directory that the head of a generation's segments names; empty when they cannot be attached."""
    stem = next((name.removesuffix(".control") for name in names if name.endswith(".control")), "")
    descriptors: list[int] = []
    try:
        for part in SEGMENT_PARTS:
            path = SHM_DIRECTORY / f"{stem}.{part}"
            descriptors.append(open_plain(path, os.O_RDONLY))
        store = Store(*descriptors, writable=False, observing=True)
    except (OSError, ShmqError):
        return ""
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    try:
        return str(store.head["store_path"])
    finally:
        store.close()


def _unlinked(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        with contextlib.suppress(posix_ipc.Error):
            if is_semaphore(name):
                posix_ipc.unlink_semaphore("/" + name.removeprefix("sem."))
            else:
                posix_ipc.unlink_shared_memory("/" + name)
            yield name


def _removed(segments: Iterable[SysvSegment]) -> Iterable[str]:
    for segment in segments:
        with contextlib.suppress(sysv_ipc.Error, OSError):
            sysv_ipc.remove_shared_memory(segment.identifier)
            yield f"sysv:{segment.identifier}"
