"""Owns what watches a connection's sends and messages: nothing, RocketMQ's trace, OpenTelemetry's spans, or both.

It does not know what is noted (tracing, spans). A connection that nobody watches has neither: its senders and readers
are those of the core, without a Python frame around them, and OpenTelemetry is not imported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from shmq.client.link import Link
    from shmq.client.observers.spans import Spans
    from shmq.client.observers.trace import Tracer
    from shmq.client.wire import MessageReader, MessageSender, Session
    from shmq.shm.core import Message

    SpansWanted = bool | TracerProvider


class Receiver(Protocol):
    """A consumer, as far as watchers are told of it."""

    _connection: Link
    _traces_what_it_hands: bool

    @property
    def topic(self) -> str:
        """The topic it reads."""

    @property
    def group(self) -> str | None:
        """Its group."""


class Call:
    """What came of a listener's call."""

    __slots__ = ("consumed", "error")

    def __init__(self) -> None:
        self.consumed: bool | None = None
        self.error: BaseException | None = None


def watchers_of(link: Link, *, trace: bool, spans: SpansWanted) -> tuple[Tracer | None, Spans | None]:
    """Return what a connection was asked for.

    Raises:
        UsageError: spans are wanted, and OpenTelemetry is not installed.
    """
    tracer = made = None
    if trace:
        from shmq.client.observers.trace import tracer_of

        tracer = tracer_of(link)
    if spans is not False:
        from shmq.client.observers.spans import Spans

        made = Spans(None if spans is True else spans)
    return tracer, made


def is_watched(link: Link) -> bool:
    """Whether anything watches a connection."""
    return link._tracer is not None or link._spans is not None


def watched_sender(link: Link, inner: MessageSender, group: str | None, session: Session) -> MessageSender:
    """Return a sender whose sends are noted, or the same one when nobody watches; the trace is next to the broker."""
    if link._tracer is not None:
        inner = link._tracer.traced(inner, group, session.host_of)
    if link._spans is not None:
        inner = link._spans.sender(inner, session.host_of)
    return inner


def polled(consumer: Receiver, reader: MessageReader, count_max: int, wait: float) -> list[Message]:
    """Poll a reader, and note what came."""
    if not is_watched(consumer._connection):
        return reader.poll(count_max, wait)
    began_ns = time.time_ns()
    return _handed(consumer, reader.poll(count_max, wait), began_ns)


def iterated(consumer: Receiver, messages: Iterator[Message]) -> Iterator[Message]:
    """Return an iterator that notes each message as it is handed out, or the same one when nobody watches."""
    if not is_watched(consumer._connection):
        return messages
    return (_handed(consumer, [message], time.time_ns())[0] for message in messages)


@contextmanager
def called(link: Link, group: str | None, message: Message) -> Iterator[Call]:
    """Note a listener's call; the block says what came of it."""
    call = Call()
    with ExitStack() as watching:
        outcome = None if link._tracer is None else watching.enter_context(link._tracer.consuming(group, message))
        if link._spans is not None:
            watching.enter_context(link._spans.calling(group, message, call))
        yield call
        if outcome is not None:
            outcome.append(call.consumed is True)


def _handed(consumer: Receiver, messages: list[Message], began_ns: int) -> list[Message]:
    link = consumer._connection
    if messages and link._tracer is not None and consumer._traces_what_it_hands:
        link._tracer.handed(consumer.group, messages)
    if messages and link._spans is not None:
        link._spans.received(consumer.topic, consumer.group, messages, began_ns)
    return messages
