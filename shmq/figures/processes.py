"""The processes that take part in a broker, by pid and start time; no other process of the host is looked at.

A process is looked at only while its start time is the recorded one, so that figures of another process that got the
same pid are never shown as its own.

    quick   state from /proc/<pid>/status                                             20 us a process
    usual   and CPU, RSS, descriptors, threads                       psutil          100 us
    deep    and USS, PSS, mappings                                   psutil            2 ms
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shmq.figures.snapshot import Process, Snapshot
from shmq.shm.core import process_died
from shmq.shm.liveness import ProcessMark, is_alive, is_frozen, status_of

if TYPE_CHECKING:
    import psutil

_STATES = {"R": "running", "S": "sleeping", "I": "sleeping", "D": "disk", "T": "stopped", "t": "stopped", "Z": "zombie"}
STOPPED = frozenset({"stopped", "frozen"})


def state_of(mark: ProcessMark) -> str:
    """Return what exactly this process does: a name of `Process.state`."""
    if not is_alive(mark):
        return "zombie" if status_of(mark.pid).get("State", "").startswith("Z") else "dead"
    return thread_state(mark.pid, mark.pid)


def thread_state(tid: int, pid: int) -> str:
    """Return what one thread of a process does."""
    letter = status_of(tid).get("State", "")[:1]
    if not letter:
        return "dead" if process_died(tid, 0) else "hidden"
    if letter in "SDI" and is_frozen(pid):
        return "frozen"
    return _STATES.get(letter, "sleeping")


def collect_processes(
    marks: Mapping[str, ProcessMark],
    clients: Iterable[tuple[ProcessMark, str]],
    *,
    depth: str = "usual",
) -> tuple[Process, ...]:
    """Return the broker's own processes in the order given, then its clients by pid, each once.

    Args:
        marks: role -> process, as instance.json says.
        clients: the process and the client id of every attached connection.
        depth: "quick", "usual" or "deep".
    """
    found = [_look(role, mark, (), depth) for role, mark in marks.items()]
    own = set(marks.values())
    by_process: dict[ProcessMark, list[str]] = {}
    for mark, client_id in clients:
        if mark not in own:
            by_process.setdefault(mark, []).append(client_id)
    for mark in sorted(by_process, key=lambda mark: mark.pid):
        names = tuple(sorted(name for name in by_process[mark] if name))
        found.append(_look("client", mark, names, depth))
    return tuple(found)


def _look(role: str, mark: ProcessMark, client_ids: tuple[str, ...], depth: str) -> Process:
    state = state_of(mark)
    seen = Process(mark.pid, mark.start, role, state, state not in ("dead", "zombie"), client_ids=client_ids)
    if not seen.alive or depth == "quick":
        return seen
    import psutil

    try:
        measured = _measure(seen, psutil.Process(mark.pid), deep=depth == "deep")
    except psutil.Error:
        return seen
    # What was read may be a successor's if ours ended meanwhile.
    return measured if is_alive(mark) else seen._replace(state="dead", alive=False)


def _measure(seen: Process, process: psutil.Process, *, deep: bool) -> Process:
    import psutil

    with process.oneshot():
        times = process.cpu_times()
        uid = process.uids().effective
        seen = seen._replace(
            name=process.name(),
            uid=uid,
            user=_user(process, uid),
            age=_age(seen.start),
            cpu_seconds=times.user + times.system,
            rss_bytes=process.memory_info().rss,
            threads=process.num_threads(),
        )
        try:
            seen = seen._replace(fds=process.num_fds())
            if deep:
                full = process.memory_full_info()
                seen = seen._replace(uss_bytes=full.uss, pss_bytes=full.pss, mappings=_mappings(seen.pid))
        except psutil.AccessDenied:
            pass  # another user's process shows less
    return seen


def _mappings(pid: int) -> int | None:
    """How many mappings it has; /proc/<pid>/maps has one line each."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return None


def _user(process: psutil.Process, uid: int) -> str:
    try:
        return process.username()
    except (KeyError, OSError):
        return str(uid)


def _age(start: int) -> float:
    """Seconds since a process began. Both are counted from the boot: when that was is known to a second at best."""
    import time

    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK"))


def bridge_runs(snapshot: Snapshot) -> bool:
    """Say whether the process runs that frees what dead members leave behind."""
    bridge = snapshot.process("bridge")
    return bridge is not None and bridge.alive and bridge.state not in STOPPED
