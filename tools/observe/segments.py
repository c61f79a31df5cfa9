"""Shared memory segments of this host's brokers: ours, others', and those of dead brokers.

It removes nothing (`shmq.shm.sweep` does) and does not map anything.

    state    is said of a generation that
    own      is the one we look at
    other    has processes attached, or a living process in the instance.json of a broker beside ours
    stale    nobody is attached to, by the kernel's count, and no living process is recorded for
    unknown  has no presence semaphore here: of another IPC namespace, or no work of ours

Rule: what is not provably dead is not called stale.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

from shmq.errors import SegmentError
from shmq.shm.instance import SEGMENT_PARTS, Instance, read_instance
from shmq.shm.kernel import sysv_ipc
from shmq.shm.liveness import boot_id, is_alive
from shmq.shm.place import Place
from shmq.shm.presence import presence_key_of, presence_of_key
from shmq.shm.segment import SHM_DIRECTORY
from shmq.tools.observe.snapshot import Segment

_NAME = (
    r"(?P<semaphore>sem\.)?shmq\.(?P<broker>.+)\.(?P<generation>[0-9a-f]{16})"
    r"\.(?P<part>control|units|readers|counters|w[0-9]+)"
)
_BLOCK_BYTES = 512
SEMAPHORES = "semaphores"


def collect_segments(place: Place, instance: Instance | None) -> tuple[Segment, ...]:
    """Return every shmq segment that can be seen, our own first."""
    recorded = _recorded(place)
    own = instance.generation if instance is not None and instance.boot_id == boot_id() else None
    found: list[Segment] = []
    for (broker, generation), paths in _by_generation().items():
        known = next((entry for entry in recorded if entry.generation == generation), None)
        state, reason = ("own", "") if generation == own else _judge(generation, known, paths)
        found += _describe(paths, broker, generation, state, reason)
    for entry in recorded:
        if entry.kind == "sysv" and entry.boot_id == boot_id():
            state, reason = ("own", "") if entry.generation == own else _judge(entry.generation, entry, [])
            found += _describe_sysv(entry, state, reason)
    order = {"own": 0, "other": 1, "unknown": 2, "stale": 3}
    return tuple(sorted(found, key=lambda segment: (order[segment.state], segment.name)))


def _recorded(place: Place) -> list[Instance]:
    found = []
    for path in sorted({place.instance_path, *place.runtime_dir.parent.glob(f"*/{place.instance_path.name}")}):
        with contextlib.suppress(SegmentError, OSError):
            instance = read_instance(path)
            if instance is not None:
                found.append(instance)
    return found


def _by_generation() -> dict[tuple[str, int], list[Path]]:
    found: dict[tuple[str, int], list[Path]] = {}
    try:
        names = sorted(os.listdir(SHM_DIRECTORY))
    except OSError:
        return {}
    for name in names:
        match = re.fullmatch(_NAME, name)
        if match is not None:
            found.setdefault((match["broker"], int(match["generation"], 16)), []).append(SHM_DIRECTORY / name)
    return found


def _judge(generation: int, known: Instance | None, paths: list[Path]) -> tuple[str, str]:
    if known is not None and any(is_alive(mark) for mark in known.processes.values()):
        return "other", ""
    uids = {status.st_uid for path in paths if (status := _status(path)) is not None}
    uid = known.uid if known is not None else min(uids, default=os.geteuid())
    attached = presence_of_key(presence_key_of(generation), uid=uid)
    if attached is None:
        return "unknown", "no presence semaphore in this IPC namespace"
    if attached:
        return "other", ""
    return "stale", "no process is attached, and no living process is recorded for it"


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _describe(paths: list[Path], broker: str, generation: int, state: str, reason: str) -> list[Segment]:
    segments: list[Segment] = []
    semaphores: list[os.stat_result] = []
    for path in paths:
        status = _status(path)
        if status is None:
            continue  # it went while we looked
        if path.name.startswith("sem."):
            semaphores.append(status)
            continue
        segments.append(
            Segment(
                name=path.name,
                path=str(path),
                part=path.name.rpartition(".")[2],
                broker=broker,
                generation=f"{generation:016x}",
                size_bytes=status.st_size,
                used_bytes=status.st_blocks * _BLOCK_BYTES,
                uid=status.st_uid,
                mode=stat.S_IMODE(status.st_mode),
                state=state,
                reason=reason,
            )
        )
    if semaphores:
        segments.append(
            Segment(
                name=f"{len(semaphores)} semaphores sem.shmq.{broker}.{generation:016x}.w*",
                path="",
                part=SEMAPHORES,
                broker=broker,
                generation=f"{generation:016x}",
                size_bytes=sum(status.st_size for status in semaphores),
                used_bytes=sum(status.st_blocks for status in semaphores) * _BLOCK_BYTES,
                uid=semaphores[0].st_uid,
                mode=stat.S_IMODE(semaphores[0].st_mode),
                state=state,
                reason=reason,
            )
        )
    return segments


def _describe_sysv(entry: Instance, state: str, reason: str) -> list[Segment]:
    found = []
    for part, identifier in zip(SEGMENT_PARTS, entry.segments, strict=True):
        try:
            segment = sysv_ipc.attach(identifier, None, sysv_ipc.SHM_RDONLY)
        except (sysv_ipc.Error, OSError, ValueError):
            continue
        try:
            size = int(segment.size)
            found.append(
                Segment(
                    name=f"sysv:{identifier}",
                    path="",
                    part=part,
                    broker=entry.broker_name,
                    generation=f"{entry.generation:016x}",
                    size_bytes=size,
                    used_bytes=size,
                    uid=int(segment.cuid),
                    mode=int(segment.mode) & 0o777,
                    state=state,
                    reason=reason,
                )
            )
        finally:
            segment.detach()
    return found
