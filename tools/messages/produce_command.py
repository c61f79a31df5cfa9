"""`shmq produce`: one argument, one file, or every line of a stream becomes a message.

Each read of the stream is sent at once, so `tail -f log | shmq produce logs` is live. After any failure the command
says how many lines are stored, so that the rest can be sent again from there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from shmq.errors import UsageError
from shmq.figures.quantity import rate_text
from shmq.tools.command import Call, Command, Content, pass_call
from shmq.tools.completion import complete_topic
from shmq.tools.messages.expected_topic import suggest_topic
from shmq.tools.messages.sender import Attributes, Sender, Stored
from shmq.tools.messages.text import unescape
from shmq.tools.terminal.line_splitter import LineSplitter
from shmq.tools.terminal.standard_input import stdin_part

READ_BYTES = 256 << 10


def _properties(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in value]
    for name, separator, _ in pairs:
        if not separator or not name:
            raise click.BadParameter(f"{name!r} is not name=value", ctx=ctx, param=param)
    return {name: text for name, _, text in pairs}


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("body", type=Content(), required=False)
@click.option("--tag", metavar="TAG", help="Tag of every message, for consumers that filter.")
@click.option("--key", metavar="KEY", help="Key of every message; {n} is the line number.")
@click.option(
    "-P", "--property", "properties", multiple=True, callback=_properties, metavar="NAME=VALUE",
    help="A property of every message; {n} is the line number.",
)  # fmt: skip
@click.option("--message-group", metavar="NAME", help="Keep messages of this name in order, in one queue.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Store into this queue only.")
@click.option(
    "--file", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, readable=True),
    help="The whole file is one message; may be given several times.",
)  # fmt: skip
@click.option("--delimiter", metavar="TEXT", help=r"What ends a message in a stream.  [\n]")
@click.option("-0", "--null", is_flag=True, help="NUL ends a message, as find -print0 writes.")
@pass_call
def produce(
    call: Call,
    /,
    topic: str,
    body: bytes | None,
    files: tuple[str, ...],
    delimiter: str | None,
    null: bool,
    **given: Any,
) -> None:
    """Store messages in TOPIC.

    BODY is one message. Without it, or with -, every line of standard input is one.
    """
    if sum((body not in (None, b"-"), bool(files))) > 1 or (body == b"-" and files):
        raise UsageError("both a body and --file were given", hint="send them with two calls")
    if delimiter is not None and null:
        raise UsageError("both --delimiter and -0 were given", hint="give one of them")
    ends = b"\0" if null else unescape(delimiter) if delimiter is not None else b"\n"
    attributes = Attributes(**given)
    with call.connect() as connection, connection.producer() as producer:
        suggest_topic(call, connection, topic)
        sender = Sender(producer, topic, attributes, call)
        try:
            if files:
                for name in files:
                    sender.send([_content(name)])
            elif body is not None and body != b"-":
                sender.send([body])
            else:
                _send_stream(sender, call, ends)
        finally:
            _summarise(sender.stored, call, topic)


def _content(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


def _send_stream(sender: Sender, call: Call, delimiter: bytes) -> None:
    from shmq.shm.core import BODY_BYTES_MAX

    if call.terminal.on_terminal(sys.stdin):
        call.terminal.say("one message a line, Ctrl-D ends")
    splitter = LineSplitter(delimiter, line_bytes_max=BODY_BYTES_MAX)
    with _progress(call) as show:
        # What is there, not what a full buffer would hold: a slow stream is sent as it comes.
        while piece := stdin_part(READ_BYTES):
            sender.send(splitter.feed(piece))
            show(sender.stored.count)
        sender.send(splitter.finish())


def _summarise(stored: Stored, call: Call, topic: str) -> None:
    failed = sys.exc_info()[0] is not None
    if call.style.form == "json":
        call.terminal.document(stored.document(topic))
    elif stored.count or not failed:
        call.terminal.say(stored.sentence())
        if failed:
            call.terminal.say(f"message {stored.count + 1} and what follows it are not stored")


@contextmanager
def _progress(call: Call) -> Iterator[Callable[[int], None]]:
    """Give a function that shows how many lines are stored; it draws on terminals only."""
    if not call.terminal.wants_progress() or call.terminal.on_terminal(sys.stdin):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    started = time.monotonic()
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True, no_color=not call.terminal.colored(sys.stderr))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(count: int) -> None:
            rate = count / max(time.monotonic() - started, 1e-3)
            bar.update(task, description=f"{count:,} msgs · {rate_text(rate)} msg/s")

        yield show
