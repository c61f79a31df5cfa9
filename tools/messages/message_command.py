"""`shmq message`: show, find, trace, resend, verify single messages, by the ids and keys that mqadmin takes, too.

Everything goes through the public connection, so it is the same for the broker of this host and for a cluster. Nothing
is consumed.

    show, resend     one message, by offset message id or unique key; with its topic, or of any
    find             by key, time, tag, expression, or queue offset
    trace            what clients that trace said about a message, by its id or key
    verify           reads records again and compares their checksums; exit status 1 when one is damaged

Invariant: nothing is sent without --yes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from shmq.errors import UsageError
from shmq.figures.quantity import clock_text, count_text, plural
from shmq.message import TRACE_TOPIC
from shmq.protocol.system_topics.trace import Trace, decode_traces
from shmq.tools.command import Call, Group, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.completion import complete_topic
from shmq.tools.messages.lookup import find_message, names_a_topic, no_message
from shmq.tools.messages.text import and_more, body_of, message_document, render_pretty
from shmq.tools.terminal.output import Field
from shmq.words import sent_again

if TYPE_CHECKING:
    import shmq

message = Group("message", help="Show, find, trace, resend, verify single messages.")
_LIMIT = 100
_LIMIT_MAX = 10_000
_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{40}|[0-9A-Fa-f]{56}", re.ASCII)  # unique keys are 32 or 40 digits long
_TRACE_FIELDS: tuple[Field[Trace], ...] = (
    Field("time", lambda each: clock_text(each.time_ms)),
    Field("what", lambda each: each.kind),
    Field("group", lambda each: each.group or "–"),
    Field("topic", lambda each: each.topic or "–"),
    Field("ms", lambda each: str(each.cost_ms), right=True),
    Field("result", lambda each: "succeeded" if each.succeeded else "failed"),
)
_topic_and_id = click.argument("words", metavar="[TOPIC] ID", nargs=-1, required=True, shell_complete=complete_topic)


@message.command()
@_topic_and_id
@pass_call
def show(call: Call, words: tuple[str, ...]) -> None:
    """Show one message with everything that is stored of it; ID is an offset message id or a unique key.

    Without TOPIC it is looked for in all topics.
    """
    with call.connect() as mq:
        found = find_message(mq, *_topic_of(words))
        document = full_document(found)
        body = body_of(found)[0]
    if call.terminal.structured:
        call.terminal.document(document, rows=[document])
        return
    for name, value in document.items():
        if name not in ("body", "body_base64", "properties") and value not in (None, []):
            call.terminal.line(f"{name:<18} {value}")
    for name, text in sorted(found.properties.items()):
        call.terminal.line(f"  {name:<16} {text}")
    call.terminal.line()
    call.terminal.write(body + b"\n")


@message.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option("-k", "--key", metavar="KEY", help="One of the message's keys.")
@click.option("--since", metavar="TIME", help="Stored then or later: -1h, or an ISO time.")
@click.option("--until", metavar="TIME", help="Stored then or earlier.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--offset", type=click.IntRange(min=0), help="From this offset of the queue on.")
@click.option("-t", "--tag", "tags", metavar="TAGS", help='Only these: "fruit || veg".')
@click.option("--where", metavar="SQL92", help="Only what this expression over properties selects.")
@click.option("-n", "--limit", type=click.IntRange(1, _LIMIT_MAX), default=_LIMIT, help=f"At most so many.  [{_LIMIT}]")
@pass_call
def find(call: Call, /, topic: str, **wanted: Any) -> None:
    """Find messages of TOPIC, the oldest first, without consuming them."""
    with call.connect() as mq:
        messages = mq.browse(topic, **wanted)
        rows = [message_document(each) for each in messages]
        if call.terminal.structured:
            call.terminal.document({"topic": topic, "messages": rows, "cut": messages.is_cut}, rows=rows)
        else:
            for each in messages:
                call.terminal.write(render_pretty(each, escape=True))
            call.terminal.say(plural(len(messages), "message") + and_more(is_cut=messages.is_cut))
    if not messages:
        raise no_message(f"topic {topic} has no such message")


@message.command()
@click.argument("message_id", metavar="ID|KEY")
@pass_call
def trace(call: Call, message_id: str) -> None:
    """Tell what clients that trace have said about a message: sent, received, consumed, when and by whom."""
    with call.connect() as mq:
        ours = traces_of(mq, message_id)
    if not ours:
        raise no_message(f"no client has traced a message {message_id}")
    rows = [each._asdict() for each in ours]
    document = {"message_id": message_id, "traces": rows}
    call.terminal.answer(document, rows, text=lambda: call.terminal.listing(_TRACE_FIELDS, ours))


@message.command()
@_topic_and_id
@dry_run_option
@yes_option
@pass_call
def resend(call: Call, words: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Send one message to its topic again, as a new message with the same body, tag, keys and properties.

    Without TOPIC it is looked for in all topics.
    """
    with call.connect() as mq:
        found = find_message(mq, *_topic_of(words))
        document: dict[str, Any] = {"topic": found.topic, "message_id": found.message_id, "message_id_new": None}
        if not call.terminal.structured:
            call.terminal.write(render_pretty(found, escape=True))
        if confirmed(call, yes=yes, dry_run=dry_run):
            receipt = send_again(mq, found)
            document["message_id_new"] = receipt.message_id
            call.terminal.say(f"sent again as {receipt.message_id}")
    call.terminal.report(document, rows=[document])


