"""Rules about other hosts: each slave of a master, and the master of a slave.

a slave that is gone, and has not come again        WARNING   for a day
a slave that is refused                             WARNING   for ten minutes after its last try
a slave that is connected and says nothing          WARNING
a master that is not there, refuses, says nothing   CRITICAL
a slave that cannot store what it is sent           CRITICAL
a slave behind by --behind-warn, --behind-crit      WARNING, CRITICAL   on both hosts
a link that lags, or stands and says nothing        WARNING             on both hosts (`shmq.shm.links`)
a slave of whose master nothing is known            UNKNOWN
a leader whose lease was not renewed in time        WARNING
a broker that neither leads nor follows anybody     CRITICAL            its name has no master, as far as it sees
"""

from __future__ import annotations

from collections.abc import Iterator

from shmq.shm.links import (
    CONNECTING,
    FOLLOWS,
    LEADS,
    LOST,
    SILENT_MS_MAX,
    SLOW,
    STUCK,
    LinkFault,
    fault_of_lost,
    fault_of_master,
    fault_of_replica,
)
from shmq.tools.health.finding import Finding, Measure, Verdict, judge
from shmq.tools.health.thresholds import Thresholds
from shmq.tools.observe.snapshot import Election, Master, Replica, Replication, Snapshot
from shmq.tools.terminal.quantity import age_text, count_text, plural, size_text

LEASE_SECONDS_WARN = 3.0  # it is renewed each second


def replication_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge the links to other hosts."""
    told = snapshot.replication
    if not snapshot.broker.served:
        return
    if told is None:
        what = "nothing is known of this slave's master"
        why = "its replication process has told nothing, or its runtime directory takes no file"
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
    lag_seconds = (replica.lag_ms or 0) / 1000
    fault = fault_of_replica(replica.state, age=replica.age, lag_seconds=lag_seconds)
    if replica.state == CONNECTING:
        what = f"connected for {age_text(replica.age)}, and has not said where its log ends"
    else:
        behind = f"{size_text(replica.lag_bytes or 0)} and {age_text(lag_seconds)} behind"
        end = count_text(replica.acknowledged or 0)
        what = f"a {replica.kind} slave, {replica.state}, has the log up to {end}, {behind}"
    return _judged("replica", replica, what, fault, thresholds)


def _judged(check: str, link: Replica | Master, what: str, fault: LinkFault | None, thresholds: Thresholds) -> Finding:
    """A link with its fault, or what its lag in bytes alone means."""
    lag_bytes, lag_ms = link.lag_bytes or 0, link.lag_ms or 0
    verdict = judge(lag_bytes, thresholds.behind_warn, thresholds.behind_crit)
    measures = {}
    if link.lag_bytes is not None:
        measures["lag"] = Measure(lag_bytes, "B", thresholds.behind_warn, thresholds.behind_crit)
        measures["lag_seconds"] = Measure(lag_ms / 1000, "s")
    if fault is not None:
        worse = Verdict.CRITICAL if fault.is_critical else Verdict.WARNING
        return Finding(check, max(verdict, worse), what, link.address, fault.why, fault.do, measures)
    bad = verdict is not Verdict.OK
    return Finding(check, verdict, what, link.address, SLOW.why * bad, SLOW.do * bad, measures)


def _lost(told: Replication) -> Iterator[Finding]:
    for lost, is_refused in [(row, False) for row in told.gone] + [(row, True) for row in told.refused]:
        fault = fault_of_lost(is_refused=is_refused, age=lost.age, reason=lost.reason, cure=lost.cure)
        if fault is None:
            continue
        what = f"this slave is gone for {age_text(lost.age)}"
        if is_refused:
            what = f"refused {count_text(lost.times)} times, {age_text(lost.age)} ago for the last time"
        yield Finding("replica", Verdict.WARNING, what, lost.address, fault.why, fault.do)


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
    fault = fault_of_master(
        master.state,
        age=master.age,
        heard_age=master.heard_age,
        lag_seconds=(master.lag_ms or 0) / 1000,
        error=master.error,
        cure=master.cure,
        error_age=master.error_age,
    )
    return _judged("master", master, what, fault, thresholds)
