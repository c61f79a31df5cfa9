"""Rules about other hosts: each slave of a master, and the master of a slave.

a slave that is gone, and has not come again        WARNING   for GONE_SECONDS_MAX
a slave that is refused                             WARNING   for REFUSED_SECONDS_MAX after its last try
a slave that is connected and says nothing          WARNING   after ANSWER_SECONDS
a master that is not there, or refuses              CRITICAL
a slave that cannot store what it is sent           CRITICAL
a slave behind by --behind-warn, --behind-crit      WARNING, CRITICAL   on both hosts
a leader whose lease was not renewed in time        WARNING
a broker that neither leads nor follows anybody     CRITICAL            its name has no master, as far as it sees
"""

from __future__ import annotations

from collections.abc import Iterator

from shmq.shm.links import CONNECTING, FOLLOWS, LEADS, LOST, SILENT_MS_MAX, STUCK
from shmq.tools.health.finding import Finding, Measure, Verdict, judge
from shmq.tools.health.thresholds import Thresholds
from shmq.tools.observe.snapshot import Election, LostReplica, Master, Replica, Replication, Snapshot
from shmq.tools.terminal.quantity import age_text, count_text, plural, size_text

GONE_SECONDS_MAX = 24 * 3600.0
REFUSED_SECONDS_MAX = 600.0
ANSWER_SECONDS = 5.0
LEASE_SECONDS_WARN = 3.0  # it is renewed each second
_SLOW = "the network, or the slower of the two disks, takes less than the master stores"
_FASTER = "look at both disks and the network between; what is stored on the master alone is lost with it"


def replication_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge the links to other hosts."""
    told = snapshot.replication
    if told is None or not snapshot.broker.served:
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
    """Say who leads; what is wrong with that is said of the store, and of the master."""
    what = {LEADS: f"a {told.role}: it leads", FOLLOWS: f"a slave of {told.leader or 'nobody yet'}"}.get(
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
        measures = {"lease_age": Measure(age, "s", LEASE_SECONDS_WARN)}
        if election.reason or age > LEASE_SECONDS_WARN:
            why = election.reason or "etcd has not renewed its lease: who is elected next cannot be decided meanwhile"
            return Finding("election", Verdict.WARNING, what, "", why, do, measures)
        return Finding("election", Verdict.OK, what, measures=measures)
    if election.role == "following":
        return Finding("election", Verdict.OK, f"follows the elected store {election.leader[:8]}")
    what = f"neither leads nor follows: it is {election.role}"
    return Finding("election", Verdict.CRITICAL, what, "", election.reason, do)


def _replica(replica: Replica, thresholds: Thresholds) -> Finding:
    if replica.state == CONNECTING:
        what = f"connected for {age_text(replica.age)}, and has not said where its log ends"
        is_late = replica.age >= ANSWER_SECONDS
        why = "it is no slave, or it is stopped; nothing is shipped to it, and after 20 s it is given up" * is_late
        do = "look at that host" * is_late
        return Finding("replica", Verdict.WARNING if is_late else Verdict.OK, what, replica.address, why, do)
    behind = f"{size_text(replica.lag_bytes or 0)} and {age_text((replica.lag_ms or 0) / 1000)} behind"
    what = (
        f"a {replica.kind} slave, {replica.state}, has the log up to {count_text(replica.acknowledged or 0)}, {behind}"
    )
    return _behind("replica", replica, what, replica.address, thresholds)


def _behind(check: str, link: Replica | Master, what: str, subject: str, thresholds: Thresholds) -> Finding:
    lag_bytes, lag_ms = link.lag_bytes or 0, link.lag_ms or 0
    verdict = judge(lag_bytes, thresholds.behind_warn, thresholds.behind_crit)
    measures = {
        "lag": Measure(lag_bytes, "B", thresholds.behind_warn, thresholds.behind_crit),
        "lag_seconds": Measure(lag_ms / 1000, "s"),
    }
    bad = verdict is not Verdict.OK
    return Finding(check, verdict, what, subject, _SLOW * bad, _FASTER * bad, measures)


def _lost(told: Replication) -> Iterator[Finding]:
    for lost in told.gone:
        if lost.age <= GONE_SECONDS_MAX:
            what = f"this slave is gone for {age_text(lost.age)}"
            yield _finding_lost(lost, what, "look at the slave's log for ha.master_lost; it connects again by itself")
    for lost in told.refused:
        if lost.age <= REFUSED_SECONDS_MAX:
            what = f"refused {count_text(lost.times)} times, {age_text(lost.age)} ago for the last time"
            yield _finding_lost(lost, what, "look at that host")


def _finding_lost(lost: LostReplica, what: str, do: str) -> Finding:
    return Finding("replica", Verdict.WARNING, what, lost.address, lost.reason, lost.cure or do)


def _master(master: Master, thresholds: Thresholds) -> Finding:
    heard = "it was never heard of" if master.heard_age is None else f"heard of {age_text(master.heard_age)} ago"
    if master.state == CONNECTING:
        return Finding("master", Verdict.OK, f"connecting to {master.address}", master.address)
    if master.state == LOST:
        what = f"this slave does not follow its master {master.address}: {heard}"
        do = master.cure or "look for ha.master_lost in this broker's log"
        return Finding("master", Verdict.CRITICAL, what, master.address, master.error, do)
    if master.state == STUCK:
        what = f"this slave cannot store what its master {master.address} ships"
        return Finding("master", Verdict.CRITICAL, what, master.address, master.error, master.cure)
    behind = f"{size_text(master.lag_bytes or 0)} and {age_text((master.lag_ms or 0) / 1000)} behind"
    since = age_text(master.age) if master.age is not None else "a moment"
    what = f"follows {master.address}, a {master.kind} broker, for {since}: {master.state}, {behind}"
    return _behind("master", master, what, master.address, thresholds)