@message.command()
@click.argument("words", metavar="[TOPIC] [ID]", nargs=-1, required=True, shell_complete=complete_topic)
@click.option("--since", metavar="TIME", help="Stored then or later: -1h, or an ISO time.")
@click.option("--until", metavar="TIME", help="Stored then or earlier.")
@click.option("-n", "--limit", type=click.IntRange(1, _LIMIT_MAX), default=_LIMIT_MAX, help="At most so many.  [10000]")
@pass_call
def verify(call: Call, /, words: tuple[str, ...], **wanted: Any) -> None:
    """Compare the checksums of one message, or of TOPIC's messages of a time.

    A single word that is no topic is an ID, which is looked for in all topics.
    """
    with call.connect() as mq:
        if len(words) == 1 and not _is_id(mq, words[0]):
            found = mq.browse(words[0], **wanted)
            topic, messages, is_cut = words[0], list(found), found.is_cut
        else:
            messages, is_cut = [find_message(mq, *_topic_of(words))], False
            topic = messages[0].topic
        damaged = [each for each in messages if not each.verify()]
        rows = [message_document(each) for each in damaged]
    document = {"topic": topic, "verified": len(messages), "damaged": rows, "cut": is_cut}
    if call.terminal.structured:
        call.terminal.document(document, rows=rows)
    else:
        for each in damaged:
            call.terminal.line(f"damaged: queue {each.queue_id} offset {each.offset}, {each.offset_message_id}")
        told = f"{plural(len(messages), 'message')} verified, {count_text(len(damaged))} damaged"
        call.terminal.say(told + and_more(is_cut=is_cut))
    if damaged:
        raise click.exceptions.Exit(1)


def _topic_of(words: tuple[str, ...]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise UsageError(f"{len(words)} words, where a topic and an id are expected", hint="[TOPIC] ID")
    return (None, words[0]) if len(words) == 1 else (words[0], words[1])


def _is_id(mq: shmq.Connection, word: str) -> bool:
    return bool(_ID.fullmatch(word)) and not names_a_topic(mq, word)


def _is_about(each: Trace, text: str) -> bool:
    return text == each.message_id or text in each.keys.split(" ")


def traces_of(mq: shmq.Connection, message_id: str) -> list[Trace]:
    """Return what clients have said about the message of an id or key, the oldest first."""
    stored = mq.browse(TRACE_TOPIC, key=message_id, limit=_LIMIT_MAX)
    traces = [each for record in stored for each in decode_traces(record.body.decode(errors="replace"))]
    return sorted((each for each in traces if _is_about(each, message_id)), key=lambda each: each.time_ms)


def send_again(mq: shmq.Connection, found: shmq.Message) -> shmq.Receipt:
    """Send a stored message to its topic again, as a new message with the same body, tag, keys and properties."""
    return mq.send(
        found.topic,
        found.body,
        **sent_again(found.properties),
        flag=found.flag,
    )


def full_document(found: shmq.Message) -> dict[str, Any]:
    """Return a message as JSON carries it, with all that is stored of it."""
    return {
        **message_document(found),
        "offset_message_id": found.offset_message_id,
        "unique_key": found.properties.get("UNIQ_KEY"),
        "log_position": found.log_position,
        "record_bytes": found.record_bytes,
        "sys_flag": found.sys_flag,
        "flag": found.flag,
        "intact": found.verify(),
    }
