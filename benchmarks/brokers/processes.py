"""Memory and processor time of a broker's processes.

(1) Memory is the proportional set size, so a page that several processes map counts once.
(2) Processor time is that of each process and of all that it started, living or waited for: utime, stime, cutime and
    cstime of /proc/PID/stat. The kernel counts it in ticks of 10 ms, so windows are seconds long.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

MIB = 1 << 20
_FIRST_TIME = 11  # utime, counted from behind the name, which may hold blanks and parentheses
_TIMES = 4
_TICKS = os.sysconf("SC_CLK_TCK")


def memory_mib(pids: Iterable[int]) -> float:
    """Return the resident memory of some processes; a page that several of them share counts once."""
    return sum(_proportional_bytes(pid) for pid in pids) / MIB


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of some processes and of all that descend from them."""
    return sum(_ticks(pid) for pid in _trees(pids)) / _TICKS


def _trees(pids: Iterable[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return found


def _children(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that ended meanwhile has none
            yield from map(int, thread.read_text().split())


def _ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it ended, and its parent has its time
        return 0
    words = text.rpartition(")")[2].split()
    return sum(map(int, words[_FIRST_TIME : _FIRST_TIME + _TIMES]))


def _proportional_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no proportional set size")
