"""Rules about other hosts: each slave of a master, and the master of a slave.

a slave that is gone, and has not come again        WARNING   for a day
a slave that is refused                             WARNING   for ten minutes after its last try
a slave that is connected and says nothing          WARNING
a master that is not there, refuses, says nothing   CRITICAL
a slave that cannot store what it is sent           CRITICAL
a slave behind by --behind-warn, --behind-crit      WARNING, CRITICAL   on both hosts
a link that lags, or stands and says nothing        WARNING             on both hosts (`shmq.figures.thresholds`)
a slave of whose master nothing is known            UNKNOWN
a leader whose lease was not renewed in time        WARNING
a broker that neither leads nor follows             CRITICAL            its name has no master, as far as it sees
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shmq.figures.quantity import age_text, count_text, plural, size_text
from shmq.figures.snapshot import Election, LostReplica, Master, Replica, Replication, Snapshot
from shmq.figures.thresholds import (
    ANSWER_SECONDS,
    HEARD_SECONDS,
    LEASE_WARN_SECONDS,
    LINK_ERROR_SECONDS,
    LINK_LAG_SECONDS,
    REPLICA_GONE_TOLD_SECONDS,
    REPLICA_REFUSED_TOLD_SECONDS,
    SILENT_MS_MAX,
    Thresholds,
)
from shmq.figures.verdict import Finding, Measure, Verdict, judge, worst_of
from shmq.shm.links import CONNECTING, FOLLOWS, LEADS, LOST, STUCK


class _LinkFault(NamedTuple):
    verdict: Verdict
    why: str
    do: str


_SLOW = _LinkFault(
    Verdict.WARNING,
    "the network, or the slower of the two disks, takes less than the master stores; or that host takes nothing",
    "see shmq health on both hosts, and the network between; what is stored on the master alone is lost with it",
)


def replication_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge the links to other hosts."""
    told = snapshot.replication
    if not snapshot.broker.served:
        return
    if told is None:
        what = "nothing is known of this slave's master"
        why = "its replication process has reported nothing, or its runtime directory takes no file"
        yield Finding(
            "master", Verdict.UNKNOWN, what, why=why, do="look for ha.failed and ha.not_told in the broker's log"
        )
        return
    if told.age * 1000 > SILENT_MS_MAX:
        what = f"the replication process has said nothing of other hosts for {age_text(told.age)}"
        why = "it is stopped, gets no processor time, or its runtime directory takes no file"
        do = "look for ha.not_told in the broker's log, and at the process: shmq top"
        yield Finding("replication", Verdict.UNKNOWN, what, why=why, do=do)
        return
    yield _role(told)
    if told.election is not None:
        yield _election(told.election)
    for replica in told.replicas:
        yield _replica(replica, thresholds)
    yield from _lost(told)
    if told.master is not None:
        yield _master(told.master, thresholds)


def _role(told: Replication) -> Finding:
    """Name the leader; what is wrong with that is said of the store, and of the master."""
    what = {LEADS: f"a {told.role}: it leads", FOLLOWS: f"a slave of {told.leader or 'no master yet'}"}.get(
        told.standing, f"it leads no more; {told.leader or 'who does is not known here'}" + " leads" * bool(told.leader)
    )
    measures = {"epoch": Measure(told.epoch)}
    since = ""
    if told.standing_age is not None:
        measures["standing_age"] = Measure(told.standing_age, "s")
        since = f" for {age_text(told.standing_age)}"
    return Finding("role", Verdict.OK, f"{what}, epoch {told.epoch}{since}", measures=measures)


def _election(election: Election) -> Finding:
    """Say what this broker's part in the election is, and what it lacks."""
    do = "look whether etcd answers at the addresses of --etcd, and at ha.* in the log of each broker of this name"
    if election.role == "leading":
        age = election.lease_age or 0.0
        in_sync = plural(len(election.in_sync), "store")
        what = f"leads ({election.why}), {in_sync} in sync, lease renewed {age_text(age)} ago"
        measures = {"lease_age": Measure(age, "s", LEASE_WARN_SECONDS)}
        if election.reason or age > LEASE_WARN_SECONDS:
            why = election.reason or "etcd has not renewed its lease: who is elected next cannot be decided meanwhile"
            return Finding("election", Verdict.WARNING, what, "", why, do, measures)
        return Finding("election", Verdict.OK, what, measures=measures)
    if election.role == "following":
        return Finding("election", Verdict.OK, f"follows the elected store {election.leader[:8]}")
    what = f"neither leads nor follows: it is {election.role}"
    return Finding("election", Verdict.CRITICAL, what, "", election.reason, do)


