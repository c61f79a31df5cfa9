"""Keeps what a master knows of its slaves, for people: how far connected ones are, which left or were refused, and why.

A slave that is gone is remembered under its host until one comes from there again, a refused one until it was let in:
REMEMBERED hosts at most, those that came last.

Invariants:
 1. Nothing here decides anything: it is written down for `shmq health` and its like.
 2. Times are arguments.
"""

from __future__ import annotations

from collections.abc import Callable

from shmq.daemon.ha.in_sync import CAUGHT_UP_MS
from shmq.daemon.ha.lag import LagClock
from shmq.daemon.ha.leader import LeaderLink
from shmq.shm.links import ASYNCHRONOUS, CATCHING_UP, CONNECTING, IN_SYNC, LostLink, ReplicaLink

REMEMBERED = 16


class Replicas:
    """The slaves of one master.

    Args:
        is_in_sync: whether the slave of a link has all that was acknowledged; None where no sender waits for slaves.
    """

    def __init__(self, is_in_sync: Callable[[LeaderLink], bool] | None) -> None:
        self._is_in_sync = is_in_sync
        self._links: dict[LeaderLink, tuple[str, int]] = {}
        self._gone: dict[str, LostLink] = {}
        self._refused: dict[str, LostLink] = {}
        self._lag = LagClock()

    def __len__(self) -> int:
        return len(self._links)

    def connected(self, link: LeaderLink, address: str, now_ms: int) -> None:
        """A slave has connected; what it wants is not known yet."""
        self._links[link] = (address, now_ms)

    def gone(self, link: LeaderLink, reason: str, cure: str, now_ms: int) -> None:
        """The connection to a slave is over."""
        address, _ = self._links.pop(link)
        if link.is_refused:
            self.refused(address, reason, cure, now_ms)
        elif link.shipped is not None:  # who connects and closes again without a word is no slave
            _remember(self._gone, address, reason, cure, now_ms)

    def refused(self, address: str, reason: str, cure: str, now_ms: int) -> None:
        """A slave was not let in."""
        _remember(self._refused, address, reason, cure, now_ms)

    def grown(self, log_end: int, now_ms: int) -> None:
        """The log ends here now."""
        self._lag.grown(log_end, now_ms)

    def rows(self, now_ms: int) -> tuple[ReplicaLink, ...]:
        """Return the slaves that are connected."""
        rows = tuple(self._row(link, address, since_ms, now_ms) for link, (address, since_ms) in self._links.items())
        for row in rows:
            if row.acknowledged is not None:
                for lost in (self._gone, self._refused):
                    host = _host(row.address)
                    if host in lost and lost[host].at_ms <= row.since_ms:
                        del lost[host]
        return rows

    def slowest(self) -> int | None:
        """Return the lowest log position that all connected slaves have; None: there is none. Any thread may call."""
        ends = [link.acknowledged for link in tuple(self._links) if link.acknowledged is not None]
        return min(ends, default=None)

    def gone_rows(self) -> tuple[LostLink, ...]:
        """Return the slaves that are not connected any more."""
        return tuple(self._gone.values())

    def refused_rows(self) -> tuple[LostLink, ...]:
        """Return the slaves that were refused."""
        return tuple(self._refused.values())

    def _row(self, link: LeaderLink, address: str, since_ms: int, now_ms: int) -> ReplicaLink:
        if link.acknowledged is None:
            return ReplicaLink(address, "", CONNECTING, since_ms)
        lag_ms = self._lag.lag_ms(link.acknowledged, now_ms)
        if self._is_in_sync is not None and self._is_in_sync(link):
            state = IN_SYNC
        else:
            state = CATCHING_UP if lag_ms > CAUGHT_UP_MS else ASYNCHRONOUS
        if state == ASYNCHRONOUS and self._is_in_sync is not None and not link.is_stock:
            state = CATCHING_UP  # it is about to be counted
        lag_bytes = max(0, self._lag.end - link.acknowledged)
        kind = "stock" if link.is_stock else "shmq"
        store = link.slave.store if link.slave is not None else ""
        return ReplicaLink(address, kind, state, since_ms, link.acknowledged, link.flushed, lag_bytes, lag_ms, store)


def _remember(rows: dict[str, LostLink], address: str, reason: str, cure: str, now_ms: int) -> None:
    before = rows.pop(_host(address), None)
    rows[_host(address)] = LostLink(address, reason, cure, now_ms, 1 if before is None else before.times + 1)
    if len(rows) > REMEMBERED:
        del rows[next(iter(rows))]


def _host(address: str) -> str:
    return address.rpartition(":")[0]
