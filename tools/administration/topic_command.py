"""`shmq topic`: list, show, create, update, delete.

Figures are read from the broker's memory without asking it; every change is a request, so the broker decides.
"""

from __future__ import annotations

import time
from typing import Any

import click

from shmq.errors import UsageError
from shmq.message import QUEUES_MAX, check_topic
from shmq.tools.broker.access import control_of, open_view
from shmq.tools.broker.view import KINDS, BrokerView, TopicView
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_topic
from shmq.tools.terminal.exit_code import ExitCode
from shmq.tools.terminal.output import Column
from shmq.tools.terminal.quantity import age_text, count_text, iso_text, plural, rate_text, size_text

topic = Group("topic", help="List, show, create, update, delete topics.")

PERMISSIONS = {"r": 4, "w": 2, "rw": 6}


def topic_document(memory: BrokerView, view: TopicView, groups: dict[str, set[str]]) -> dict[str, Any]:
    """Return one row of `topic list` as JSON carries it."""
    oldest = memory.oldest_ms(view)
    return {
        "topic": view.name,
        "kind": view.role,
        "system": view.is_system,
        "permission": permission_text(view.perm),
        "queues": view.write_queues,
        "messages": view.messages,
        "size_bytes": view.size_bytes,
        "groups": sorted(groups.get(view.name, ())),
        "oldest": None if oldest is None else iso_text(oldest),
        "oldest_age_seconds": None if oldest is None else max(0.0, round(time.time() - oldest / 1000, 3)),
    }


def permission_text(perm: int) -> str:
    """Return RocketMQ's permission bits as letters."""
    return ("r" if perm & 4 else "") + ("w" if perm & 2 else "") or "none"


def _groups_by_topic(memory: BrokerView) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {}
    for view in memory.progress():
        groups.setdefault(view.topic, set()).add(view.group)
    return groups


@topic.command("list")
@click.option("-a", "--all", "everything", is_flag=True, help="System topics too.")
@click.option("--rates", is_flag=True, help="Watch for a second and show messages in and out a second.")
@pass_call
def list_(call: Call, everything: bool, rates: bool) -> None:
    """List topics with what they hold."""
    with open_view(call) as memory:
        before = _counted(memory) if rates else {}
        if rates:
            time.sleep(1.0)
        after, groups = _counted(memory), _groups_by_topic(memory)
        views = memory.topics()
        shown = [view for view in views if everything or not view.is_system]
        documents = [topic_document(memory, view, groups) for view in shown]
        for document in documents if rates else ():
            name = document["topic"]
            document["in_per_second"], document["out_per_second"] = (
                after[name][side] - before.get(name, (0, 0))[side] for side in (0, 1)
            )
    hidden = len(views) - len(shown)
    if call.terminal.structured:
        call.terminal.document({"topics": documents, "hidden": hidden}, rows=documents)
        return
    _print_list(call, documents, rates=rates)
    note = f" ({plural(hidden, 'system topic')} hidden, -a shows them)" if hidden else ""
    call.terminal.say(f"{plural(len(shown), 'topic')}{note}")


def _counted(memory: BrokerView) -> dict[str, tuple[int, int]]:
    """Return messages ever stored and ever committed by groups, for each topic."""
    out: dict[str, int] = {}
    for view in memory.progress():
        out[view.topic] = out.get(view.topic, 0) + (view.committed or 0)
    return {view.name: (sum(q.offset_max for q in view.queues), out.get(view.name, 0)) for view in memory.topics()}


def _print_list(call: Call, documents: list[dict[str, Any]], *, rates: bool) -> None:
    rate_columns = [Column("in/s", right=True), Column("out/s", right=True)] if rates else []
    columns = [
        Column("topic"),
        Column("kind"),
        *(Column(title, right=True) for title in ("queues", "messages", "size")),
        *rate_columns,
        Column("groups", right=True),
        Column("oldest", right=True),
        Column("permission", wide=True),
        Column("read by", wide=True),
    ]
    rows = [
        [
            row["topic"],
            row["kind"],
            str(row["queues"]),
            count_text(row["messages"]),
            size_text(row["size_bytes"]),
            *(rate_text(row[side]) for side in ("in_per_second", "out_per_second") if rates),
            str(len(row["groups"])),
            "–" if row["oldest"] is None else age_text(row["oldest_age_seconds"]),
            row["permission"],
            " ".join(row["groups"]) or "–",
        ]
        for row in documents
    ]
    if rows or call.style.verbose:
        call.terminal.table(columns, rows)


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@pass_call
def show(call: Call, name: str) -> None:
    """Show one topic: settings, queues, and the groups that read it."""
    with open_view(call) as memory:
        view = memory.topic(name)
        progress = [entry for entry in memory.progress() if entry.topic == name]
        document = topic_document(memory, view, _groups_by_topic(memory))
    lags: dict[str, int] = {}
    for entry in progress:
        lags[entry.group] = lags.get(entry.group, 0) + entry.lag
    document["groups"] = [{"group": group, "lag": lag} for group, lag in sorted(lags.items())]
    document["queue_list"] = [
        {
            "queue": queue.queue_id,
            "offset_min": queue.offset_min,
            "offset_max": queue.offset_max,
            "messages": queue.messages,
            "size_bytes": queue.size_bytes,
        }
        for queue in view.queues
    ]
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        _print_topic(call, document)


