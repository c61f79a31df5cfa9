"""`shmq topic`: list, show, create, update, delete.

Figures are read from the broker's memory without asking it; every change is a request, so the broker decides.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import click

from shmq.client.administration.admin import refuse_unlike
from shmq.client.administration.interface import QueueChange, TopicQueues, TopicSettings, change_queues
from shmq.errors import UsageError
from shmq.figures.model import TOPIC_FLUSHES, TOPIC_KINDS, TopicInfo
from shmq.figures.quantity import age_text, count_text, iso_text, plural, rate_text, size_text
from shmq.message import PERM_READ, PERM_READ_WRITE, PERM_WRITE, QUEUES_MAX, check_topic, refuse_system_topic
from shmq.tools.broker.access import deleted, open_view
from shmq.tools.broker.view import BrokerView, on_topic
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_topic
from shmq.tools.terminal.output import Field

topic = Group("topic", help="List, show, create, update, delete topics.")

PERMISSIONS = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ_WRITE}


def topic_document(memory: BrokerView, view: TopicInfo, groups: dict[str, set[str]]) -> dict[str, Any]:
    """Return one row of `topic list` as JSON carries it."""
    oldest = memory.oldest_ms(view)
    return {
        "topic": view.name,
        "kind": view.role,
        "system": view.role == "system",
        "permission": permission_text(view.perm),
        "flush": view.flush,
        "queues": view.write_queues,
        "messages": view.messages,
        "size_bytes": view.size_bytes,
        "groups": sorted(groups.get(view.name, ())),
        "oldest": None if oldest is None else iso_text(oldest),
        "oldest_age_seconds": None if oldest is None else max(0.0, round(time.time() - oldest / 1000, 3)),
    }


def permission_text(perm: int) -> str:
    """Return RocketMQ's permission bits as letters."""
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or "none"


def _groups_by_topic(memory: BrokerView) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {}
    for group, rows in memory.progress().items():
        for row in rows:
            groups.setdefault(row.topic, set()).add(group)
    return groups


_RATES = ("in/s", "out/s")
_TOPIC_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("topic", lambda row: row["topic"]),
    Field("kind", lambda row: row["kind"]),
    Field("queues", lambda row: str(row["queues"]), right=True),
    Field("messages", lambda row: count_text(row["messages"]), right=True),
    Field("size", lambda row: size_text(row["size_bytes"]), right=True),
    Field("in/s", lambda row: rate_text(row["in_per_second"]), right=True),
    Field("out/s", lambda row: rate_text(row["out_per_second"]), right=True),
    Field("groups", lambda row: str(len(row["groups"])), right=True),
    Field("oldest", lambda row: "–" if row["oldest"] is None else age_text(row["oldest_age_seconds"]), right=True),
    Field("permission", lambda row: row["permission"], wide=True),
    Field("flush", lambda row: row["flush"], wide=True),
    Field("read by", lambda row: " ".join(row["groups"]) or "–", wide=True),
)
_QUEUE_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("queue", lambda row: str(row["queue"]), right=True),
    Field("min", lambda row: count_text(row["offset_min"]), right=True),
    Field("max", lambda row: count_text(row["offset_max"]), right=True),
    Field("messages", lambda row: count_text(row["messages"]), right=True),
    Field("size", lambda row: size_text(row["size_bytes"]), right=True),
)
_READER_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("group", lambda row: row["group"]),
    Field("lag", lambda row: count_text(row["lag"]), right=True),
)


@topic.command("list")
@click.option("-a", "--all", "everything", is_flag=True, help="System and retry topics too.")
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
        shown = [view for view in views if everything or not view.is_hidden]
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
    if documents or call.style.verbose:
        fields = [field for field in _TOPIC_FIELDS if rates or field.title not in _RATES]
        call.terminal.listing(fields, documents)
    note = f" ({plural(hidden, 'system and retry topic')} hidden, -a shows them)" if hidden else ""
    call.terminal.say(f"{plural(len(shown), 'topic')}{note}")


def _counted(memory: BrokerView) -> dict[str, tuple[int, int]]:
    """Return messages ever stored and ever committed by groups, for each topic."""
    out: dict[str, int] = {}
    for row in itertools.chain.from_iterable(memory.progress().values()):
        out[row.topic] = out.get(row.topic, 0) + max(0, row.committed)
    return {view.name: (sum(q.offset_max for q in view.queues), out.get(view.name, 0)) for view in memory.topics()}


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@pass_call
def show(call: Call, name: str) -> None:
    """Show one topic: settings, queues, and the groups that read it."""
    with open_view(call) as memory:
        view = memory.topic(name)
        progress = on_topic(memory, name)
        document = topic_document(memory, view, _groups_by_topic(memory))
    document["groups"] = [{"group": group, "lag": sum(row.behind for row in rows)} for group, rows in progress.items()]
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
    call.terminal.answer(document, text=lambda: _print_topic(call, document))


