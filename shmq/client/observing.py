"""Owns what watches a connection's sends and messages: nothing, RocketMQ's trace, OpenTelemetry's spans, or both.

It does not know what is noted (tracing, spans). A connection that nobody watches has no observer at all, and its
senders and readers are those of the core, without a Python frame around them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from shmq.client.link import Link
    from shmq.client.transport import MessageReader, MessageSender
    from shmq.shm.core import Message, Receipt

    Spans = bool | TracerProvider


class Observer(Protocol):
    """Notes what a connection does; any thread may call."""

    def traced(self, inner: MessageSender, group: str | None, host_of: Callable[[Receipt], str]) -> MessageSender:
        """Return a sender whose sends are noted."""

    def received(self, topic: str, group: str | None, messages: Sequence[Message], began_ns: int) -> None:
        """Note messages that a consumer was given; it asked at `began_ns` since the epoch."""

    def consuming(self, group: str | None, message: Message) -> AbstractContextManager[list[bool]]:
        """Note a listener's call; the block appends whether the message was consumed."""

    def start_over(self) -> None:
        """Begin anew in a forked child."""

    def close(self, timeout: float) -> None:
        """Bring out what was noted, for at most `timeout` seconds."""


class Receiver(Protocol):
    """A consumer, as far as an observer is told of it."""

    @property
    def topic(self) -> str:
        """The topic it reads."""

    @property
    def group(self) -> str | None:
        """Its group."""


def polled(reader: MessageReader, count_max: int, wait: float, observer: Observer, owner: Receiver) -> list[Message]:
    """Poll a reader, and let the observer note what came."""
    began_ns = time.time_ns()
    messages = reader.poll(count_max, wait)
    if messages:
        observer.received(owner.topic, owner.group, messages, began_ns)
    return messages


def noted(reader: MessageReader, observer: Observer, owner: Receiver) -> Iterator[Message]:
    """Yield what a reader yields, each noted by the observer."""
    for message in reader:
        observer.received(owner.topic, owner.group, (message,), time.time_ns())
        yield message


class Asked(NamedTuple):
    """What a connection was asked to note, for one that takes its place in another process."""

    trace: bool
    spans: bool


class Observers:
    """Several observers as one; the first is next to the broker."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)

    def traced(self, inner: MessageSender, group: str | None, host_of: Callable[[Receipt], str]) -> MessageSender:
        """Return a sender whose sends all of them note."""
        for observer in self.observers:
            inner = observer.traced(inner, group, host_of)
        return inner

    def received(self, topic: str, group: str | None, messages: Sequence[Message], began_ns: int) -> None:
        """Let all of them note it."""
        for observer in self.observers:
            observer.received(topic, group, messages, began_ns)

    @contextmanager
    def consuming(self, group: str | None, message: Message) -> Iterator[list[bool]]:
        """Let all of them note the call."""
        outcome: list[bool] = []
        with ExitStack() as open_things:
            told = [open_things.enter_context(observer.consuming(group, message)) for observer in self.observers]
            try:
                yield outcome
            finally:
                for each in told:
                    each += outcome

    def start_over(self) -> None:
        """Let all of them begin anew."""
        for observer in self.observers:
            observer.start_over()

    def close(self, timeout: float) -> None:
        """Close all of them."""
        for observer in self.observers:
            observer.close(timeout)


def observer_of(link: Link, *, trace: bool, spans: Spans) -> Observer | None:
    """Return what a connection was asked for, None for nothing.

    Raises:
        UsageError: spans are wanted, and OpenTelemetry is not installed.
    """
    observers: list[Observer] = []
    if trace:
        from shmq.client.tracing import tracer_of

        observers.append(tracer_of(link))
    if spans is not False:
        from shmq.client.spans import spans_of

        observers.append(spans_of(link, None if spans is True else spans))
    if len(observers) > 1:
        return Observers(observers)
    return observers[0] if observers else None


def asked_of(observer: Any) -> Asked:
    """Return what an observer of a connection, or None, stands for."""
    from shmq.client.tracing import Tracer

    each = observer.observers if isinstance(observer, Observers) else () if observer is None else (observer,)
    traces = sum(isinstance(one, Tracer) for one in each)
    return Asked(bool(traces), len(each) > traces)
