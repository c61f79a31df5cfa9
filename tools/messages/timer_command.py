"""`shmq timer`: list the messages that wait for a time of their own, take one back.

The broker knows which wait; nothing is read from its memory.

Invariant: nothing is taken back without --yes, and the broker decides whether it still can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shmq.errors import MessageNotFound
from shmq.figures.quantity import clock_text, count_text, iso_text, plural
from shmq.protocol.backlog import PendingTimer, PendingTimers
from shmq.protocol.body import decode_body
from shmq.protocol.codes import Request
from shmq.tools.broker.access import local_control_of
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.terminal.output import Field

if TYPE_CHECKING:
    from shmq.client.wire_shm.control import ControlClient

_COUNT_MAX = 1000

timer = Group("timer", help="List messages that wait for their time, take one back.")

_FIELDS: tuple[Field[PendingTimer], ...] = (
    Field("id", lambda entry: entry.unique_key or str(entry.offset)),
    Field("topic", lambda entry: entry.topic),
    Field("key", lambda entry: entry.key or "–"),
    Field("due", lambda entry: clock_text(entry.due_ms)),
    Field("bytes", lambda entry: count_text(entry.body_bytes), right=True),
)


@timer.command("list")
@click.option("--topic", metavar="TOPIC", help="Only of this topic.")
@click.option("--limit", type=click.IntRange(1, _COUNT_MAX), default=100, show_default=True, help="Only the next ones.")
@pass_call
def list_(call: Call, topic: str | None, limit: int) -> None:
    """List the messages of delay= and deliver_at= that wait, what is due first."""
    with local_control_of(call, "which messages wait") as control:
        found = pending_timers(control, _COUNT_MAX if topic else limit)
    shown = [entry for entry in found.timers if topic in (None, entry.topic)][:limit]
    rows = [_document(entry) for entry in shown]
    if call.terminal.structured:
        call.terminal.document({"count": found.count, "timers": rows}, rows=rows)
        return
    call.terminal.listing(_FIELDS, shown)
    call.terminal.say(f"{plural(found.count, 'waiting message')}")


@timer.command()
@click.argument("message", metavar="ID")
@dry_run_option
@yes_option
@pass_call
def cancel(call: Call, message: str, dry_run: bool, yes: bool) -> None:
    """Take a message back before it is due; ID is its unique key, its offset, or a recall handle."""
    with local_control_of(call, "which messages wait") as control:
        entry = find_timer(pending_timers(control, _COUNT_MAX), message)
        if not call.terminal.structured:
            call.terminal.say(
                f"take back the message {entry.unique_key} for topic {entry.topic}, due {clock_text(entry.due_ms)}, "
                f"{plural(entry.body_bytes, 'byte')}"
            )
        changed = confirmed(call, yes=yes, dry_run=dry_run)
        if changed:
            with call.connect() as mq:
                mq.recall(entry.handle)
    call.terminal.report({**_document(entry), "changed": changed})


def pending_timers(control: ControlClient, count: int) -> PendingTimers:
    """Return the next messages that wait for their time, and how many wait in all."""
    return decode_body(control.request(Request.TIMERS, {"count": str(count)}).body, PendingTimers)


def find_timer(found: PendingTimers, message: str) -> PendingTimer:
    """Return one of them by its unique key, offset or recall handle.

    Raises:
        MessageNotFound: none that can be taken back is called so.
    """
    for entry in found.timers:
        if entry.handle and message in (entry.unique_key, str(entry.offset), entry.handle):
            return entry
    raise MessageNotFound(
        f'none of the next {plural(len(found.timers), "waiting message")} is called "{message}"',
        hint="they are in: shmq timer list",
    )


def _document(entry: PendingTimer) -> dict[str, Any]:
    return {
        "id": entry.unique_key or None,
        "offset": entry.offset,
        "topic": entry.topic,
        "queue": entry.queue_id,
        "key": entry.key or None,
        "stored": iso_text(entry.store_ms),
        "due": iso_text(entry.due_ms),
        "body_bytes": entry.body_bytes,
        "recall_handle": entry.handle or None,
    }
