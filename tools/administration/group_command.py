"""`shmq group`: list, show, create, delete.

Figures are read from the broker's memory. The broker is asked for the members and their subscriptions, and for
every change.
"""

from __future__ import annotations

import time
from typing import Any

import click

from shmq.errors import ConnectError, ConsumeError
from shmq.exit_code import ExitCode
from shmq.figures.model import QueueLag
from shmq.figures.quantity import age_text, count_text, iso_text, plural
from shmq.message import check_consumer_group, is_system_group
from shmq.tools.administration.subscription_conflict import conflict_of_status
from shmq.tools.broker.access import deleted, open_view
from shmq.tools.broker.view import BrokerView, group_not_found
from shmq.tools.command import Call, Group, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_group
from shmq.tools.terminal.output import Field

group = Group("group", help="List, show, create, delete consumer groups.")


def _summary(name: str, mine: list[QueueLag]) -> dict[str, Any]:
    updated = max((entry.updated_ms for entry in mine), default=0)
    return {
        "group": name,
        "topics": sorted({entry.topic for entry in mine}),
        "readers": sorted({entry.owner_pid for entry in mine if entry.owner_pid is not None}),
        "lag": sum(entry.behind for entry in mine),
        "in_flight": sum(entry.in_flight for entry in mine),
        "updated": iso_text(updated) if updated else None,
        "updated_age_seconds": _age(updated),
    }


def _age(time_ms: int) -> float | None:
    return max(0.0, round(time.time() - time_ms / 1000, 3)) if time_ms else None


def _age_cell(seconds: float | None) -> str:
    return "–" if seconds is None else age_text(seconds)


_GROUP_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("group", lambda row: row["group"]),
    Field("topics", lambda row: str(len(row["topics"])), right=True),
    Field("readers", lambda row: str(len(row["readers"])), right=True),
    Field("lag", lambda row: count_text(row["lag"]), right=True),
    Field("last", lambda row: _age_cell(row["updated_age_seconds"]), right=True),
    Field("reads", lambda row: " ".join(row["topics"]) or "–", wide=True),
)
_QUEUE_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("topic", lambda row: row["topic"]),
    Field("queue", lambda row: str(row["queue"]), right=True),
    Field("min", lambda row: count_text(row["offset_min"]), right=True),
    Field("offset", lambda row: "–" if row["offset"] is None else count_text(row["offset"]), right=True),
    Field("max", lambda row: count_text(row["offset_max"]), right=True),
    Field("lag", lambda row: count_text(row["lag"]), right=True),
    Field("reader", lambda row: "–" if row["reader"] is None else f"pid {row['reader']}"),
    Field("last", lambda row: _age_cell(row["updated_age_seconds"])),
)
_MEMBER_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("member", lambda row: row["client"]),
    Field("lang", lambda row: row["language"]),
    Field("via", lambda row: row["transport"]),
    Field("pid", lambda row: "–" if row["pid"] is None else str(row["pid"]), right=True),
    Field(
        "subscription", lambda row: ", ".join(f"{topic}: {tags}" for topic, tags in sorted(row["subscription"].items()))
    ),
)


@group.command("list")
@click.option("-a", "--all", "everything", is_flag=True, help="System groups too.")
@pass_call
def list_(call: Call, everything: bool) -> None:
    """List consumer groups with what they have still to read."""
    with open_view(call) as memory:
        progress, names = memory.progress(), memory.group_names()
    documents = [_summary(name, progress.get(name, [])) for name in names if everything or not is_system_group(name)]
    hidden = len(names) - len(documents)
    if call.terminal.structured:
        call.terminal.document({"groups": documents, "hidden": hidden}, rows=documents)
        return
    if documents:
        call.terminal.listing(_GROUP_FIELDS, documents)
    note = f" ({plural(hidden, 'system group')} hidden, -a shows them)" if hidden else ""
    call.terminal.say(f"{plural(len(documents), 'group')}{note}")


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@pass_call
def show(call: Call, name: str) -> None:
    """Show one group: members, queues, and how far behind it is."""
    told = None
    with open_view(call) as memory:
        document = group_document(memory, name)
        try:
            document["members"], told = memory.subscribers(name)
        except ConnectError as error:  # which must not hide what memory shows
            document["members"] = None
            call.terminal.warn(f"members are unknown: {error}")
    conflict = None if told is None else conflict_of_status(name, told)
    document["conflict"] = None if conflict is None else conflict.document
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        _print_group(call, document)
        if conflict is not None:
            call.terminal.warn(conflict.text)


