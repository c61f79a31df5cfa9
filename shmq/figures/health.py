"""Health as an attached process sees it: `mq.admin.health()`, on the host and over TCP.

    its host     a client judges the segments that it maps, and the files of runtime directory and store
    over TCP     each bridge does the same and tells its clients what is not OK

The rules and their thresholds are those of `shmq health`, and so is every finding, word for word. That command alone
judges what takes a look at the host or at time: shared memory and segments of other brokers, control group, attached
processes, the append lock and the claim, groups and certificates.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shmq.figures.broker_rules import broker_findings, store_findings
from shmq.figures.look import Look
from shmq.figures.snapshot import Presence, Snapshot
from shmq.figures.thresholds import Thresholds

if TYPE_CHECKING:
    from shmq.figures.verdict import Finding
    from shmq.shm.core import Store
    from shmq.shm.place import Place


def attached_findings(place: Place, store: Store) -> list[Finding]:
    """Judge the broker of a place whose segments a store maps."""
    look, thresholds = Look(place), Thresholds()
    snapshot = Snapshot(
        at=time.time(),
        broker=look.broker(store),
        processes=look.processes((), "quick"),
        presence=Presence(None, 0),
        segments=(),
        memory=None,
        log=look.log(store, "quick"),
        lock=None,
        claim=None,
        disk=look.disk(),
        clients=(),
        topics=(),
        groups=(),
        recovery=look.recovery(),
        scrub=look.scrub(),
        replication=look.replication(),
        counted=look.counted(),
        faults=tuple(look.faults),
    )
    return [*broker_findings(snapshot, thresholds), *store_findings(snapshot, thresholds)]
