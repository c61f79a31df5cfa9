"""`shmq group`: list, show, create, delete.

Looking reads the broker's memory; who is a member, and what it subscribes to, is asked of the broker. Changing goes through
the public API.
"""

from __future__ import annotations

import time
from typing import Any

import click

from shmq.errors import ConnectError
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_group
from shmq.tools.memory import Memory, ProgressView, group_not_found, open_memory
from shmq.tools.quantity import age_text, count_text, iso_text, plural
from shmq.tools.terminal import Column

group = Group("group", help="List, show, create, delete consumer groups.")


def _summary(name: str, progress: list[ProgressView]) -> dict[str, Any]:
    mine = [entry for entry in progress if entry.group == name]
    updated = max((entry.updated_ms for entry in mine), default=0)
    return {
        "group": name,
        "topics": sorted({entry.topic for entry in mine}),
        "readers": sorted({entry.owner_pid for entry in mine if entry.owner_pid is not None}),
        "lag": sum(entry.lag for entry in mine),
        "updated": iso_text(updated) if updated else None,
        "updated_age_seconds": _age(updated),
    }


def _age(time_ms: int) -> float | None:
    return max(0.0, round(time.time() - time_ms / 1000, 3)) if time_ms else None


def _age_cell(seconds: float | None) -> str:
    return "–" if seconds is None else age_text(seconds)


@group.command("list")
@pass_call
def list_(call: Call) -> None:
    """List consumer groups with what they have still to read."""
    with open_memory(call.url) as memory:
        progress = memory.progress()
        documents = [_summary(name, progress) for name in memory.group_names()]
    if call.terminal.structured:
        call.terminal.document({"groups": documents}, rows=documents)
        return
    if documents:
        call.terminal.table(
            [
                Column("group"),
                Column("topics", right=True),
                Column("readers", right=True),
                Column("lag", right=True),
                Column("last", right=True),
            ],
            [
                [
                    row["group"],
                    str(len(row["topics"])),
                    str(len(row["readers"])),
                    count_text(row["lag"]),
                    _age_cell(row["updated_age_seconds"]),
                ]
                for row in documents
            ],
        )
    call.terminal.say(plural(len(documents), "group"))


@group.command()
@click.argument("name", metavar="GROUP", shell_complete=complete_group)
@pass_call
def show(call: Call, name: str) -> None:
    """Show one group: members, queues, and how far behind it is."""
    with open_memory(call.url) as memory:
        document = group_document(memory, name)
    document["members"] = _members(call, name)
    if call.terminal.structured:
        call.terminal.document(document)
    else:
        _print_group(call, document)


def group_document(memory: Memory, name: str) -> dict[str, Any]:
    """Return one group as JSON carries it, without its members.

    Raises:
        ConsumeError: there is no such group.
    """
    if name not in memory.group_names():
        raise group_not_found(name, memory.instance.broker_name, memory.group_names())
    progress = memory.progress()
    return {
        **_summary(name, progress),
        "queues": [
            {
                "topic": entry.topic,
                "queue": entry.queue.queue_id,
                "offset_min": entry.queue.offset_min,
                "offset": entry.committed,
                "offset_max": entry.queue.offset_max,
                "lag": entry.lag,
                "reader": entry.owner_pid,
                "updated": iso_text(entry.updated_ms) if entry.updated_ms else None,
                "updated_age_seconds": _age(entry.updated_ms),
            }
            for entry in progress
            if entry.group == name
        ],
    }
