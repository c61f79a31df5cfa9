"""`shmq consume` and `shmq tail`: messages to stdout, or to a command for each.

`source.py` says where messages come from, `text.py` how they look.

    without --group   reads everything from the beginning (-o), stores no offset, acknowledges nothing
    with --group      is a member; a message is acknowledged after it was written, or after --exec succeeded

Invariants:
1. A message is acknowledged only after its bytes were handed to the reader of stdout; killed before, it comes again.
2. stdout carries messages only; in the body form exactly one line for each.
3. Ctrl-C comes between deliveries: what was written is settled. A second Ctrl-C does not wait for a stuck reader.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from shmq.client.spec import EVERYTHING, Wanted, wanted_of
from shmq.errors import RequestTimeout, ShmqError, TopicNotFound, UsageError
from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural
from shmq.tools.broker.memory import open_memory
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.completion import complete_group, complete_topic
from shmq.tools.messages.expected_topic import create_option, expect_topic
from shmq.tools.messages.source import BATCH, Following, History, Membership, Merged, Source, last_count, starts_of
from shmq.tools.messages.text import (
    UNREADABLE,
    Render,
    environment_of,
    format_renderer,
    message_document,
    render_body,
    render_json_line,
    render_pretty,
)
from shmq.tools.terminal.interrupt import interrupt_deferred, interrupts_kept, raise_dropped
from shmq.tools.terminal.output import csv_text, json_line

if TYPE_CHECKING:
    from shmq.shm.core import Message

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

WAIT = 0.5  # seconds between two looks at the clock and at signals while nothing comes
WAIT_AT_END = 0.1  # the same when the end is what is waited for


@dataclass
class Wish:
    """The options of the call."""

    topic: str
    group: str | None = None
    wanted: Wanted = EVERYTHING
    begin: str = "begin"
    count: int | None = None
    exit_at_end: bool = False
    exit_if_empty: bool = False
    create: bool = False  # the topic is made although another has nearly its name
    format: str | None = None
    execute: str | None = None


class Delivery:
    """Hands messages on, and tells their source what became of them."""

    def __init__(self, call: Call, wish: Wish) -> None:
        self.count = 0
        self.failed = 0
        self._call = call
        self._wish = wish
        self._render = _renderer(call, wish)

    @property
    def wanted(self) -> int:
        """Messages that may still be delivered, at most one batch."""
        return BATCH if self._wish.count is None else min(BATCH, self._wish.count - self.count)

    def deliver(self, messages: Sequence[Message], source: Source) -> None:
        """Write all messages, then settle them; or run the command for each."""
        if self._wish.execute is not None:
            for message in messages:
                with interrupt_deferred():
                    self._execute(self._wish.execute, message, source)
                    self.count += 1
            return
        with interrupt_deferred():
            rendered: list[tuple[Message, bytes]] = []
            for message in messages:
                with self._giving_back(message, source):
                    rendered.append((message, self._render(message)))
            self._call.terminal.write(b"".join(text for _, text in rendered))
            self.count += len(messages)
            source.settle([message for message, _ in rendered])

    def finish(self) -> None:
        """Complete the output; also after an interruption, so that what is there can be read."""
        if isinstance(self._render, _DocumentRenderer):
            self._call.terminal.write(self._render.end(self.count))

    def begun(self) -> bool:
        """Whether something was written that has to be completed."""
        return self.count > 0

    def _execute(self, command: str, message: Message, source: Source) -> None:
        with self._giving_back(message, source):
            result = subprocess.run(command, shell=True, input=message.body, env=environment_of(message), check=False)
            if result.returncode == 0:
                source.settle([message])
            else:
                self._give_back(message, source, f"the command ended with {result.returncode}")

    @contextmanager
    def _giving_back(self, message: Message, source: Source) -> Iterator[None]:
        """Give a message back whose body cannot be read, and go on: it must not be the end of every run."""
        try:
            yield
        except UNREADABLE as error:
            self._give_back(message, source, str(error))

    def _give_back(self, message: Message, source: Source, why: str) -> None:
        self.failed += 1
        again = f"; it comes again after attempt {message.attempt}" if source.give_back(message) else ""
        self._call.terminal.say(f"q{message.queue_id}@{message.offset}: {why}{again}")


def _renderer(call: Call, wish: Wish) -> Render:
    if call.style.form == "jsonl":
        return render_json_line
    if call.style.form == "json":
        return _DocumentRenderer(wish)
    if call.style.form == "csv":
        return _CsvRenderer()
    if wish.format is not None:
        return format_renderer(wish.format)
    if call.terminal.on_terminal() or call.style.verbose:
        return partial(render_pretty, escape=call.terminal.on_terminal())
    return render_body


class _CsvRenderer:
    """A line of CSV for each message; a body that is no UTF-8 stands in a column of its own."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def __call__(self, message: Message) -> bytes:
        document, head = message_document(message), not self._names
        self._names = self._names or [*dict.fromkeys([*document, "body_base64", "body_error"])]
        return csv_text(self._names, [document], head=head).encode()


