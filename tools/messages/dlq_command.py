"""`shmq dlq`: list, show, resend, export, purge what groups gave up on.

Everything goes through the public connection, so it is the same for the broker of this host and for a cluster.

Invariant: nothing is sent or deleted without --yes, and what is done is what was shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shmq.client.administration.admin import DEAD_LETTERS_MAX
from shmq.errors import MessageNotFound, ShmqError
from shmq.figures.quantity import clock_text, count_text, plural
from shmq.message import DEAD_LETTER_PREFIX, check_group, dead_letter_topic
from shmq.tools.broker.view import group_not_found
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_group
from shmq.tools.messages.text import and_more, body_of, message_document
from shmq.tools.terminal.output import Field, printable

if TYPE_CHECKING:
    import shmq
    from shmq.client.administration.admin import DeadLetter
    from shmq.client.search import Found

_BODY_SHOWN = 40

dlq = Group("dlq", help="List, show, resend, export, purge dead letters.")
_FIELDS: tuple[Field[DeadLetter], ...] = (
    Field("offset", lambda letter: str(letter.message.offset), right=True),
    Field("stored", lambda letter: clock_text(letter.message.store_ms)),
    Field("topic", lambda letter: letter.origin_topic or "–"),
    Field("tries", lambda letter: str(letter.message.reconsume_times), right=True),
    Field("key", lambda letter: printable((letter.message.key or "–").encode())),
    Field("reason", lambda letter: printable((letter.reason or "–").encode())),
    Field("body", lambda letter: printable(body_of(letter.message)[0][:_BODY_SHOWN])),
)
_GROUP_FIELDS: tuple[Field[dict[str, Any]], ...] = (
    Field("group", lambda row: row["group"]),
    Field("messages", lambda row: count_text(row["messages"]), right=True),
)
_limit_option = click.option(
    "-n", "--limit", type=click.IntRange(1, DEAD_LETTERS_MAX), default=1000, help="At most so many.  [1000]"
)
_offset_option = click.option(
    "--offset", "offsets", type=click.IntRange(min=0), multiple=True, help="Only this one; may be repeated."
)


@dlq.command("list")
@pass_call
def list_(call: Call) -> None:
    """List the groups that have dead letters."""
    with call.connect() as mq:
        rows: list[dict[str, Any]] = [
            {"group": name.removeprefix(DEAD_LETTER_PREFIX), "topic": name, "messages": info.messages}
            for name, info in sorted(mq.admin.topics.items())
            if name.startswith(DEAD_LETTER_PREFIX)
        ]
    call.terminal.answer({"groups": rows}, rows, text=lambda: call.terminal.listing(_GROUP_FIELDS, rows))


@dlq.command()
@click.argument("group", shell_complete=complete_group)
@_limit_option
@pass_call
def show(call: Call, group: str, limit: int) -> None:
    """Show the dead letters of GROUP, the oldest first, with why they are there."""
    with call.connect() as mq:
        letters = letters_of(mq, group, limit)
        rows = [letter_document(letter) for letter in letters]
    if call.terminal.structured:
        call.terminal.document({"group": group, "letters": rows, "cut": letters.is_cut}, rows=rows)
        return
    call.terminal.listing(_FIELDS, letters)
    told = f"{plural(len(letters), 'dead letter')} of group {group}"
    call.terminal.say(told + and_more(is_cut=letters.is_cut))


@dlq.command()
@click.argument("group", shell_complete=complete_group)
@_limit_option
@pass_call
def export(call: Call, group: str, limit: int) -> None:
    """Write the dead letters of GROUP to stdout, one JSON object a line; with --json one document."""
    with call.connect() as mq:
        letters = letters_of(mq, group, limit)
        rows = [letter_document(letter) for letter in letters]
    if letters.is_cut:
        call.terminal.say(plural(len(letters), "dead letter") + and_more(is_cut=True))
    if call.style.form != "json":
        call.style.form = "jsonl"
    call.terminal.document({"group": group, "letters": rows, "cut": letters.is_cut}, rows=rows)


@dlq.command()
@click.argument("group", shell_complete=complete_group)
@_offset_option
@_limit_option
@dry_run_option
@yes_option
@pass_call
def resend(call: Call, group: str, offsets: tuple[int, ...], limit: int, dry_run: bool, yes: bool) -> None:
    """Send the dead letters of GROUP to their topics again, as new messages; they stay where they are."""
    with call.connect() as mq:
        letters = chosen_letters(mq, group, offsets, limit)
        rows = [{**letter_document(letter), "sent": yes and not dry_run} for letter in letters]
        if not call.terminal.structured:
            call.terminal.listing(_FIELDS, letters)
            verb = "will" if yes and not dry_run else "would"
            told = f"{verb} send {plural(len(letters), 'message')} again"
            call.terminal.say(told + and_more(is_cut=letters.is_cut))
        if confirmed(call, yes=yes, dry_run=dry_run):
            for letter, row in zip(letters, rows, strict=True):
                try:
                    row["message_id_new"] = letter.resend().message_id
                except ShmqError as error:
                    done = f"the letters before offset {letter.message.offset} are sent"
                    error.hint = f"{done}: name the others, --offset N; {error.hint}"
                    raise
    call.terminal.report({"group": group, "letters": rows, "cut": letters.is_cut}, rows=rows)


@dlq.command()
@click.argument("group", shell_complete=complete_group)
@dry_run_option
@yes_option
@pass_call
def purge(call: Call, group: str, dry_run: bool, yes: bool) -> None:
    """Delete all dead letters of GROUP."""
    topic = dead_letter_topic(check_group(group))
    with call.connect() as mq:
        info = mq.admin.topics.get(topic)
        if info is None:
            check_group_exists(mq, group)
        count = info.messages if info is not None else 0
        changed = yes and not dry_run and info is not None
        if not call.terminal.structured:
            call.terminal.say(
                f"{'will' if changed else 'would'} delete {plural(count, 'dead letter')} of group {group}"
            )
        if confirmed(call, yes=yes, dry_run=dry_run) and info is not None:
            mq.admin.delete_topic(topic)
    call.terminal.report({"group": group, "changed": changed, "messages": count})


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as JSON carries it: a message, and where it came from."""
    return {
        **message_document(letter.message),
        "origin_topic": letter.origin_topic or None,
        "origin_message_id": letter.origin_message_id or None,
        "reason": letter.reason or None,
    }


