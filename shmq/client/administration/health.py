"""The short look at a broker from inside a client: is it alive, may it be written, is there room.

Of this host's broker everything is read from shared memory; brokers of a cluster say it. Thresholds of users, processes
and disks are for `shmq health`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shmq.shm.core import READ_ONLY_REASONS

if TYPE_CHECKING:
    from shmq.shm.core import Store

Verdict = Literal["OK", "WARNING", "CRITICAL"]
_ORDER: tuple[Verdict, ...] = ("OK", "WARNING", "CRITICAL")

KEEPER_BEAT_WARNING_MS = 5_000
"""The store keeper beats at least every second; five missed ones are not a busy machine any more."""
DISK_WARNING = 0.85
"""RocketMQ refuses writes at 0.9 by default."""


class Check(NamedTuple):
    """One thing looked at; `figures` are raw numbers."""

    name: str
    verdict: Verdict
    text: str
    figures: dict[str, int]


class Health(NamedTuple):
    """All checks, and the worst verdict."""

    verdict: Verdict
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain dicts and lists."""
        return {"verdict": self.verdict, "checks": [check._asdict() for check in self.checks]}


def health_of(checks: Sequence[Check]) -> Health:
    """Return checks with their worst verdict."""
    return Health(max((check.verdict for check in checks), key=_ORDER.index), tuple(checks))


def store_health(store: Store, *, alive: bool) -> Health:
    """Look at the store of this host's broker, and whether its control plane answers."""
    plane = "the control plane answers" if alive else "the control plane is gone; sending and receiving go on"
    control = Check("control", "OK" if alive else "CRITICAL", plane, {"alive": int(alive)})
    return health_of([control, _keeper(store), _store(store), _space(store)])


def cluster_health(brokers: Mapping[str, Mapping[str, str]]) -> Health:
    """Look at what the brokers of a cluster say about themselves, by name."""
    checks = [Check("brokers", "OK", f"{len(brokers)} brokers answer", {"alive": len(brokers)})]
    return health_of(checks + [_disk(name, table) for name, table in sorted(brokers.items())])


def _keeper(store: Store) -> Check:
    age_ms = max(0, time.monotonic_ns() - store.keeper_beat_ns) // 1_000_000
    verdict: Verdict = "OK" if age_ms < KEEPER_BEAT_WARNING_MS else "WARNING"
    return Check("keeper", verdict, f"the store keeper's last round was {age_ms} ms ago", {"beat_age_ms": age_ms})


def _store(store: Store) -> Check:
    reason = store.read_only
    if reason:
        words = READ_ONLY_REASONS.get(reason, f"reason {reason}")
        return Check("store", "CRITICAL", f"the store is read-only: {words}", {"read_only": reason})
    if store.retired:
        return Check("store", "CRITICAL", "this generation of segments was given up", {"retired": 1})
    behind = max(0, store.log_end - store.durable_end)
    return Check("store", "OK", f"writable, {behind} bytes not flushed yet", {"flush_behind_bytes": behind})


def _space(store: Store) -> Check:
    free = max(0, store.allocated_end - store.log_end)
    file_bytes = int(store.head["file_bytes"]) if "file_bytes" in store.head else int(store.head["sizes"]["file_bytes"])
    figures = {"allocated_free_bytes": free, "file_bytes": file_bytes}
    # Less than a tenth of a file left means that the keeper has not made the next one, as it does long before.
    verdict: Verdict = "WARNING" if free * 10 < file_bytes else "OK"
    return Check("space", verdict, f"{free} bytes of the log are allocated ahead", figures)


def _disk(name: str, table: Mapping[str, str]) -> Check:
    try:
        ratio = float(table.get("commitLogDiskRatio", "0"))
    except ValueError:
        ratio = 0.0
    verdict: Verdict = "WARNING" if ratio >= DISK_WARNING else "OK"
    text = f"the disk of its log is {100 * ratio:.0f} % full"
    return Check(f"disk of {name}", verdict, text, {"disk_percent": round(100 * ratio)})