class _DocumentRenderer:
    """One JSON document of all messages, written as they come."""

    def __init__(self, wish: Wish) -> None:
        self._before = f'{{"topic":{json_line(wish.topic)},"group":{json_line(wish.group)},"messages":[\n'

    def __call__(self, message: Message) -> bytes:
        text, self._before = self._before + json_line(message_document(message)), ",\n"
        return text.encode()

    def end(self, count: int) -> bytes:
        """Return what completes the document."""
        head = "" if self._before == ",\n" else self._before
        return f'{head}\n],"count":{count}}}\n'.encode()


def run(call: Call, wish: Wish) -> int:
    """Deliver what was asked for and return the exit status."""
    if wish.format is not None and call.terminal.structured:
        raise UsageError("both a format and JSON were asked for", hint="give one of --format, --json and --jsonl")
    delivery = Delivery(call, wish)
    consume_from = _consume_topic if wish.group is None else _consume_group
    try:
        with interrupts_kept(), ExitStack() as stack:
            consume_from(call, wish, delivery, stack)
    except KeyboardInterrupt:
        delivery.finish()
        raise
    except ShmqError:
        if delivery.begun():
            delivery.finish()
        raise
    delivery.finish()
    call.terminal.note(plural(delivery.count, "message"))
    if wish.exit_if_empty and not delivery.count:
        call.terminal.say("nothing to consume")
        return ExitCode.NO
    return ExitCode.NO if delivery.failed else ExitCode.DONE


def _consume_group(call: Call, wish: Wish, delivery: Delivery, stack: ExitStack) -> None:
    connection = stack.enter_context(call.connect())
    expect_topic(call, connection, wish.topic, must_exist=wish.exit_at_end, create=wish.create)
    subscription = connection.subscribe(wish.topic, group=wish.group, start=wish.begin, **_selection(wish))
    _pump(call, wish, delivery, Membership(stack.enter_context(subscription)))


def _consume_topic(call: Call, wish: Wish, delivery: Delivery, stack: ExitStack) -> None:
    if call.is_remote:
        _consume_cluster(call, wish, delivery, stack)
        return
    offsets = _deliver_history(call, wish, delivery)
    if wish.exit_at_end or delivery.wanted == 0:
        return
    if call.terminal.on_terminal():
        call.terminal.say("waiting for more, Ctrl-C ends")
    connection = stack.enter_context(call.connect())
    expect_topic(call, connection, wish.topic, must_exist=wish.exit_at_end, create=wish.create)
    consumer = stack.enter_context(connection.pull_consumer(wish.topic, **_selection(wish)))
    _pump(call, wish, delivery, Following(consumer, offsets))


def _consume_cluster(call: Call, wish: Wish, delivery: Delivery, stack: ExitStack) -> None:
    """The same over TCP: one reader for what is stored and what comes."""
    from shmq.tools.broker.cluster import Cluster

    connection = stack.enter_context(call.connect())
    if wish.create:
        expect_topic(call, connection, wish.topic, must_exist=wish.exit_at_end, create=True)
    cluster = Cluster(connection)
    consumer = stack.enter_context(connection.pull_consumer(wish.topic, **_selection(wish)))
    starts = starts_of(cluster, cluster.topic(wish.topic), wish.begin)
    _pump(call, wish, delivery, Merged(consumer, starts, last_count(wish.begin)))


