"""One broker, looked at once or again and again: opens what can be opened, and puts the collectors' figures together.

Nothing is written. What cannot be opened becomes a fault of the snapshot; the rest is there.

    with Observer(url) as observer:           url as everywhere: None, shmq://NAME, shmq:///dir
        first = observer.snapshot()
        second = observer.snapshot()          rates are differences of two snapshots; the mapping is kept between them

    depth     processes               log                 groups, counted       cost
    quick     state                   ends, spare, behind none                  3 ms
    usual     CPU, RSS, fds           as quick            lag, ready, oldest    + 0.1 ms a process, 1 us a queue
    deep      USS, PSS, mappings      and residency       as usual              + 2 ms a process

Rule: a generation that was given up is let go at the next snapshot, and the one that took its place is opened.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Literal, Self

from shmq.figures.log_state import LockWatch, collect_claim
from shmq.figures.look import Look
from shmq.figures.snapshot import Snapshot
from shmq.shm.core import Store, StoreFigures
from shmq.shm.discovery import find_place
from shmq.shm.place import Place
from shmq.shm.segment import open_store

Depth = Literal["quick", "usual", "deep"]
LOCK_PATIENCE_SECONDS = 0.05


class Observer:
    """Looks at the broker of a URL.

    Raises:
        UsageError, InvalidName: the URL names no broker of this host.
    """

    def __init__(self, url: str | None = None) -> None:
        self.place: Place = find_place(url)
        self._store: Store | None = None
        self._generation = -1
        self._lock = LockWatch()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the segments go."""
        if self._store is not None:
            self._store.close()
        self._store = None

    @property
    def store(self) -> Store | None:
        """The mapped segments of the last snapshot, None when they could not be opened; read only."""
        return self._store

    def snapshot(self, depth: Depth = "usual", *, lock_patience: float = LOCK_PATIENCE_SECONDS) -> Snapshot:
        """Look once.

        Args:
            lock_patience: how long to look on when the append lock is held, in seconds, to know whether it stays so.
        """
        look = Look(self.place)
        store = self._attached(look)
        lock = look.part("lock", lambda: self._lock.settle(StoreFigures(store), lock_patience)) if store else None
        claim = look.part("claim", lambda: collect_claim(StoreFigures(store))) if store else None
        clients, topics, groups, refused, security = look.members(store, depth)
        return Snapshot(
            at=time.time(),
            broker=look.broker(store),
            processes=look.processes(clients, depth),
            presence=look.presence(store),
            segments=look.segments(),
            memory=look.memory(),
            log=look.log(store, depth),
            lock=lock,
            claim=claim,
            disk=look.disk(),
            clients=clients,
            topics=topics,
            groups=groups,
            recovery=look.recovery(),
            faults=tuple(look.faults),
            scrub=look.scrub(),
            refused=refused,
            security=security,
            replication=look.replication(),
            counted=None if depth == "quick" else look.counted(),
        )

    def _attached(self, look: Look) -> Store | None:
        instance = look.instance
        generation = instance.generation if instance is not None else -1
        if self._store is not None and generation == self._generation:
            return self._store
        self.close()
        if instance is None:
            return None
        self._generation = generation
        self._store = look.part("segments", lambda: open_store(instance, writable=False, observing=True))
        return self._store