def check_group_exists(mq: shmq.Connection, group: str) -> None:
    """Refuse a group that does not exist: no dead letters of a misspelt name are no answer.

    Raises:
        GroupNotFound: there is none of this name.
    """
    names = list(mq.admin.groups)
    if group not in names:
        raise group_not_found(group, mq.broker_name, names)


def letters_of(mq: shmq.Connection, group: str, limit: int) -> Found[DeadLetter]:
    """Return the dead letters of a group, the oldest first.

    Raises:
        GroupNotFound: there is no such group.
    """
    letters = mq.admin.dlq(group, limit=limit)
    if not letters and dead_letter_topic(group) not in mq.admin.topics:
        check_group_exists(mq, group)
    return letters


def chosen_letters(mq: shmq.Connection, group: str, offsets: tuple[int, ...], limit: int) -> Found[DeadLetter]:
    """Return the dead letters of these offsets; of none, all.

    Raises:
        MessageNotFound: a group has no such dead letter.
        GroupNotFound: there is no such group.
    """
    letters = letters_of(mq, group, limit)
    unknown = sorted(set(offsets) - {letter.message.offset for letter in letters})
    if unknown:
        raise MessageNotFound(f'group "{group}" has no dead letter {unknown[0]}', hint=f"see: shmq dlq show {group}")
    if not offsets:
        return letters
    letters[:] = [letter for letter in letters if letter.message.offset in offsets]
    letters.is_cut = False
    return letters