def _deliver_history(call: Call, wish: Wish, delivery: Delivery) -> dict[int, int]:
    """Deliver what is stored already; return where each queue goes on."""
    with open_memory(call.url) as memory:
        try:
            view = memory.topic(wish.topic)
        except TopicNotFound:
            if wish.exit_at_end:
                raise
            return {}  # following creates it where the broker allows that; `expect_topic` says so
        with closing(History(memory, view, starts_of(memory, view, wish.begin), wish.wanted)) as history:
            last = last_count(wish.begin)
            if last is not None:
                history.keep_last(last)
            while delivery.wanted and (batch := history.take(delivery.wanted)):
                delivery.deliver(batch, history)
            return history.offsets


def _pump(call: Call, wish: Wish, delivery: Delivery, source: Source) -> None:
    """Deliver until enough came, the end was reached, or nothing came for too long."""
    last = time.monotonic()
    while delivery.wanted:
        raise_dropped()
        messages = source.take(delivery.wanted, WAIT_AT_END if wish.exit_at_end else WAIT)
        if messages:
            delivery.deliver(messages, source)
            last = time.monotonic()
        elif wish.exit_at_end and source.at_end():
            return
        elif call.timeout is not None and time.monotonic() - last >= call.timeout:
            raise RequestTimeout(
                f'no message of topic "{wish.topic}" came within {call.timeout:g} s', hint="wait longer with --timeout"
            )


def _selection(wish: Wish) -> dict[str, Any]:
    return {"tags": list(wish.wanted.tags) or None, "where": wish.wanted.where}


def _wish(tags: str | None, where: str | None, **given: Any) -> Wish:
    return Wish(wanted=wanted_of(tags, where), **given)


def _options(function: Decorated) -> Decorated:
    """Add the options that consume and tail share."""
    options = [
        click.option("-t", "--tag", "tags", metavar="TAGS", help="Only these: 'fruit || veg'."),
        click.option("-w", "--where", metavar="SQL92", help="Only these: \"region = 'eu' AND qty > 5\"."),
        click.option("-f", "--format", metavar="TEXT", help=r"As kcat: %t %p %o %k %s %T %h, \n \t."),
        click.option("-e", "--exit", "exit_at_end", is_flag=True, help="End at the last message, do not wait."),
        create_option,
        click.option("--exec", "execute", metavar="COMMAND", help="Run it for each message, the body on its stdin."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topic)
@click.option("-g", "--group", shell_complete=complete_group, help="Be a member of this group and acknowledge.")
@click.option(
    "-o", "--offset", "begin", default="begin", metavar="PLACE",
    help="Where to begin: begin, end, an offset, -100 (the last), -2h, a time. With -g: for a new group.",
)  # fmt: skip
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--exit-if-empty", is_flag=True, help="As -e, and exit with 1 if there was nothing.")
@_options
@pass_call
def consume(call: Call, /, **given: Any) -> int:
    """Print the messages of TOPIC.

    Without a group everything stored is printed, in the order of the log, and nothing is marked as consumed; then it
    waits for more. With -g it is a member of the group: each message goes to one member, and is acknowledged after it
    was printed.
    """
    wish = _wish(**given)
    wish.exit_at_end |= wish.exit_if_empty
    if wish.group is not None and last_count(wish.begin) is not None:
        raise UsageError("a group cannot begin at the last messages", hint="use -o end, or read without -g")
    return run(call, wish)


@click.command(cls=Command)
@click.argument("topic", shell_complete=complete_topic)
@click.option("-n", "--lines", type=click.IntRange(min=0), default=10, show_default=True, help="Begin with the last N.")
@_options
@pass_call
def tail(call: Call, /, lines: int, **given: Any) -> int:
    """Print the last messages of TOPIC and those that come.

    No group, no offsets moved.
    """
    return run(call, _wish(begin=f"-{lines}", **given))
