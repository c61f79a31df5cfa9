"""Owns the short look at a broker from inside a client: is it alive, may it be written, is there room.

It does not know thresholds of users, processes or disks; `shmq health` does. Everything is read from shared memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shmq.shm.core import READ_ONLY_REASONS

if TYPE_CHECKING:
    from shmq.client.link import Link
    from shmq.shm.core import Store

Verdict = Literal["OK", "WARNING", "CRITICAL"]
_ORDER: tuple[Verdict, ...] = ("OK", "WARNING", "CRITICAL")

KEEPER_BEAT_WARNING_MS = 5_000
"""The store keeper beats at least every second; five missed ones are not a busy machine any more."""


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


def examine(link: Link) -> Health:
    """Look at the broker a connection belongs to."""
    session = link._local()
    store = session.store
    alive = session.control.alive
    plane = "the control plane answers" if alive else "the control plane is gone; sending and receiving go on"
    checks = (
        Check("control", "OK" if alive else "CRITICAL", plane, {"alive": int(alive)}),
        _keeper(store),
        _store(store),
        _space(store),
    )
    return Health(worst(checks), checks)


def worst(checks: Sequence[Check]) -> Verdict:
    """Return the worst verdict of checks."""
    return max((check.verdict for check in checks), key=_ORDER.index)


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