def group_document(memory: BrokerView, name: str) -> dict[str, Any]:
    """Return one group as JSON carries it, without its members.

    Raises:
        GroupNotFound: there is no such group.
    """
    if name not in memory.group_names():
        raise group_not_found(name, memory.broker_name, memory.group_names())
    progress = memory.progress(name).get(name, [])
    return {
        **_summary(name, progress),
        "queues": [
            {
                "topic": entry.topic,
                "queue": entry.queue_id,
                "offset_min": entry.offset_min,
                "offset": entry.offset,
                "offset_max": entry.offset_max,
                "lag": entry.behind,
                "in_flight": entry.in_flight,
                "reader": entry.owner_pid,
                "updated": iso_text(entry.updated_ms) if entry.updated_ms else None,
                "updated_age_seconds": _age(entry.updated_ms),
            }
            for entry in progress
        ],
    }


def _print_group(call: Call, document: dict[str, Any]) -> None:
    members = document["members"]
    facts = [f"lag {count_text(document['lag'])}", f"last {_age_cell(document['updated_age_seconds'])}"]
    if document["in_flight"]:
        facts.insert(1, f"in flight {count_text(document['in_flight'])}")
    if members is not None:
        facts.insert(0, plural(len(members), "member"))
    call.terminal.line(f"group {document['group']}   " + "   ".join(facts))
    if document["queues"]:
        print_queues(call, document["queues"])
    if members:
        call.terminal.listing(_MEMBER_FIELDS, members)


def print_queues(call: Call, queues: list[dict[str, Any]]) -> None:
    """Print how far a group is in each queue."""
    call.terminal.listing(_QUEUE_FIELDS, queues)


@group.command()
@click.argument("name", metavar="GROUP")
@dry_run_option
@pass_call
def create(call: Call, name: str, dry_run: bool) -> int:
    """Create GROUP; consumers also do so by joining it.

    Exit status 1 if it exists already.
    """
    check_consumer_group(name)
    with open_view(call) as memory:
        exists = name in memory.group_names()
        if not exists and not dry_run:
            memory.create_group(name)
    _report(call, name, "create", changed=not exists and not dry_run)
    would = "would create" if dry_run else "created"
    call.terminal.say(f'group "{name}" exists already' if exists else f'{would} group "{name}"')
    return ExitCode.NO if exists else ExitCode.DONE


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@dry_run_option
@yes_option
@pass_call
def delete(call: Call, name: str, dry_run: bool, yes: bool) -> None:
    """Delete GROUP with its progress."""
    with open_view(call) as memory:
        document = group_document(memory, name)
        members, readers = memory.members(name), document["readers"]
    if members or readers:  # after a restart of the broker a reader may not have registered yet
        pids = f" (pid {', '.join(map(str, readers))})" if readers else ""
        raise ConsumeError(
            f'group "{name}" is being read by {", ".join(members[:5]) or "a process"}{pids}',
            hint="stop its members, then run it again",
        )
    what = f'group "{name}" and its progress in {", ".join(document["topics"]) or "no topic"}'
    changed = deleted(call, what, lambda view: view.delete_group(name), dry_run=dry_run, yes=yes)
    _report(call, name, "delete", changed=changed)


def _report(call: Call, name: str, action: str, *, changed: bool) -> None:
    call.terminal.report({"group": name, "action": action, "changed": changed})
