"""`shmq check`: one object against thresholds, for monitoring that watches objects one by one.

The rules are those of `shmq health`, applied to one object.

An object that does not exist is CRITICAL: a check that passed because nothing is there would watch nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import click

from shmq.errors import ShmqError
from shmq.figures.broker_rules import broker_findings
from shmq.figures.observer import Depth, Observer
from shmq.figures.progress import newest_ms
from shmq.figures.quantity import age_text, count_text, size_text
from shmq.figures.snapshot import Process, Snapshot, Topic
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Measure, Verdict, judge, worst_of
from shmq.message import PERM_WRITE, nearest
from shmq.tools.command import Call, Duration, Group, Size, pass_call
from shmq.tools.completion import complete_group, complete_topic
from shmq.tools.health.examine import wait_until_well
from shmq.tools.health.group_rules import one_group
from shmq.tools.health.health_command import (
    LAG_OPTIONS,
    MEMORY_OPTIONS,
    STORE_OPTIONS,
    Decorator,
    emit,
    format_option,
    observer_of,
    threshold_options,
    thresholds_of,
    wait_option,
)
from shmq.tools.health.report import Report
from shmq.tools.health.room_rules import room_findings

check = Group(
    "check",
    help="Check one object against thresholds: topic, group, store, process, memory.",
    epilog="Exit status: 0 OK, 1 WARNING, 2 CRITICAL (also: no such object), 3 UNKNOWN; 64 usage.",
)

Rules = Callable[[Snapshot, Observer], Iterable[Finding]]


_MEMBER_OPTIONS = (("--members-crit", click.IntRange(1), "Fewer members than this."),)
_TOPIC_OPTIONS = (
    ("--quiet-warn", Duration(), "Nothing was sent for so long."),
    ("--quiet-crit", Duration(), ""),
    ("--messages-warn", click.IntRange(0), "Messages stored."),
    ("--messages-crit", click.IntRange(0), ""),
    ("--size-warn", Size(), "Bytes of all its records since the topic was made."),
    ("--size-crit", Size(), ""),
)
_PROCESS_OPTIONS = (
    ("--rss-warn", Size(), "Resident memory of one process."),
    ("--rss-crit", Size(), ""),
    ("--fds-warn", click.IntRange(0), "Open descriptors of one process."),
    ("--fds-crit", click.IntRange(0), ""),
)


def _checked(*tables: tuple[tuple[str, Any, str], ...], depth: Depth = "usual") -> Decorator:
    """Make a check of a function that returns its rules: how it is asked and answered is the same for all of them."""

    def decorate(rules_of: Callable[..., Rules]) -> Callable[..., Any]:
        @format_option
        @wait_option
        @threshold_options(*tables)
        @pass_call
        @wraps(rules_of)
        def command(call: Call, /, form: str | None, wait: float | None, **given: Any) -> int:
            rules = rules_of(**given)
            with observer_of(call) as observer:

                def look() -> Report:
                    snapshot = observer.snapshot(depth)
                    unreadable = [each for each in broker_findings(snapshot, Thresholds()) if snapshot.log is None]
                    return Report(snapshot, unreadable or list(rules(snapshot, observer)))

                report = wait_until_well(look, wait or 0.0)
            return emit(call, report, form, parts=False)

        return command

    return decorate


def _missing(kind: str, name: str, names: Iterable[str]) -> Finding:
    near = nearest(name, list(names), count_max=1)
    do = f'did you mean "{near[0]}"? see: shmq {kind} list' if near else f"shmq {kind} create {name}"
    what = f'{kind} "{name}" does not exist'
    return Finding(kind, Verdict.CRITICAL, what, name, "it was deleted, or never made", do)


@check.command("group")
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@_checked(_MEMBER_OPTIONS, LAG_OPTIONS)
def group_(name: str, members_crit: int | None, **given: Any) -> Rules:
    """Check a consumer group: lag, members, subscriptions, who does not read."""
    thresholds = thresholds_of(given)

    def rules(snapshot: Snapshot, _: Observer) -> Iterator[Finding]:
        group = snapshot.group(name)
        if group is None:
            yield _missing("group", name, [known.name for known in snapshot.groups])
            return
        yield from one_group(snapshot, group, thresholds)
        if members_crit is not None and len(group.members) < members_crit:
            what = f"{len(group.members)} members, fewer than {members_crit}"
            do = f"start its consumers; shmq group show {name}"
            measures = {"members": Measure(len(group.members), crit=members_crit)}
            yield Finding("group", Verdict.CRITICAL, what, name, "they ended, or were not started", do, measures)

    return rules


@check.command("topic")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@_checked(_TOPIC_OPTIONS)
def topic_(name: str, **given: Any) -> Rules:
    """Check a topic: is it there, may it be written, does anything arrive."""

    def rules(snapshot: Snapshot, observer: Observer) -> Iterator[Finding]:
        topic = snapshot.topic(name)
        if topic is None:
            yield _missing("topic", name, [known.name for known in snapshot.topics])
        else:
            yield from _topic(topic, _quiet_seconds(observer, name), given)

    return rules


def _quiet_seconds(observer: Observer, name: str) -> float | None:
    store = observer.store
    if store is None:
        return None
    try:
        stored_ms = newest_ms(store, name)
    except ShmqError:
        return None
    return None if stored_ms is None else max(0.0, time.time() - stored_ms / 1000)


def _topic(topic: Topic, quiet: float | None, given: dict[str, Any]) -> Iterator[Finding]:
    last = "nothing was ever stored" if quiet is None else f"last message {age_text(quiet)} ago"
    facts = f"{count_text(topic.messages)} messages, {size_text(topic.size_bytes)}, {topic.queues} queues, {last}"
    figures = {"messages": topic.messages, "size": topic.size_bytes, **({} if quiet is None else {"quiet": quiet})}
    units = {"messages": "", "size": "B", "quiet": "s"}
    causes = {
        "messages": ("more comes in than retention takes away", f"shmq topic show {topic.name}"),
        "size": ("it takes more of the log than was meant", f"shmq topic show {topic.name}"),
        "quiet": ("its producers have stopped, or cannot send", "shmq health; look at the producers' logs"),
    }
    measures = {
        name: Measure(round(value, 3), units[name], given[f"{name}_warn"], given[f"{name}_crit"])
        for name, value in figures.items()
    }
    is_bad = False
    for name, one in measures.items():
        verdict = judge(one.value, one.warn, one.crit)
        if verdict is not Verdict.OK:
            is_bad = True
            yield Finding("topic", verdict, f"{name}: {facts}", topic.name, *causes[name], measures)
    if not topic.perm & PERM_WRITE:
        do = f"shmq topic update {topic.name} --permission rw"
        yield Finding(
            "topic", Verdict.WARNING, f"it takes no messages (perm {topic.perm})", topic.name, "its permission", do
        )
    elif not is_bad:
        yield Finding("topic", Verdict.OK, facts, topic.name, measures=measures)


@check.command()
@_checked(STORE_OPTIONS, depth="quick")
def store(**given: Any) -> Rules:
    """Check the store: writable, flushed, disk, log space, append lock, last recovery."""
    thresholds = thresholds_of(given)
    wanted = {"store", "log", "disk", "lock", "claim", "recovery", "scrub"}

    def rules(snapshot: Snapshot, _: Observer) -> Iterator[Finding]:
        for finding in (*broker_findings(snapshot, thresholds), *room_findings(snapshot, thresholds)):
            if finding.check in wanted or finding.subject == "keeper":
                yield finding

    return rules


@check.command()
@_checked(MEMORY_OPTIONS, depth="quick")
def memory(**given: Any) -> Rules:
    """Check shared memory: /dev/shm, control group, owner and mode of segments, what dead brokers left."""
    thresholds = thresholds_of(given)

    def rules(snapshot: Snapshot, _: Observer) -> Iterator[Finding]:
        for finding in room_findings(snapshot, thresholds):
            if finding.check in ("memory", "segments"):
                yield finding

    return rules


@check.command()
@click.argument("name", metavar="[ROLE|PID|CLIENT]", required=False)
@_checked(_PROCESS_OPTIONS)
def process(name: str | None, **given: Any) -> Rules:
    """Check the processes that take part: all of them, or one by role, pid or client id."""

    def rules(snapshot: Snapshot, _: Observer) -> Iterator[Finding]:
        chosen = [one for one in snapshot.processes if name is None or _is_named(one, name)]
        if not chosen:
            yield _missing("process", name or "", [one.role for one in snapshot.processes])
        judged = [*broker_findings(snapshot, Thresholds()), *room_findings(snapshot, Thresholds())]
        subjects = {one.role for one in chosen} | {text for one in chosen for text in (*one.client_ids, str(one.pid))}
        for finding in judged:
            if finding.check in ("daemon", "process") and (name is None or finding.subject in subjects):
                yield finding
        for one in chosen:
            yield from _process(one, given)

    return rules


def _is_named(one: Process, name: str) -> bool:
    return name in (one.role, str(one.pid), *one.client_ids)


def _process(one: Process, given: dict[str, Any]) -> Iterator[Finding]:
    if not one.alive:
        return
    figures = {"rss": (one.rss_bytes, "B", size_text), "fds": (one.fds, "", count_text)}
    facts = f"pid {one.pid} {one.state}, {size_text(one.rss_bytes or 0)}, {one.fds} descriptors, {one.threads} threads"
    label = one.role if one.role != "client" else (one.client_ids or (str(one.pid),))[0]
    measures = {
        name: Measure(value, unit, given[f"{name}_warn"], given[f"{name}_crit"])
        for name, (value, unit, _) in figures.items()
        if value is not None
    }
    verdict = worst_of(judge(two.value, two.warn, two.crit) for two in measures.values())
    why, do = (
        ("", "")
        if verdict is Verdict.OK
        else ("it uses more than the bound", f"shmq health --deep; ls -l /proc/{one.pid}/fd")
    )
    yield Finding("process", verdict, facts, label, why, do, measures)
