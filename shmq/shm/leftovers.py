"""Every generation of segments that lies in /dev/shm, whose it is, and whether somebody still needs it.

It looks; `remove_dead` removes, one generation at a time and only with proof. `sweep.py` is what a broker's start does
by itself; it asks less, because it runs under the broker's own locks.

    state      because                                                                  removed
    living     a recorded process lives, or the kernel counts attached processes        never
    mapped     nobody is recorded or counted, but a process has it mapped               never
    foreign    another user made it                                                     never
    waiting    nobody lives, its broker can be started again and goes on from it        never
    unjudged   it has no presence semaphore here: another IPC namespace, or not ours    never
    dead       none of these                                                            when the proof holds

Proof, repeated at the moment of removal: no recorded process lives (pid and start time), presence is zero, the kernel
grants a lease on every file (nobody on this host has it open or mapped), no /proc/<pid>/maps names it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shmq.shm.holders import StillHeld, identity, mapping_processes, nobody_holds
from shmq.shm.instance import Instance
from shmq.shm.kernel import posix_ipc
from shmq.shm.liveness import ProcessMark, is_alive
from shmq.shm.place import Place
from shmq.shm.presence import presence_key_of, presence_of_key, remove_presence
from shmq.shm.segment import SHM_DIRECTORY
from shmq.shm.sweep import SEGMENT_NAME, SEMAPHORE_NAME, is_used, may_return, recorded_instances, store_named_in

BLOCK_BYTES = 512  # st_blocks, whatever the file system's own block is
STATES = ("living", "mapped", "foreign", "waiting", "unjudged", "dead")


class Leftover(NamedTuple):
    """One generation in /dev/shm, as it was when somebody looked."""

    broker_name: str
    generation: int
    names: tuple[str, ...]  # of its segments and semaphores in /dev/shm
    size_bytes: int  # memory they take
    uid: int
    state: str  # one of STATES
    reason: str
    holders: tuple[ProcessMark, ...] = ()  # living processes that use it, as far as they can be seen

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the segments alone."""
        return tuple(name for name in self.names if SEGMENT_NAME.fullmatch(name))

    @property
    def paths(self) -> list[Path]:
        """Where its files are."""
        return [SHM_DIRECTORY / name for name in self.names]


def find_leftovers(place: Place) -> list[Leftover]:
    """Return every generation in /dev/shm, the living ones too, by broker and generation."""
    recorded = recorded_instances(place)
    found: dict[tuple[str, int], list[str]] = {}
    for name in sorted(os.listdir(SHM_DIRECTORY)):
        match = SEGMENT_NAME.fullmatch(name) or SEMAPHORE_NAME.fullmatch(name)
        if match is not None:
            found.setdefault((match["broker"], int(match["generation"], 16)), []).append(name)
    files = {name: identity(SHM_DIRECTORY / name) for names in found.values() for name in names}
    mapped = mapping_processes(file for file in files.values() if file is not None)
    return [
        _judge(key, names, recorded, [mark for name in names if (file := files[name]) for mark in mapped[file]])
        for key, names in sorted(found.items())
    ]


def _judge(key: tuple[str, int], names: list[str], recorded: list[Instance], mapping: list[ProcessMark]) -> Leftover:
    uids, size_bytes = set(), 0
    for name in names:
        with contextlib.suppress(OSError):
            status = os.lstat(SHM_DIRECTORY / name)
            uids.add(status.st_uid)
            size_bytes += status.st_blocks * BLOCK_BYTES
    uid = uids.pop() if len(uids) == 1 else -1
    instance = next((entry for entry in recorded if entry.generation == key[1]), None)
    holders = {mark.pid: mark for mark in mapping}
    if instance is not None:
        holders |= {mark.pid: mark for mark in instance.processes.values() if is_alive(mark)}
    state, reason = _state(key[1], names, uid, instance, recorded, mapped=bool(mapping))
    return Leftover(
        key[0], key[1], tuple(names), size_bytes, uid, state, reason, tuple(holders[pid] for pid in sorted(holders))
    )


def _state(
    generation: int, names: list[str], uid: int, instance: Instance | None, recorded: list[Instance], *, mapped: bool
) -> tuple[str, str]:
    if instance is not None and is_used(instance):
        return "living", "its broker or a client of it lives"
    presence = presence_of_key(presence_key_of(generation), uid=uid)
    if presence:
        return "living", f"the kernel counts {presence} attached"
    if mapped:
        return "mapped", "a living process maps it"
    if uid != os.geteuid():
        return "foreign", f"it belongs to uid {uid}" if uid >= 0 else "its parts belong to several users"
    if presence is None:
        return "unjudged", "it has no presence semaphore in this IPC namespace"
    store = store_named_in(names) if instance is None else instance.store_path
    is_superseded = any(entry.store_path == store and entry.generation != generation for entry in recorded)
    if may_return(store) and not (instance is None and is_superseded):
        return "waiting", f"the next start of a broker on {store} takes care of it"
    return "dead", "no process uses it and no start of a broker would"


def remove_dead(place: Place, leftover: Leftover) -> list[str]:
    """Remove a dead generation and return the names that are gone.

    Raises:
        StillHeld: the proof does not hold (any more); nothing was removed.
    """
    now = [entry for entry in find_leftovers(place) if entry.generation == leftover.generation]
    if not now:
        return []
    if now[0].state != "dead":
        raise StillHeld(now[0].reason)
    with nobody_holds(now[0].paths, uid=os.geteuid()):
        key = presence_key_of(leftover.generation)
        if presence_of_key(key, uid=os.geteuid()) != 0:
            raise StillHeld("a process has just attached to it")
        removed = list(_unlinked(now[0].names))
        remove_presence(key, uid=os.geteuid())
    return removed


def _unlinked(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        with contextlib.suppress(posix_ipc.Error):
            if name.startswith("sem."):
                posix_ipc.unlink_semaphore("/" + name.removeprefix("sem."))
            else:
                posix_ipc.unlink_shared_memory("/" + name)
            yield name
