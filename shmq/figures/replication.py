"""The other hosts of a broker, as links.json has them, with ages in place of times."""

from __future__ import annotations

import time
from pathlib import Path

from shmq.figures.quantity import age_text
from shmq.figures.snapshot import Election, LostReplica, Master, Replica, Replication
from shmq.shm.links import ElectionState, LostLink, MasterLink, ReplicaLink, read_links


def collect_replication(path: Path) -> Replication | None:
    """Return the state of slaves and master; None of a broker that has neither."""
    links = read_links(path)
    if links is None:
        return None
    now_ms = time.monotonic_ns() // 1_000_000
    return Replication(
        role=links.role,
        age=_age(links.at_ms, now_ms),
        replicas=tuple(_replica(row, now_ms) for row in links.replicas),
        gone=tuple(_lost(row, now_ms) for row in links.gone),
        refused=tuple(_lost(row, now_ms) for row in links.refused),
        master=None if links.master is None else _master(links.master, now_ms),
        epoch=links.epoch,
        standing=links.standing,
        leader=links.leader,
        election=None if links.election is None else _election(links.election),
        standing_age=_age_if(links.standing_since_ms, now_ms),
    )


def election_text(election: Election) -> str:
    """Say this broker's part, how fresh a leader's lease is, and which stores can be elected."""
    text = f"elected over etcd: this broker is {election.role}"
    if election.role == "leading":
        text += f" ({election.why}), its lease was renewed {age_text(election.lease_age or 0.0)} ago"
    elif election.reason:
        text += f": {election.reason}"
    stores = [store[:8] + " (here)" * (store == election.store) for store in election.in_sync]
    return f"{text}; in sync: {', '.join(stores) or 'none'}"


def _election(row: ElectionState) -> Election:
    kept = None if row.kept_ms_ago is None else row.kept_ms_ago / 1000
    return Election(row.role, row.store, row.leader, tuple(row.in_sync.split()), kept, row.reason, row.why)


def _age(at_ms: int, now_ms: int) -> float:
    return max(0, now_ms - at_ms) / 1000


def _age_if(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else _age(at_ms, now_ms)


def _replica(row: ReplicaLink, now_ms: int) -> Replica:
    return Replica(
        row.address,
        row.kind,
        row.state,
        _age(row.since_ms, now_ms),
        row.acknowledged,
        row.flushed,
        row.lag_bytes,
        row.lag_ms,
        row.store,
    )


def _lost(row: LostLink, now_ms: int) -> LostReplica:
    return LostReplica(row.address, row.reason, row.cure, _age(row.at_ms, now_ms), row.times)


def _master(row: MasterLink, now_ms: int) -> Master:
    return Master(
        row.address,
        row.kind,
        row.state,
        _age_if(row.since_ms, now_ms),
        _age_if(row.heard_ms, now_ms),
        row.lag_bytes,
        row.lag_ms,
        row.error,
        row.cure,
        _age_if(row.error_ms, now_ms),
    )