def _print_topic(call: Call, document: dict[str, Any]) -> None:
    facts = [
        document["kind"],
        f"permission {document['permission']}",
        plural(document["queues"], "queue"),
        plural(document["messages"], "message"),
        size_text(document["size_bytes"]),
    ]
    if document["oldest"] is not None:
        facts.append(f"oldest {age_text(document['oldest_age_seconds'])}")
    call.terminal.line(f"topic {document['topic']}   " + "   ".join(facts))
    columns = [Column(title, right=True) for title in ("queue", "min", "max", "messages", "size")]
    call.terminal.table(
        columns,
        [
            [
                str(queue["queue"]),
                count_text(queue["offset_min"]),
                count_text(queue["offset_max"]),
                count_text(queue["messages"]),
                size_text(queue["size_bytes"]),
            ]
            for queue in document["queue_list"]
        ],
    )
    if document["groups"]:
        rows = [[entry["group"], count_text(entry["lag"])] for entry in document["groups"]]
        call.terminal.table([Column("group"), Column("lag", right=True)], rows)


_queues_option = click.option("--queues", type=click.IntRange(1, QUEUES_MAX), help="How many queues to read and write.")
_permission_option = click.option("--permission", type=click.Choice(list(PERMISSIONS)), help="Who may: r, w or rw.")


@topic.command()
@click.argument("name", metavar="TOPIC")
@_queues_option
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="What the topic promises.")
@_permission_option
@click.option("--if-missing", is_flag=True, help="No error when it exists already.")
@dry_run_option
@pass_call
def create(
    call: Call, name: str, queues: int | None, kind: str, permission: str | None, if_missing: bool, dry_run: bool
) -> int:
    """Create TOPIC.

    Exit status 1 if it exists already.
    """
    check_topic(name)
    with open_view(call) as memory:
        exists = name in memory.topic_names()
    with control_of(call) as control:
        count, letters = queues or control.attachment.default_queues, permission or "rw"
        if not exists and not dry_run:
            control.create_topic(name, queues=count, perm=PERMISSIONS[letters], kind=kind)
    facts = {"queues": count, "kind": kind, "permission": letters, "changed": not exists and not dry_run}
    _report(call, name, "create", facts)
    if exists:
        call.terminal.say(f'topic "{name}" exists already; change it with: shmq topic update {name}')
        return ExitCode.DONE if if_missing else ExitCode.NO
    call.terminal.say(f'{"would create" if dry_run else "created"} topic "{name}" with {plural(count, "queue")}')
    return ExitCode.DONE


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@_queues_option
@_permission_option
@dry_run_option
@yes_option
@pass_call
def update(call: Call, name: str, queues: int | None, permission: str | None, dry_run: bool, yes: bool) -> None:
    """Change the queues or the permission of TOPIC.

    Taking something away needs --yes: messages in queues that are no longer read stay unread.
    """
    if queues is None and permission is None:
        raise UsageError("nothing to change was given", hint="give --queues or --permission")
    with open_view(call) as memory:
        view = memory.topic(name)
    perm = view.perm if permission is None else PERMISSIONS[permission]
    count = view.write_queues if queues is None else queues
    call.terminal.say(
        f'topic "{name}": {plural(view.write_queues, "queue")} → {count}, '
        f"permission {permission_text(view.perm)} → {permission_text(perm)}"
    )
    takes_away = count < view.write_queues or bool(view.perm & ~perm)
    changed = confirmed(call, yes=yes or not takes_away, dry_run=dry_run)
    if changed:
        with control_of(call) as control:
            control.create_topic(name, queues=count, perm=perm, kind=view.kind)
    _report(
        call, name, "update",
        {"queues": count, "kind": view.kind, "permission": permission_text(perm), "changed": changed},
    )  # fmt: skip


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@dry_run_option
@yes_option
@pass_call
def delete(call: Call, name: str, dry_run: bool, yes: bool) -> None:
    """Delete TOPIC with its messages."""
    with open_view(call) as memory:
        view = memory.topic(name)
        readers = {entry.group for entry in memory.progress() if entry.topic == name}
    what = f'topic "{name}" with {plural(view.messages, "message")} ({size_text(view.size_bytes)})'
    if readers:
        what += f", read by {plural(len(readers), 'group')}: {', '.join(sorted(readers))}"
    changed = _delete(call, name, what, dry_run=dry_run, yes=yes)
    _report(
        call, name, "delete",
        {"queues": view.write_queues, "kind": view.kind, "permission": permission_text(view.perm), "changed": changed},
    )  # fmt: skip


def _delete(call: Call, name: str, what: str, *, dry_run: bool, yes: bool) -> bool:
    if dry_run or not yes:
        call.terminal.say(f"would delete {what}")
    changed = confirmed(call, yes=yes, dry_run=dry_run)
    if changed:
        with control_of(call) as control:
            control.delete_topic(name)
        call.terminal.say(f"deleted {what}")
    return changed


def _report(call: Call, name: str, action: str, facts: dict[str, Any]) -> None:
    if call.terminal.structured:
        call.terminal.document({"topic": name, "action": action, **facts})
