"""Vital signs: each process of a broker writes a word of its counters about once a second.

The service manager's watchdog is fed from it, and the metric `shmq_beat_age_seconds` shows it.

    keeper      at each of its rounds        bridge      at each of its ticks, in its event loop

So a process that is stopped or stuck counts as dead here, although the kernel says that it lives.
"""

from __future__ import annotations

from collections.abc import Mapping

from shmq.metrics.family import BEAT
from shmq.shm.counter_reader import Block
from shmq.shm.counters import BRIDGE, KEEPER
from shmq.shm.liveness import ProcessMark, is_alive


def role_of(writer: int) -> str:
    """Return the role of the process that counts in a block, as instance.json names it."""
    return "keeper" if writer == KEEPER else "bridge" if writer == BRIDGE else f"bridge-{writer - BRIDGE}"


def beats_of(blocks: list[Block]) -> dict[str, int]:
    """Return when each living process gave its last sign, nanoseconds of the monotonic clock."""
    return {
        role_of(block.writer): entry.words[0]
        for block in blocks
        if is_alive(block.mark)
        for entry in block.entries
        if entry.family == BEAT
    }


def silent_roles(
    wanted: Mapping[str, ProcessMark | None], blocks: list[Block], *, now_ns: int, limit_ns: int
) -> list[str]:
    """Return which of the wanted processes gave no sign for longer than the limit, or are not there."""
    beats = beats_of(blocks)
    marks = {role_of(block.writer): block.mark for block in blocks}
    return [
        role
        for role, mark in wanted.items()
        if mark is None or marks.get(role) != mark or now_ns - beats.get(role, 0) > limit_ns
    ]