def _replica(replica: Replica, thresholds: Thresholds) -> Finding:
    lag_seconds = (replica.lag_ms or 0) / 1000
    fault = _SLOW if lag_seconds >= LINK_LAG_SECONDS else None
    if replica.state == CONNECTING:
        what = f"connected for {age_text(replica.age)}, and has not said where its log ends"
        why = "it is no slave, or it is stopped; nothing is shipped to it, and after 20 s it is given up"
        is_late = replica.age >= ANSWER_SECONDS
        fault = _LinkFault(Verdict.WARNING, why, "look at that host") if is_late else None
    else:
        behind = f"{size_text(replica.lag_bytes or 0)} and {age_text(lag_seconds)} behind"
        end = count_text(replica.acknowledged or 0)
        what = f"a {replica.kind} slave, {replica.state}, has the log up to {end}, {behind}"
    return _judged("replica", replica, what, fault, thresholds)


def _judged(check: str, link: Replica | Master, what: str, fault: _LinkFault | None, thresholds: Thresholds) -> Finding:
    """A link with its fault, or what its lag in bytes alone means."""
    lag_bytes, lag_ms = link.lag_bytes or 0, link.lag_ms or 0
    verdict = judge(lag_bytes, thresholds.behind_warn, thresholds.behind_crit)
    measures = {}
    if link.lag_bytes is not None:
        measures["lag"] = Measure(lag_bytes, "B", thresholds.behind_warn, thresholds.behind_crit)
        measures["lag_seconds"] = Measure(lag_ms / 1000, "s")
    if fault is None and verdict is not Verdict.OK:
        fault = _SLOW
    if fault is None:
        return Finding(check, verdict, what, link.address, measures=measures)
    return Finding(check, worst_of((verdict, fault.verdict)), what, link.address, fault.why, fault.do, measures)


def _lost(told: Replication) -> Iterator[Finding]:
    for lost in told.gone:
        if lost.age <= REPLICA_GONE_TOLD_SECONDS:
            do = "look at the slave's log for ha.master_lost; it connects again by itself"
            yield _lost_replica(lost, f"this slave is gone for {age_text(lost.age)}", do)
    for lost in told.refused:
        if lost.age <= REPLICA_REFUSED_TOLD_SECONDS:
            what = f"refused {count_text(lost.times)} times, {age_text(lost.age)} ago for the last time"
            yield _lost_replica(lost, what, "look at that host")


def _lost_replica(lost: LostReplica, what: str, do: str) -> Finding:
    return Finding("replica", Verdict.WARNING, what, lost.address, lost.reason, lost.cure or do)


def _master(master: Master, thresholds: Thresholds) -> Finding:
    heard = "it was never heard of" if master.heard_age is None else f"heard of {age_text(master.heard_age)} ago"
    behind = f"{size_text(master.lag_bytes or 0)} and {age_text((master.lag_ms or 0) / 1000)} behind"
    if master.state == CONNECTING:
        what = f"connecting to {master.address}"
    elif master.state == LOST:
        what = f"this slave does not follow its master {master.address}: {heard}"
    elif master.state == STUCK:
        what = f"this slave cannot store what its master {master.address} ships"
    else:
        since = age_text(master.age) if master.age is not None else "a moment"
        what = f"follows {master.address}, a {master.kind} broker, for {since}: {master.state}, {behind}"
    return _judged("master", master, what, _fault_of(master), thresholds)


def _fault_of(master: Master) -> _LinkFault | None:
    do = master.cure or "look for ha.master_lost in this broker's log"
    if master.state in (LOST, STUCK):
        return _LinkFault(Verdict.CRITICAL, master.error, do)
    if master.age is not None and master.heard_age is not None and master.heard_age >= HEARD_SECONDS:
        heard = f"{master.heard_age:.0f} s"
        why = f"the connection stands, and nothing has come over it for {heard}: this slave copies nothing"
        do = "look at the replication process on the master's host (shmq top), and the network"
        return _LinkFault(Verdict.WARNING, why, do)
    is_new = master.age is not None and master.error_age is not None and master.error_age < master.age
    if is_new and (master.error_age or 0.0) < LINK_ERROR_SECONDS:
        return _LinkFault(Verdict.WARNING, master.error, do)
    return _SLOW if (master.lag_ms or 0) / 1000 >= LINK_LAG_SECONDS else None
