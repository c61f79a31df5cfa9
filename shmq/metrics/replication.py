"""Samples of a broker's slaves, or of its master, out of links.json; none of a broker that has neither."""

from __future__ import annotations

import time
from pathlib import Path

from shmq.figures.thresholds import SILENT_MS_MAX
from shmq.metrics.exposition import Samples, label_text
from shmq.shm.links import (
    ASYNCHRONOUS,
    CATCHING_UP,
    CONNECTING,
    IN_SYNC,
    LEADS,
    LOST,
    STUCK,
    UP_TO_DATE,
    ElectionState,
    read_links,
)

_PARTS = ("waiting", "following", "campaigning", "leading", "finished")
_STATES = (CONNECTING, CATCHING_UP, ASYNCHRONOUS, IN_SYNC)
_MASTER_STATES = (CONNECTING, CATCHING_UP, UP_TO_DATE, STUCK, LOST)


def read_replication(path: Path, samples: Samples) -> None:
    """Put what the replication process reports; nothing, if it has been silent for long."""
    links = read_links(path)
    if links is None or time.monotonic_ns() // 1_000_000 - links.at_ms > SILENT_MS_MAX:
        return
    samples.put("shmq_leads", int(links.standing == LEADS))
    samples.put("shmq_epoch", links.epoch)
    if links.standing_since_ms is not None:
        samples.put("shmq_standing_seconds", max(0, links.at_ms - links.standing_since_ms) / 1000)
    if links.election is not None:
        _put_election(links.election, samples)
    if links.master is None or links.replicas:
        for state in _STATES:
            count = sum(row.state == state for row in links.replicas)
            samples.put("shmq_replicas", count, label_text((("state", state),)))
    for row in links.replicas:
        if row.lag_bytes is None or row.lag_ms is None:
            continue
        labels = label_text((("replica", row.address.rpartition(":")[0]),))
        for name, value in (("shmq_replica_lag_bytes", row.lag_bytes), ("shmq_replica_lag_seconds", row.lag_ms / 1000)):
            samples.put(name, max(value, samples.value(name, labels)), labels)
    for state, rows in (("gone", links.gone), ("refused", links.refused)):
        for lost in rows:
            who = (("replica", lost.address.rpartition(":")[0]), ("state", state), ("reason", lost.reason))
            samples.put("shmq_replica_lost_seconds", max(0, links.at_ms - lost.at_ms) / 1000, label_text(who))
    if links.master is not None:
        for state in _MASTER_STATES:
            samples.put("shmq_master_state", int(links.master.state == state), label_text((("state", state),)))
        if links.master.error_ms is not None:
            age_ms, why = links.at_ms - links.master.error_ms, label_text((("reason", links.master.error),))
            samples.put("shmq_master_error_seconds", max(0, age_ms) / 1000, why)
        samples.put("shmq_master_connected", int(links.master.since_ms is not None))
        samples.put("shmq_master_lag_bytes", links.master.lag_bytes or 0)
        samples.put("shmq_master_lag_seconds", (links.master.lag_ms or 0) / 1000)


def _put_election(election: ElectionState, samples: Samples) -> None:
    for part in _PARTS:
        samples.put("shmq_election_part", int(part == election.role), label_text((("part", part),)))
    samples.put("shmq_electable_stores", len(election.in_sync.split()))
    if election.kept_ms_ago is not None:
        samples.put("shmq_lease_age_seconds", election.kept_ms_ago / 1000)
