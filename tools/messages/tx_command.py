"""`shmq tx`: list the transactions that are open, let the broker ask about one, settle one.

The broker knows which are open; nothing is read from its memory.

Invariant: nothing is settled without --yes, and the broker decides whether it still can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shmq.errors import RemoteError, TransactionError
from shmq.figures.quantity import clock_text, count_text, iso_text, plural
from shmq.protocol.backlog import OpenTransaction, OpenTransactions
from shmq.protocol.body import decode_body
from shmq.protocol.codes import Request
from shmq.protocol.system_topics import transaction as wire
from shmq.tools.broker.access import local_control_of
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_group
from shmq.tools.terminal.output import Field

if TYPE_CHECKING:
    from shmq.client.wire_shm.control import ControlClient

tx = Group("tx", help="List, check, commit, roll back open transactions.")

_FIELDS: tuple[Field[OpenTransaction], ...] = (
    Field("id", lambda entry: entry.message_id),
    Field("topic", lambda entry: entry.topic),
    Field("group", lambda entry: entry.group),
    Field("key", lambda entry: entry.key or "–"),
    Field("stored", lambda entry: clock_text(entry.store_ms)),
    Field("checks", lambda entry: count_text(entry.checks), right=True),
    Field("bytes", lambda entry: count_text(entry.body_bytes), right=True),
)


@tx.command("list")
@click.option("-g", "--group", metavar="GROUP", shell_complete=complete_group, help="Only of this producer group.")
@pass_call
def list_(call: Call, group: str | None) -> None:
    """List the open transactions, the oldest first."""
    with local_control_of(call, "which transactions are open") as control:
        found = open_transactions(control)
    shown = [entry for entry in found.transactions if group in (None, entry.group)]
    rows = [_document(entry) for entry in shown]
    if call.terminal.structured:
        call.terminal.document({"count": found.count, "transactions": rows}, rows=rows)
        return
    call.terminal.listing(_FIELDS, shown)
    call.terminal.say(f"{plural(found.count, 'open transaction')}")


@tx.command()
@click.argument("transaction", metavar="ID")
@pass_call
def check(call: Call, transaction: str) -> None:
    """Let the broker ask a member of the producer group now; ID is the message id, or the offset."""
    with local_control_of(call, "which transactions are open") as control:
        entry = find_transaction(open_transactions(control), transaction)
        asked = ask_producer(control, entry)
    if call.terminal.structured:
        call.terminal.document({**_document(entry), "asked": asked})
    elif asked:
        call.terminal.say(f"a member of group {entry.group} was asked; see: shmq tx list")
    if not asked:
        raise TransactionError(
            f'no member of producer group "{entry.group}" answers questions',
            hint="start its producer, or decide: shmq tx commit|rollback",
        )


@tx.command()
@click.argument("transaction", metavar="ID")
@dry_run_option
@yes_option
@pass_call
def commit(call: Call, transaction: str, dry_run: bool, yes: bool) -> None:
    """Make the message of a transaction visible."""
    _settle(call, transaction, wire.COMMIT, dry_run=dry_run, yes=yes)


@tx.command()
@click.argument("transaction", metavar="ID")
@dry_run_option
@yes_option
@pass_call
def rollback(call: Call, transaction: str, dry_run: bool, yes: bool) -> None:
    """Never let the message of a transaction be seen."""
    _settle(call, transaction, wire.ROLLBACK, dry_run=dry_run, yes=yes)


def _settle(call: Call, transaction: str, state: int, *, dry_run: bool, yes: bool) -> None:
    verb = "commit" if state == wire.COMMIT else "roll back"
    with local_control_of(call, "which transactions are open") as control:
        entry = find_transaction(open_transactions(control), transaction)
        if not call.terminal.structured:
            call.terminal.say(
                f"{verb} the message {entry.message_id} of group {entry.group} for topic {entry.topic}, "
                f"{plural(entry.body_bytes, 'byte')}"
            )
        changed = confirmed(call, yes=yes, dry_run=dry_run)
        if changed:
            end_transaction(control, entry, state)
    call.terminal.report({**_document(entry), "changed": changed})


def ask_producer(control: ControlClient, entry: OpenTransaction) -> bool:
    """Let the broker ask a member of the producer group now; return whether there is one."""
    reply = control.request(Request.CHECK_TRANSACTION, {"tranStateTableOffset": str(entry.offset)})
    return reply.ext.get("asked") == "1"


def end_transaction(control: ControlClient, entry: OpenTransaction, state: int) -> None:
    """Let the broker commit or roll back.

    Raises:
        TransactionError: it cannot any more.
    """
    from shmq.client.transactions.half import end_command, end_fields
    from shmq.client.transactions.transaction import TxState

    try:
        control.ask(
            end_command(end_fields(entry.group, entry.offset, entry.log_position, TxState(state), entry.message_id))
        )
    except RemoteError as error:
        raise TransactionError(f"transaction {entry.message_id}: {error.remark}", hint="see: shmq tx list") from error


def open_transactions(control: ControlClient) -> OpenTransactions:
    """Return the open transactions, the oldest first."""
    return decode_body(control.request(Request.TRANSACTIONS).body, OpenTransactions)


def find_transaction(found: OpenTransactions, transaction: str) -> OpenTransaction:
    """Return one of them by its message id or offset.

    Raises:
        TransactionError: none is called so.
    """
    for entry in found.transactions:
        if transaction in (entry.message_id, str(entry.offset)):
            return entry
    raise TransactionError(f'no open transaction is called "{transaction}"', hint="they are in: shmq tx list")


def _document(entry: OpenTransaction) -> dict[str, Any]:
    return {
        "id": entry.message_id,
        "offset": entry.offset,
        "topic": entry.topic,
        "queue": entry.queue_id,
        "group": entry.group,
        "key": entry.key or None,
        "stored": iso_text(entry.store_ms),
        "checks": entry.checks,
        "body_bytes": entry.body_bytes,
        "local": entry.local,
    }
