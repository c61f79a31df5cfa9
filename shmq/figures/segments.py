"""Shared memory segments of this host's brokers: ours, others', and those of dead brokers.

`shmq.shm.leftovers` says in which state a generation is, here as for doctor and for the start of a broker; nothing is
mapped or removed. "Own" segments are those of the broker that is looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from shmq.figures.snapshot import Segment
from shmq.plain_file import allocated_bytes
from shmq.shm.access import read_mode_beside
from shmq.shm.instance import Instance
from shmq.shm.leftovers import STATES, Leftover, find_leftovers, is_semaphore
from shmq.shm.liveness import boot_id
from shmq.shm.place import Place

OWN = "own"
SEMAPHORES = "semaphores"
_ONLY_READ = frozenset({"counters"})  # by clients; what the daemon counts
_ORDER = (OWN, *STATES)


def collect_segments(place: Place, instance: Instance | None) -> tuple[Segment, ...]:
    """Return every shmq segment that can be seen, our own first and those of dead brokers last."""
    own = instance.generation if instance is not None and instance.boot_id == boot_id() else None
    found: list[Segment] = []
    for leftover in find_leftovers(place):
        judged = leftover._replace(state=OWN, reason="") if leftover.generation == own else leftover
        found += [*_files(judged), *_semaphores(judged), *_sysv(judged)]
    return tuple(sorted(found, key=lambda segment: (_ORDER.index(segment.state), segment.name)))


def made_mode(part: str, mode: int) -> int:
    """Return the mode that a part of a broker's memory was made with.

    Args:
        part: as `Segment.part`.
        mode: of the segments that clients write into, as `Broker.mode`.
    """
    return read_mode_beside(mode) if part in _ONLY_READ else mode


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None  # it went while we looked


def _segment(leftover: Leftover, name: str, part: str, statuses: Sequence[os.stat_result], path: str = "") -> Segment:
    return Segment(
        name=name,
        path=path,
        part=part,
        broker=leftover.broker_name,
        generation=f"{leftover.generation:016x}",
        size_bytes=sum(status.st_size for status in statuses),
        used_bytes=sum(map(allocated_bytes, statuses)),
        uid=statuses[0].st_uid,
        mode=stat.S_IMODE(statuses[0].st_mode),
        state=leftover.state,
        reason=leftover.reason,
    )


def _files(leftover: Leftover) -> list[Segment]:
    statuses = [(path, _status(path)) for path in leftover.paths if not is_semaphore(path.name)]
    return [
        _segment(leftover, path.name, path.name.rpartition(".")[2], [status], str(path))
        for path, status in statuses
        if status is not None
    ]


def _semaphores(leftover: Leftover) -> list[Segment]:
    """All of a generation as one."""
    statuses = [status for path in leftover.paths if is_semaphore(path.name) and (status := _status(path))]
    name = f"{len(statuses)} semaphores sem.shmq.{leftover.broker_name}.{leftover.generation:016x}.w*"
    return [_segment(leftover, name, SEMAPHORES, statuses)] if statuses else []


def _sysv(leftover: Leftover) -> list[Segment]:
    return [
        Segment(
            name=f"sysv:{segment.identifier}",
            path="",
            part=part,
            broker=leftover.broker_name,
            generation=f"{leftover.generation:016x}",
            size_bytes=segment.size_bytes,
            used_bytes=segment.resident_bytes,
            uid=segment.uid,
            mode=segment.mode,
            state=leftover.state,
            reason=leftover.reason,
        )
        for part, segment in leftover.sysv.items()
    ]
