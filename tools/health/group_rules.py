"""Rules for consumer groups: members, subscriptions, lag, and members that do not read.

A member of this host counts what it settles, one word beside what it received. So nothing in hand and no poll is a
member that does not read, and something in hand is a handler at work. A group without members is no trouble while
nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from shmq.figures.processes import STOPPED, bridge_runs
from shmq.figures.quantity import age_text, count_text, plural
from shmq.figures.snapshot import Client, Group, QueueProgress, Refusal, Snapshot
from shmq.figures.thresholds import LOSSES_TOLD_SECONDS, Thresholds
from shmq.figures.verdict import Finding, Measure, Verdict, judge, worst_of

_SHOWN_MAX = 4


def group_findings(snapshot: Snapshot, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge every group, and clients that were refused as members."""
    yield from map(_refused, snapshot.refused)
    for group in snapshot.groups:
        yield from one_group(snapshot, group, thresholds)


def one_group(snapshot: Snapshot, group: Group, thresholds: Thresholds) -> Iterator[Finding]:
    """Judge one group."""
    bad = [
        *_conflict(group),
        *_lost(group),
        *_departed(snapshot, group, thresholds),
        *_silent(snapshot, group, thresholds),
        *_stalled(group, thresholds),
    ]
    yield from bad
    yield _progress(group, thresholds)


def waiting(group: Group) -> int:
    """Return how many messages wait for the group: those its subscription selects, all of them where it is unknown."""
    return group.lag - group.in_flight if group.ready is None else group.ready


def _ready(row: QueueProgress) -> int:
    return row.lag - row.in_flight if row.ready is None else row.ready


def _progress(group: Group, thresholds: Thresholds) -> Finding:
    ready = waiting(group)
    by_count = judge(ready, thresholds.lag_warn, thresholds.lag_crit)
    age = group.oldest or 0.0
    by_age = judge(age, thresholds.age_warn, thresholds.age_crit) if ready else Verdict.OK
    verdict = worst_of((by_count, by_age))
    shown = "" if group.ready is None else f"ready {'' if group.ready_exact else '≤ '}{count_text(group.ready)}, "
    shown += f"in flight {count_text(group.in_flight)}, " if group.in_flight else ""
    oldest = f", oldest {age_text(age)}" if ready and group.oldest is not None else ""
    what = f"lag {count_text(group.lag)}, {shown}{plural(len(group.members), 'member')}{oldest}"
    measures = {
        "lag": Measure(group.lag),
        "ready": Measure(ready, "", thresholds.lag_warn, thresholds.lag_crit),
        **(
            {}
            if group.oldest is None
            else {"oldest": Measure(round(age, 3), "s", thresholds.age_warn, thresholds.age_crit)}
        ),
    }
    if verdict is Verdict.OK:
        return Finding("group", verdict, what, group.name, measures=measures)
    if not group.members:
        why, do = "this group has no members", f"start its consumers, or forget it: shmq group delete {group.name}"
    else:
        why, do = "its members are slower than the producers", "start more members, or make the handler faster"
    bound = thresholds.lag_crit if by_count is Verdict.CRITICAL else thresholds.lag_warn
    what += f" (bound {count_text(bound)})" if by_count is verdict and bound is not None else ""
    return Finding("group", verdict, what, group.name, why, do, measures)


def _refused(refusal: Refusal) -> Finding:
    """A stock client says nothing about this, and consumes nothing."""
    what = f"member {refusal.client_id} ({refusal.address}) gets nothing: {refusal.reason}"
    why = "the broker cannot serve what it subscribes to, and RocketMQ's clients go on without a word"
    do = "correct its subscription; its own log has what its heartbeat was answered"
    return Finding("group", Verdict.WARNING, what, refusal.group, why, do)


def _conflict(group: Group) -> Iterator[Finding]:
    if group.differs is None:
        return
    topics = sorted({topic for member in group.members for topic in member.subscription})
    lines = []
    for member in group.members[:_SHOWN_MAX]:
        text = "; ".join(f"{topic}: {member.subscription.get(topic, '(not read)')}" for topic in topics)
        lines.append(f"{member.client_id} ({member.transport}) {text}")
    more = f" and {len(group.members) - _SHOWN_MAX} more" if len(group.members) > _SHOWN_MAX else ""
    what = f"members have subscribed differently for {age_text(group.differs)}: {' | '.join(lines)}{more}"
    why = "a queue is read by one member, and what that one did not subscribe to is skipped for the whole group"
    do = f"give every member the same subscription, or another group name; see: shmq group show {group.name}"
    yield Finding(
        "group", Verdict.WARNING, what, group.name, why, do, {"differs": Measure(round(group.differs, 3), "s")}
    )


def _lost(group: Group) -> Iterator[Finding]:
    """Messages that were deleted before the group had acknowledged them: for a day, or until it has gone on."""
    rows = [row for row in group.queues if row.lost and (row.lost_age is None or row.lost_age < LOSSES_TOLD_SECONDS)]
    if not rows:
        return
    total = sum(row.lost for row in rows)
    places = ", ".join(f"{count_text(row.lost)} of {row.topic}/{row.queue_id}" for row in rows[:_SHOWN_MAX])
    more = f" and {len(rows) - _SHOWN_MAX} more queues" if len(rows) > _SHOWN_MAX else ""
    ages = [row.lost_age for row in rows if row.lost_age is not None]
    since = f" {age_text(min(ages))} ago" if ages else ""
    what = f"group {group.name} lost {plural(total, 'message')} to cleaning{since}: {places}{more}"
    why = "they expired, or the disk was full, before the group had acknowledged them; its lag does not count them"
    do = "raise --retention-hours, make room, or start the broker with --when-full delete-consumed or refuse"
    yield Finding("group", Verdict.WARNING, what, group.name, why, do, {"lost": Measure(total)})


