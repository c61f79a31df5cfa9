"""Stops a process of a broker for a while, and never where it has a lock that others need.

A process is stopped at any instruction. Inside the append lock it would keep every sender out, inside the lock of the
tables every program that attaches; a test of anything else would find that, once in many runs.
"""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from shmq.shm.core import Store, StoreFigures
from shmq.shm.liveness import ProcessMark, signal_proven
from shmq.testing import Broker
from tests.deadline import attempts, eventually
from tests.shm.looking import looking

_LOCKS = ("lock_tid", "table_lock_tid", "flush_lock_tid")


@contextlib.contextmanager
def stopped(broker: Broker, role: str) -> Iterator[None]:
    """Hold a process of a broker, which has no lock then, until the end of the block."""
    process = broker.processes[role]
    with looking(broker) as store:
        try:
            _stop(process, store)
            yield
        finally:
            signal_proven(process, signal.SIGCONT)


def _stop(process: ProcessMark, store: Store) -> None:
    for _ in attempts():
        signal_proven(process, signal.SIGSTOP)
        eventually(lambda: _states(process.pid) == {"T"}, f"process {process.pid} stands still")
        if not _has_a_lock(process.pid, store):
            return
        signal_proven(process, signal.SIGCONT)
    raise AssertionError(f"process {process.pid} had a lock whenever it was stopped")


def _states(pid: int) -> set[str]:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return {(thread / "stat").read_text().rpartition(") ")[2][0] for thread in threads}


def _has_a_lock(pid: int, store: Store) -> bool:
    stats = StoreFigures(store).stats()
    return any(Path(f"/proc/{pid}/task/{stats[name]}").exists() for name in _LOCKS)
