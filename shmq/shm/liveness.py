"""Liveness of processes, named by pid and start time, so that a reused pid is never taken for its predecessor.

Whether a process lives is always asked here, never with `os.kill(pid, 0)`, which succeeds for an unrelated process that
has got the same number.

Rules: (1) a mark is dead once field 22 of /proc/<pid>/stat differs from the recorded start time, or the kernel knows no
process of that number; one that /proc hides from this user (hidepid, ProtectProc) counts as alive;
(2) a signal goes through a pidfd whose process was proven after the pidfd was opened, so it cannot hit a successor.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from shmq.errors import ForeignNamespace
from shmq.shm.core import process_died, process_start
from shmq.shm.descriptors import above_standard

STOPPED_STATES = frozenset("Tt")
_PROC_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class ProcessMark(NamedTuple):
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    start: int


def own_mark() -> ProcessMark:
    """Return the mark of the calling process."""
    pid = os.getpid()
    return ProcessMark(pid, process_start(pid))


def mark_of(pid: int) -> ProcessMark | None:
    """Return the mark of a living process, or None."""
    start = process_start(pid) if pid > 0 else 0
    return ProcessMark(pid, start) if start else None


def is_alive(mark: ProcessMark | None) -> bool:
    """Say whether this process lives; a zombie does not. One that /proc hides does while there is one of its number."""
    return mark is not None and mark.start != 0 and mark.pid > 0 and not process_died(mark.pid, mark.start)


def is_seen_alive(mark: ProcessMark) -> bool:
    """Say whether exactly this process is seen to live: what a signal needs."""
    return mark.start != 0 and mark.pid > 0 and process_start(mark.pid) == mark.start


@above_standard
def boot_id() -> str:
    """Return the identity of this boot; segments of another boot cannot exist.

    Raises:
        ForeignNamespace: /proc does not show it.
    """
    try:
        with open(_PROC_BOOT_ID) as file:
            return file.read().strip()
    except OSError as error:
        raise ForeignNamespace(
            f"{_PROC_BOOT_ID} cannot be read ({error.strerror}): it tells which shared memory is of this boot",
            hint="mount the whole of /proc (systemd: ProcSubset=all), or connect over TCP",
        ) from error


def pid_namespace() -> int:
    """Return the inode of our PID namespace.

    Raises:
        ForeignNamespace: /proc knows nothing of this process.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except FileNotFoundError as error:
        raise _foreign_proc("unknown") from error


def visible_pid_namespace() -> int:
    """Return the same where /proc shows that namespace, so that processes can be looked up by their numbers.

    Raises:
        ForeignNamespace: /proc is that of another PID namespace.
    """
    namespace = pid_namespace()
    seen = os.readlink("/proc/self")
    if seen != str(os.getpid()):
        raise _foreign_proc(seen)
    return namespace


def _foreign_proc(seen: str) -> ForeignNamespace:
    return ForeignNamespace(
        f"/proc belongs to another PID namespace: this process has pid {os.getpid()}, there it is {seen}",
        hint="enter both (nsenter: --pid and --mount; unshare: --mount-proc)",
    )


@above_standard
def status_of(pid: int) -> dict[str, str]:
    """Return the fields of /proc/<pid>/status; {} when there is no such process. Takes a thread id too."""
    try:
        with open(f"/proc/{pid}/status") as file:
            text = file.read()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


@above_standard
def is_frozen(pid: int) -> bool:
    """Say whether the process' control group is frozen (cgroup v2 freezer)."""
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            group = next(line.rstrip("\n").split("::", 1)[1] for line in file if line.startswith("0::"))
        with open(f"/sys/fs/cgroup{group}/cgroup.events") as file:
            events = file.read().split("\n")
    except (OSError, StopIteration):
        return False
    return "frozen 1" in events


def signal_proven(mark: ProcessMark, number: int = signal.SIGKILL, *, proof: Callable[[], bool] | None = None) -> bool:
    """Send a signal to exactly this process; False when it is gone, may not be signalled, or the proof fails.

    Args:
        proof: asked after the process can no longer be confused with another one.
    """
    try:
        with above_standard:
            descriptor = os.pidfd_open(mark.pid)
    except OSError:
        return False
    try:
        if not is_seen_alive(mark) or (proof is not None and not proof()):
            return False
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(descriptor, number)
            return True
        return False
    finally:
        os.close(descriptor)