def _departed(snapshot: Snapshot, group: Group, thresholds: Thresholds) -> Iterator[Finding]:
    """Members that ended without leaving: while messages wait without a member, or for a short time."""
    # A bridge that runs takes a dead member out of its groups as soon as the kernel tells it: within a moment, or two.
    dead = [member for member in group.members if not member.alive and not bridge_runs(snapshot)]
    for member in dead:
        what = f"member {member.client_id} (pid {member.pid}) is dead"
        why = "its queues get no new owner while the bridge does not run"
        yield Finding("group", Verdict.WARNING, what, group.name, why, "start the broker again, then the consumer")
    if not group.departed:
        return
    last = min(group.departed, key=lambda entry: entry.age)
    is_abandoned = not group.members and waiting(group) > 0
    if not is_abandoned and last.age >= thresholds.gone_warn:
        return
    who = f"pid {last.pid}" if last.pid else last.transport
    left = f"{plural(len(group.members), 'other member')} there" if group.members else "no member is left"
    what = (
        f"member {last.client_id} ({who}) ended {age_text(last.age)} ago without leaving the group; "
        f"{left}, {count_text(waiting(group))} messages wait"
    )
    why = "it was killed, crashed, or lost its connection"
    do = "start the consumer again; its log, `dmesg` (out of memory?) and `coredumpctl` say why it ended"
    yield Finding("group", Verdict.WARNING, what, group.name, why, do, {"gone": Measure(round(last.age, 3), "s")})


def _silent(snapshot: Snapshot, group: Group, thresholds: Thresholds) -> Iterator[Finding]:
    """Members that own queues with ready messages and do not take them."""
    states = {process.pid: process.state for process in snapshot.processes}
    owned: dict[int, list[int]] = {}
    for index, row in enumerate(group.queues):
        if row.owner_pid is not None and _ready(row):
            owned.setdefault(row.owner_pid, []).append(index)
    for pid, rows in sorted(owned.items()):
        clients = [entry for entry in snapshot.clients if entry.pid == pid and group.name in entry.consumer_groups]
        if not clients or states.get(pid) in STOPPED:
            continue  # a stopped process has a finding of its own
        client = min(clients, key=lambda entry: entry.idle or 0.0)
        moved = [idle for index in rows if (idle := group.queues[index].idle) is not None]
        silent = min([client.idle or 0.0, group.oldest or 0.0, *moved])
        yield from _judge_silence(group, client, silent, sum(group.queues[index].lag for index in rows), thresholds)


def _stalled(group: Group, thresholds: Thresholds) -> Iterator[Finding]:
    """Members over TCP say nothing of what they have in hand; that the group's offsets stand still is all there is."""
    rows = [row for row in group.queues if row.owner_pid is None and _ready(row)]
    if not rows or not any(member.transport == "tcp" for member in group.members):
        return
    still = min([group.oldest or 0.0, *(row.idle for row in rows if row.idle is not None)])
    verdict = judge(still, thresholds.stuck_warn, thresholds.stuck_crit)
    if verdict is not Verdict.OK:
        names = ", ".join(member.client_id for member in group.members[:_SHOWN_MAX])
        lag = count_text(sum(row.lag for row in rows))
        what = f"no progress for {age_text(still)}, {lag} messages wait for {names}"
        why = "the members over TCP do not ask, or do not acknowledge"
        do = "mqadmin consumerStatus -g GROUP -s prints where their threads are; look at their logs"
        measures = {"silent": Measure(round(still, 3), "s", thresholds.stuck_warn, thresholds.stuck_crit)}
        yield Finding("group", verdict, what, group.name, why, do.replace("GROUP", group.name), measures)


def _judge_silence(group: Group, client: Client, silent: float, lag: int, thresholds: Thresholds) -> Iterator[Finding]:
    measures = {"silent": Measure(round(silent, 3), "s", thresholds.idle_warn, thresholds.stuck_crit)}
    name = f"member {client.client_id} (pid {client.pid})"
    if client.in_hand:
        verdict = judge(silent, thresholds.stuck_warn, thresholds.stuck_crit)
        what = f"{name} has had {plural(client.in_hand, 'message')} in hand for {age_text(silent)} without a result"
        why = "its handler runs, waits for something, or has forgotten to acknowledge"
        do = f"look where it is: py-spy dump --pid {client.pid}"
    else:
        verdict = judge(silent, thresholds.idle_warn, thresholds.stuck_crit)
        what = (
            f"{name} is attached but has not read for {age_text(silent)}, {count_text(lag)} messages wait in its queues"
        )
        why = "it asks for no messages: its loop has ended, or does something else"
        do = f"close the consumer so that others take over, or see what it does: py-spy dump --pid {client.pid}"
    if verdict is not Verdict.OK:
        yield Finding("group", verdict, what, group.name, why, do, measures)