def _print_topic(call: Call, document: dict[str, Any]) -> None:
    facts = [
        document["kind"],
        f"permission {document['permission']}",
        plural(document["queues"], "queue"),
        plural(document["messages"], "message"),
        size_text(document["size_bytes"]),
    ]
    if document["flush"] != TOPIC_FLUSHES[0]:
        facts.append(f"flush {document['flush']}")
    if document["oldest"] is not None:
        facts.append(f"oldest {age_text(document['oldest_age_seconds'])}")
    call.terminal.line(f"topic {document['topic']}   " + "   ".join(facts))
    call.terminal.listing(_QUEUE_FIELDS, document["queue_list"])
    if document["groups"]:
        call.terminal.listing(_READER_FIELDS, document["groups"])


_queues_option = click.option("--queues", type=click.IntRange(1, QUEUES_MAX), help="How many queues to read and write.")
_flush_option = click.option(
    "--flush",
    type=click.Choice(TOPIC_FLUSHES),
    help="When a message counts: once stored (async), once on disk (sync).",
)
_permission_option = click.option("--permission", type=click.Choice(list(PERMISSIONS)), help="Who may: r, w or rw.")


@topic.command()
@click.argument("name", metavar="TOPIC")
@_queues_option
@click.option("--kind", type=click.Choice(TOPIC_KINDS), help=f"What the topic promises.  [default: {TOPIC_KINDS[0]}]")
@_permission_option
@_flush_option
@click.option("--if-missing", is_flag=True, help="No error when it exists already.")
@dry_run_option
@pass_call
def create(
    call: Call,
    name: str,
    queues: int | None,
    kind: str | None,
    permission: str | None,
    flush: str | None,
    if_missing: bool,
    dry_run: bool,
) -> None:
    """Create TOPIC.

    One that exists and is as asked is left alone; exit status 1 if it is not.
    """
    check_topic(name)
    refuse_system_topic(name)
    with open_view(call) as memory:
        known = memory.topic(name) if name in memory.topic_names() else None
        now = None if known is None else memory.topic_queues(name)
    if known is not None and now is not None and not if_missing:
        letters = permission_text(known.perm)
        have = {"queues": now.write_queues, "kind": known.kind, "permission": letters, "flush": known.flush}
        refuse_unlike(name, have, {"queues": queues, "kind": kind, "permission": permission, "flush": flush})
    with open_view(call) as memory:
        default_queues = memory.default_queues  # asked of a broker of this host, also where nothing is to be done
        if known is None or now is None:
            count = queues or default_queues
            change, perm, kind = QueueChange(count, count), PERMISSIONS[permission or "rw"], kind or TOPIC_KINDS[0]
        else:
            change, perm, kind, flush = change_queues(now), known.perm, known.kind, known.own_flush
        is_new = known is None or not memory.is_on_every_broker(name)
        if is_new and not dry_run:
            memory.create_topic(name, TopicSettings(change, kind, perm, flush))
    facts = {"queues": change.write_queues, "read_queues": change.read_queues, "kind": kind}
    _report(call, name, "create", {**facts, "permission": permission_text(perm), "changed": is_new and not dry_run})
    if is_new:
        queues_text = plural(change.write_queues, "queue")
        call.terminal.say(f'{"would create" if dry_run else "created"} topic "{name}" with {queues_text}')
    else:
        call.terminal.say(f'topic "{name}" exists already')


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@_queues_option
@click.option("--read-queues", type=click.IntRange(1, QUEUES_MAX), help="How many to read; hides what the others hold.")
@click.option("--kind", type=click.Choice(TOPIC_KINDS), help="What the topic promises.")
@_permission_option
@_flush_option
@dry_run_option
@yes_option
@pass_call
def update(
    call: Call,
    name: str,
    queues: int | None,
    read_queues: int | None,
    kind: str | None,
    permission: str | None,
    flush: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Change the queues, the kind, the permission or the flush of TOPIC.

    Queues that hold messages are read until --read-queues says otherwise. Taking something away needs --yes.
    """
    if all(wish is None for wish in (queues, read_queues, kind, permission, flush)):
        options = "--queues, --read-queues, --kind, --permission or --flush"
        raise UsageError("nothing to change was given", hint=f"give {options}")
    refuse_system_topic(name)
    with open_view(call) as memory:
        view = memory.topic(name)
        now = memory.topic_queues(name) or TopicQueues(view.read_queues, view.write_queues, {})
        change = change_queues(now, queues=queues, read_queues=read_queues)
        unread = _unread_by(memory, name, change.write_queues) if change.kept or change.hidden else {}
    perm = view.perm if permission is None else PERMISSIONS[permission]
    call.terminal.say(
        f'topic "{name}": {_queues_text(now.read_queues, now.write_queues)} → '
        f"{_queues_text(change.read_queues, change.write_queues)}, "
        f"permission {permission_text(view.perm)} → {permission_text(perm)}"
        + (f", kind {view.kind} → {kind}" if kind is not None else "")
        + (f", flush {view.flush} → {flush}" if flush is not None else "")
    )
    _say_what_is_kept(call, name, now, change, unread)
    takes_away = (
        change.write_queues < now.write_queues or change.read_queues < now.read_queues or bool(view.perm & ~perm)
    )
    changed = confirmed(call, yes=yes or not takes_away, dry_run=dry_run)
    if changed:
        with open_view(call) as memory:
            is_other = kind not in (None, view.kind)
            memory.create_topic(name, TopicSettings(change, kind or view.kind, perm, flush, changes_kind=is_other))
    facts = {"queues": change.write_queues, "read_queues": change.read_queues, "kind": kind or view.kind}
    facts |= {"kept_messages": change.kept, "hidden_messages": change.hidden}
    _report(call, name, "update", {**facts, "permission": permission_text(perm), "changed": changed})


def _unread_by(memory: BrokerView, topic: str, first: int) -> dict[str, int]:
    """Return what each group has still to read of the queues from the number `first` on."""
    from shmq.client.wire_tcp.route import QUEUE_BITS  # which most calls need not load

    unread: dict[str, int] = {}
    for group, rows in on_topic(memory, topic).items():
        count = sum(row.behind for row in rows if row.queue_id % (1 << QUEUE_BITS) >= first)
        if count:
            unread[group] = count
    return unread


def _queues_text(read: int, write: int) -> str:
    return plural(write, "queue") if read == write else f"{read} to read and {write} to write"


def _say_what_is_kept(call: Call, name: str, now: TopicQueues, change: QueueChange, unread: dict[str, int]) -> None:
    """Say what becomes of the messages in queues that go away, before it is too late."""
    groups = ", ".join(f"{count_text(count)} by {group}" for group, count in sorted(unread.items()))
    rest = f", not read yet: {groups}" if groups else ""
    if change.kept:
        last = change.read_queues - 1
        then = f"shmq topic update {name} --read-queues {change.write_queues} --yes"
        call.terminal.say(
            f"  queues {change.write_queues} to {last} hold {plural(change.kept, 'message')}{rest}; they stay readable"
        )
        call.terminal.say(f"  when every group has read them: {then}")
    if change.hidden:
        last = now.read_queues - 1
        call.terminal.warn(
            f"no group can read the {plural(change.hidden, 'message')} in queues {change.read_queues} to {last} "
            f"any more{rest}"
        )


@topic.command()
@click.argument("name", metavar="TOPIC", shell_complete=complete_topic)
@dry_run_option
@yes_option
@pass_call
def delete(call: Call, name: str, dry_run: bool, yes: bool) -> None:
    """Delete TOPIC with its messages."""
    refuse_system_topic(name)
    with open_view(call) as memory:
        view = memory.topic(name)
        readers = on_topic(memory, name)
    what = f'topic "{name}" with {plural(view.messages, "message")} ({size_text(view.size_bytes)})'
    if readers:
        what += f", read by {plural(len(readers), 'group')}: {', '.join(sorted(readers))}"
    changed = deleted(call, what, lambda view: view.delete_topic(name), dry_run=dry_run, yes=yes)
    facts = {"queues": view.write_queues, "read_queues": view.read_queues, "kind": view.kind}
    _report(call, name, "delete", {**facts, "permission": permission_text(view.perm), "changed": changed})


def _report(call: Call, name: str, action: str, facts: dict[str, Any]) -> None:
    call.terminal.report({"topic": name, "action": action, **facts})
