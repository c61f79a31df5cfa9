"""`shmq offset`: show, reset, skip, clone the progress of a group.

It reads the broker's memory, makes a plan, shows it, and writes it down as a member of the group would.

Invariants:
1. A queue that a living process reads is never moved: its reader would write its own progress over it.
2. Nothing is changed without --yes, and what is changed is what was shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from shmq.errors import UsageError
from shmq.figures.quantity import count_text, plural
from shmq.message import check_consumer_group
from shmq.tools.administration.group_command import group_document, print_queues
from shmq.tools.broker.access import open_view
from shmq.tools.broker.view import BrokerView, being_read, group_not_found
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_group, complete_topic
from shmq.tools.messages.source import starts_of
from shmq.tools.terminal.output import Field

offset = Group("offset", help="Show, reset, skip, clone a group's progress.")


@dataclass(frozen=True)
class Move:
    """One queue whose offset is to change."""

    topic: str
    queue_id: int
    offset_min: int
    now: int | None
    new: int

    @property
    def again(self) -> int:
        """Messages delivered once more; negative: messages left out."""
        return (self.offset_min if self.now is None else self.now) - self.new

    def document(self) -> dict[str, Any]:
        """Return the move as JSON carries it."""
        return {
            "topic": self.topic,
            "queue": self.queue_id,
            "offset": self.now,
            "new_offset": self.new,
            "again": self.again,
        }


_FIELDS: tuple[Field[Move], ...] = (
    Field("topic", lambda move: move.topic),
    Field("queue", lambda move: str(move.queue_id), right=True),
    Field("now", lambda move: "–" if move.now is None else count_text(move.now), right=True),
    Field("new", lambda move: count_text(move.new), right=True),
    Field("again", lambda move: count_text(move.again), right=True),
)


@offset.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("topic", required=False, shell_complete=complete_topic)
@pass_call
def show(call: Call, group: str, topic: str | None) -> None:
    """Show how far GROUP is, in all its topics or in one."""
    with open_view(call) as memory:
        if topic is not None:
            memory.topic(topic)
        queues = group_document(memory, group)["queues"]
    queues = [entry for entry in queues if topic in (None, entry["topic"])]
    if call.terminal.structured:
        call.terminal.document({"group": group, "queues": queues}, rows=queues)
    else:
        print_queues(call, queues)
        call.terminal.say(f"lag {count_text(sum(entry['lag'] for entry in queues))}")


@offset.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("topic", required=False, shell_complete=complete_topic)
@click.option("--to", "where", required=True, metavar="PLACE", help="begin, end, an offset, -100, -2h, an ISO time.")
@click.option("--queue", "queues", type=click.IntRange(min=0), multiple=True, help="Only this queue; may be repeated.")
@dry_run_option
@yes_option
@pass_call
def reset(
    call: Call, group: str, topic: str | None, where: str, queues: tuple[int, ...], dry_run: bool, yes: bool
) -> None:
    """Let GROUP go on at another place of TOPIC, or of all its topics."""
    with open_view(call) as memory:
        moves = []
        known = memory.group_names()
        if group not in known:  # a slip of the finger would make a group without members
            raise group_not_found(group, memory.broker_name, known)
        for name in _topics(memory, group, topic):
            view = memory.topic(name)
            starts = starts_of(memory, view, where)
            now = _committed(memory, group, name)
            unknown = set(queues) - {queue.queue_id for queue in view.queues}
            if unknown:
                raise UsageError(
                    f"topic {name} has no queue {min(unknown)}", hint=f"its queues are 0 to {len(view.queues) - 1}"
                )
            for queue in view.queues:
                if not queues or queue.queue_id in queues:
                    moves.append(
                        Move(name, queue.queue_id, queue.offset_min, now.get(queue.queue_id), starts[queue.queue_id])
                    )
        _refuse_readers(memory, group, moves)
    _carry_out(call, group, moves, dry_run=dry_run, yes=yes)


@offset.command()
@click.argument("group", shell_complete=complete_group)
@click.argument("topic", required=False, shell_complete=complete_topic)
@dry_run_option
@yes_option
@click.pass_context
def skip(ctx: click.Context, group: str, topic: str | None, dry_run: bool, yes: bool) -> None:
    """Leave out everything GROUP has not consumed yet: reset --to end."""
    ctx.invoke(reset, group=group, topic=topic, where="end", queues=(), dry_run=dry_run, yes=yes)


@offset.command()
@click.argument("source", metavar="FROM", shell_complete=complete_group)
@click.argument("target", metavar="TO", shell_complete=complete_group)
@click.argument("topic", required=False, shell_complete=complete_topic)
@dry_run_option
@yes_option
@pass_call
def clone(call: Call, source: str, target: str, topic: str | None, dry_run: bool, yes: bool) -> None:
    """Give group TO the progress of group FROM."""
    if source == target:
        raise UsageError(f'group "{source}" cannot be cloned to itself', hint="name another group")
    check_consumer_group(target)
    with open_view(call) as memory:
        moves = []
        known = group_document(memory, source)["topics"]
        if topic is not None and topic not in known:
            memory.topic(topic)
            raise UsageError(
                f'group "{source}" has no offset in topic "{topic}"', hint=f"see: shmq group show {source}"
            )
        for name in _topics(memory, source, topic):
            now = _committed(memory, target, name)
            moves += [
                Move(name, row.queue_id, row.offset_min, now.get(row.queue_id), row.committed)
                for row in memory.progress(source).get(source, ())
                if row.topic == name and row.offset is not None
            ]
        _refuse_readers(memory, target, moves)
    _carry_out(call, target, moves, dry_run=dry_run, yes=yes)


def _topics(memory: BrokerView, group: str, topic: str | None) -> list[str]:
    """Return the topics meant: the one that was named, or all the group has an offset in."""
    if topic is not None:
        return [topic]
    topics: list[str] = group_document(memory, group)["topics"]
    if not topics:
        raise UsageError(f'group "{group}" has no offset in any topic', hint="name the topic")
    return topics


def _committed(memory: BrokerView, group: str, topic: str) -> dict[int, int | None]:
    return {row.queue_id: row.offset for row in memory.progress(group).get(group, ()) if row.topic == topic}


def _refuse_readers(memory: BrokerView, group: str, moves: Sequence[Move]) -> None:
    """Refuse before a plan is shown; the write looks again."""
    if readers := memory.readers(group, {(move.topic, move.queue_id) for move in moves}):
        raise being_read(group, readers)


def _carry_out(call: Call, group: str, moves: Sequence[Move], *, dry_run: bool, yes: bool) -> None:
    again = sum(max(0, move.again) for move in moves)
    left_out = sum(max(0, -move.again) for move in moves)
    document: dict[str, Any] = {
        "group": group,
        "changed": yes and not dry_run,
        "again": again,
        "left_out": left_out,
        "queues": [move.document() for move in moves],
    }
    if not call.terminal.structured:
        several = len({move.topic for move in moves}) > 1
        call.terminal.listing(_FIELDS if several else _FIELDS[1:], moves)
        verb = "will" if document["changed"] else "would"
        call.terminal.say(
            f"{verb} deliver {plural(again, 'message')} again, and leave {plural(left_out, 'message')} out"
        )
    if confirmed(call, yes=yes, dry_run=dry_run):
        with open_view(call) as memory:
            memory.commit(group, [(move.topic, move.queue_id, move.new) for move in moves])
    call.terminal.report(document, rows=document["queues"])
