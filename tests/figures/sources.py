"""Other sources of the numbers that shmq shows: /proc, util-linux, procps, and the store read record by record.

Nothing here asks shmq's observer: only the decoder of a record and the names of a store's files are shmq's own.
"""

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmq.shm.core import CoreError, record_decode, record_verify
from shmq.shm.liveness import ProcessMark, status_of
from tests.deadline import attempts

TICKS = os.sysconf("SC_CLK_TCK")
UNIT = struct.Struct(">QIq")
_MARK = struct.Struct("<8sQQQ")  # magic, sequence, durable end, dispatched
_MARK_SLOTS = (0, 4096)
_GROUPS = Path("/sys/fs/cgroup")
_SECOND_VERSION = ("memory.max", "memory.current")


def said(*command: str) -> str:
    """What a command of the system prints; a system without it has no such source."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


ELAPSED_SLACK = 1.0  # seconds: ps counts whole ones


def elapsed(pid: int) -> float:
    """How long a process has run, as ps says."""
    return float(said("ps", "-o", "etimes=", "-p", str(pid)))


class Used(NamedTuple):
    """What /proc says of one process."""

    cpu_ticks: int
    rss_bytes: int
    uss_bytes: int
    pss_bytes: int
    fds: int
    threads: int
    mappings: int
    uid: int
    start: int


def used(pid: int) -> Used:
    """Read /proc/<pid> without psutil."""
    place = Path(f"/proc/{pid}")
    stat = (place / "stat").read_text().rpartition(")")[2].split()
    smaps: dict[str, int] = {}
    for line in (place / "smaps_rollup").read_text().splitlines()[1:]:
        name, size, _ = line.split()
        smaps[name] = int(size) << 10
    status = status_of(pid)
    return Used(
        cpu_ticks=int(stat[11]) + int(stat[12]),
        rss_bytes=int((place / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE"),
        uss_bytes=smaps["Private_Clean:"] + smaps["Private_Dirty:"] + smaps.get("Private_Hugetlb:", 0),
        pss_bytes=smaps["Pss:"],
        fds=len(os.listdir(place / "fd")),
        threads=int(status["Threads"]),
        mappings=len((place / "maps").read_text().splitlines()),
        uid=int(status["Uid"].split()[1]),
        start=int(stat[19]),
    )


class Record(NamedTuple):
    """One record of the log."""

    position: int
    size: int
    topic: str
    queue_id: int


def records(store: Path) -> Iterator[Record]:
    """Read a log from its first file on until what follows is no record."""
    files = sorted(path for path in (store / "commitlog").iterdir())
    log, at = b"".join(path.read_bytes() for path in files), 0
    while True:
        try:
            record: dict[str, Any] = record_decode(log, at)
        except CoreError:
            return
        assert record_verify(log, at)
        topic = record["topic"].decode() if isinstance(record["topic"], bytes) else record["topic"]
        yield Record(int(files[0].name) + at, record["record_bytes"], topic, record["queue_id"])
        at += record["record_bytes"]


def units(store: Path) -> dict[tuple[str, int], int]:
    """How many units the ConsumeQueue files hold: (topic, queue) -> units, without those of no size."""
    found = {}
    for queue in (store / "consumequeue").glob("*/*"):
        content = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
        found[queue.parent.name, int(queue.name)] = sum(size > 0 for _, size, _ in UNIT.iter_unpack(content))
    return found


def mark(store: Path) -> tuple[int, int]:
    """(durable end, dispatched) of the newer slot of the durable mark."""
    content = (store / "shmq.durable").read_bytes()
    slots = [_MARK.unpack_from(content, at) for at in _MARK_SLOTS if len(content) >= at + _MARK.size]
    _, _, durable_end, dispatched = max(slots, key=lambda slot: slot[1])
    return durable_end, dispatched


def limits_of(pid: int) -> tuple[int | None, int | None]:
    """(lowest memory limit, what is used of it) on the way from a process's control group to the root."""
    rows = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    first = [f"memory/{group}" for _, kinds, group in rows if "memory" in kinds.split(",")]
    second = [group for number, kinds, group in rows if number == "0" and not kinds]
    place, names = (
        (first[0], ("memory.limit_in_bytes", "memory.usage_in_bytes")) if first else (second[0], _SECOND_VERSION)
    )
    levels = []
    directory = _GROUPS / place.lstrip("/").replace("//", "/")
    while directory != _GROUPS.parent:
        limit, usage = (directory / name for name in names)
        if usage.exists():
            text = limit.read_text().strip() if limit.exists() else "max"
            levels.append((int(text) if text.isdigit() and int(text) < 1 << 60 else None, int(usage.read_text())))
        directory = directory.parent
    bound = [(limit, usage) for limit, usage in levels if limit is not None]
    return min(bound) if bound else (None, levels[0][1] if levels else None)


def stopped(marks: dict[str, ProcessMark]) -> bool:
    """Whether every one of these processes stands still."""
    return all(status_of(mark.pid).get("State", "").startswith("T") for mark in marks.values())


def agreed(look: Callable[[], Any], source: Callable[[], Any], what: str) -> Any:
    """Look until the source says before and after the look what the look shows; return that."""
    for _ in attempts():
        before, shown, after = source(), look(), source()
        if before == shown == after:
            return shown
    raise AssertionError(f"{what}: {shown} is shown between {before} and {after}")
