"""Removes what dead brokers left behind in /dev/shm and among the SysV objects.

It does not know the store: nothing that holds a message is ever removed here, only memory whose content the next
`serve` of that broker rebuilds from its log.

    a leftover is found by                             it belongs to nobody who lives when
    the name shmq.<broker>.<generation>.<part>         the presence of its generation is there and zero
    the name sem.shmq.<broker>.<generation>.w<slot>    and no instance.json names it with a live process
    an instance.json beside ours (SysV ids)

Rules: (1) never what a live process uses: the kernel's presence count decides, and recorded processes (pid and start
time) are asked too, because the supervisor between two keepers is attached to nothing;
(2) never what another user made, also not as root;
(3) never the generation that is to be attached again;
(4) what a broker of another name left stays while its store directory exists: it may be started again, and its memory
holds group offsets that are newer than its files;
(5) a generation without a presence semaphore is not judged: it is removed last, so what lacks it is of another IPC
namespace, or no work of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from shmq.errors import SegmentError, ShmqError
from shmq.shm.core import Store
from shmq.shm.instance import SEGMENT_PARTS, Instance, read_instance
from shmq.shm.kernel import posix_ipc, sysv_ipc
from shmq.shm.liveness import boot_id, is_alive
from shmq.shm.place import Place
from shmq.shm.presence import presence_key_of, presence_of_key, remove_presence
from shmq.shm.segment import SHM_DIRECTORY, unlink_segments

SEGMENT_NAME = re.compile(r"shmq\.(?P<broker>.+)\.(?P<generation>[0-9a-f]{16})\.(?:control|units|readers|counters)")
SEMAPHORE_NAME = re.compile(r"sem\.shmq\.(?P<broker>.+)\.(?P<generation>[0-9a-f]{16})\.w[0-9]+")


def sweep(place: Place, *, keep: Instance | None = None) -> list[str]:
    """Remove leftovers of dead brokers of our own user and return their names.

    Args:
        place: the caller's place; brokers whose runtime directories lie beside it are looked at too.
        keep: the generation the caller is about to attach to again.
    """
    recorded = recorded_instances(place)
    spared = {
        instance.generation
        for instance in recorded
        if is_used(instance) or (instance.broker_name != place.broker_name and may_return(instance.store_path))
    }
    if keep is not None:
        spared.add(keep.generation)
    removed: list[str] = []
    for instance in recorded:
        # Before the names, because these take the presence semaphore with them.
        if instance.kind == "sysv" and instance.generation not in spared and _is_removable_sysv(instance):
            unlink_segments(instance)
            removed += [f"sysv:{identifier}" for identifier in instance.segments]
    return removed + _sweep_names(place.broker_name, spared)


def recorded_instances(place: Place) -> list[Instance]:
    """Return what our own brokers wrote about themselves, this one's and those beside it; they may be dead."""
    found = []
    for path in sorted({place.instance_path, *place.runtime_dir.parent.glob(f"*/{place.instance_path.name}")}):
        with contextlib.suppress(SegmentError, OSError):
            instance = read_instance(path)
            if instance is not None and os.lstat(path).st_uid == os.geteuid() == instance.uid:
                found.append(instance)
    return found


def is_used(instance: Instance) -> bool:
    """Say whether a recorded process lives, or the kernel counts one that is attached."""
    if instance.boot_id != boot_id():
        return False
    return any(is_alive(mark) for mark in instance.processes.values()) or bool(
        presence_of_key(instance.presence_key, uid=instance.uid)
    )


def _sweep_names(own_name: str, spared: set[int]) -> list[str]:
    generations: dict[int, list[str]] = {}
    for name in sorted(os.listdir(SHM_DIRECTORY)):
        match = SEGMENT_NAME.fullmatch(name) or SEMAPHORE_NAME.fullmatch(name)
        if match is not None and _is_ours(SHM_DIRECTORY / name):
            generations.setdefault(int(match["generation"], 16), []).append(name)
    removed = []
    for generation, names in generations.items():
        key = presence_key_of(generation)
        if generation in spared or presence_of_key(key, uid=os.geteuid()) != 0:
            continue
        if not any(name.startswith(f"shmq.{own_name}.") for name in names) and may_return(store_named_in(names)):
            continue
        for name in names:
            with contextlib.suppress(posix_ipc.Error):
                if name.startswith("sem."):
                    posix_ipc.unlink_semaphore("/" + name.removeprefix("sem."))
                else:
                    posix_ipc.unlink_shared_memory("/" + name)
                removed.append(name)
        remove_presence(key, uid=os.geteuid())
    return removed


def may_return(store_path: str) -> bool:
    """Say whether a broker can be started on this store, which would want its memory back."""
    return bool(store_path) and os.path.isdir(os.path.join(store_path, "commitlog"))


def store_named_in(names: list[str]) -> str:
    """Return the store directory that the head of a generation's segments names; empty when they cannot be attached."""
    stem = next((name.removesuffix(".control") for name in names if name.endswith(".control")), "")
    descriptors: list[int] = []
    try:
        for part in SEGMENT_PARTS:
            descriptors.append(os.open(SHM_DIRECTORY / f"{stem}.{part}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
        store = Store(*descriptors, writable=False)
    except (OSError, ShmqError):
        return ""
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    try:
        return str(store.head["store_path"])
    finally:
        store.close()


def _is_ours(path: Path) -> bool:
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False


def _is_removable_sysv(instance: Instance) -> bool:
    """An id may have been given to somebody else since: owner and size must still be those of the instance."""
    if presence_of_key(instance.presence_key, uid=instance.uid) != 0:
        return False
    for identifier, size in zip(instance.segments, instance.segment_bytes, strict=True):
        try:
            segment = sysv_ipc.attach(identifier, None, sysv_ipc.SHM_RDONLY)
        except (sysv_ipc.Error, OSError, ValueError):
            continue  # removed already
        try:
            if int(segment.cuid) != instance.uid or int(segment.size) != size or int(segment.number_attached) > 1:
                return False
        finally:
            segment.detach()
    return True
