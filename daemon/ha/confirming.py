"""Carries out the in-sync set: its verdict goes to the core, what joins and leaves to the event log.

report, end of a link ──▶ InSyncSet ──verdict──▶ ReplicaStore.confirm ──confirmed end──▶ InSyncSet
tick, every 100 ms ─────────┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable

from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.in_sync import InSyncSet, State, Verdict
from shmq.shm.core import ReplicaStore, Store

_TICK_SECONDS = 0.1
# A join waits for the flush that was under way; what takes longer than this is tried again at the next tick.
_JOIN_SECONDS = 0.2


class Confirming:
    """The confirmation of one synchronous master, inside one event loop.

    Args:
        store: mapped writable.
    """

    is_prompt = True
    tells_confirmed = False  # its slaves show all that they have

    def __init__(self, store: Store, in_sync_min: int, log: EventLog) -> None:
        self._store = store
        self._replica = ReplicaStore(store)
        self._set = InSyncSet(in_sync_min, _now_ms())
        self._log = log
        self._addresses: dict[Hashable, str] = {}
        self._states: dict[Hashable, State] = {}
        self._said: Verdict | None = None

    async def serve(self) -> None:
        """Look at the clock until cancelled."""
        while True:
            self._set.tick(self._store.log_end, _now_ms())
            self._said = None  # a full disk that is over asks for it again
            self._say()
            await asyncio.sleep(_TICK_SECONDS)

    def report(self, link: Hashable, address: str, flushed: int) -> None:
        self._addresses[link] = address
        self._set.report(link, flushed, self._store.log_end, _now_ms())
        self._say()

    def gone(self, link: Hashable) -> None:
        self._set.gone(link)
        self._say()
        self._addresses.pop(link, None)

    def heard(self, link: Hashable, message: bytes) -> None:
        """Drop it: no member is elected here."""

    def is_in_sync(self, link: Hashable) -> bool:
        return self._states.get(link) is State.IN_SYNC

    def _say(self) -> None:
        # Twice where a replica has just become one that counts.
        while (verdict := self._set.verdict(_now_ms())) != self._said:
            end, replicas, lacks_replicas = verdict
            confirmed_end = self._replica.confirm(end, replicas, _JOIN_SECONDS, lacks_replicas=lacks_replicas)
            if confirmed_end is None:
                return
            self._said = verdict
            self._set.confirmed(confirmed_end)
        self._tell()

    def _tell(self) -> None:
        states, before = self._set.states(), self._states
        if states == before:
            return
        for link in {**before, **states}:
            is_now, was = states.get(link) is State.IN_SYNC, before.get(link) is State.IN_SYNC
            if is_now != was:
                self._log(
                    "ha.in_sync" if is_now else "ha.out_of_sync",
                    address=self._addresses.get(link, ""),
                    confirmed_end=self._store.confirmed_end,
                    log_end=self._store.log_end,
                )
        self._states = states


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
