"""What is wrong with a broker in one line each, for the head of the page; `shmq health` says more, and the cure.

It does not know pages.
"""

from __future__ import annotations

from shmq.tools.observe.snapshot import Snapshot
from shmq.tools.quantity import age_text

BEAT_LATE_SECONDS = 5.0
HELD_LONG_SECONDS = 0.02
_STOPPED = ("stopped", "frozen")


def troubles_of(snapshot: Snapshot) -> list[str]:
    """Return what keeps messages from flowing, worst first."""
    broker = snapshot.broker
    found = [fault.error for fault in snapshot.faults if fault.what in ("instance", "segments")]
    for process in snapshot.processes:
        if process.role != "client" and not process.alive:
            found.append(f"the {process.role} (pid {process.pid}) is dead")
        elif process.state in _STOPPED:
            found.append(f"{process.role} {process.name} (pid {process.pid}) is {process.state}")
    if broker.read_only:
        found.append(f"nothing is stored: {broker.read_only_text}")
    if broker.retired:
        found.append("these segments were given up")
    lock = snapshot.lock
    if lock is not None and lock.held > HELD_LONG_SECONDS:
        found.append(
            f"the append lock is held since {age_text(lock.held)} by pid {lock.pid} ({lock.name}, {lock.state})"
        )
    if broker.keeper_beat_age is not None and broker.keeper_beat_age > BEAT_LATE_SECONDS:
        found.append(f"the store keeper was last heard {age_text(broker.keeper_beat_age)} ago")
    return found
