"""Watches a connection's sends and messages: RocketMQ's trace, OpenTelemetry's spans, or both.

A connection without tracing has None instead: its senders and readers are those of the core, without a Python frame
around them, and OpenTelemetry is not imported. All that can be watched goes through `Observer`:

    sender      sends                          calling      a listener's call, and what came of it
    handed      messages handed out            asking       a request and its reply
    damaged     a message that is left out     checked      the answer to a broker's question about a transaction
    begin       a transaction's first half
"""

from __future__ import annotations

import contextvars
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from shmq.client.kinds import wrong_kind
from shmq.errors import DamagedMessage

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from shmq.client.observers.spans import Spans
    from shmq.client.observers.trace import Tracer, TransactionTrace
    from shmq.client.wire import MessageSender, MessageSource
    from shmq.shm.core import Message, Receipt

    SpansWanted = bool | TracerProvider


class Receiver(Protocol):
    """The part of a consumer that observers use."""

    _traces_what_it_hands: bool

    @property
    def topic(self) -> str:
        """The topic it reads."""

    @property
    def group(self) -> str | None:
        """Its group."""


class Call:
    """The outcome of a listener's call."""

    __slots__ = ("consumed", "error")

    def __init__(self) -> None:
        self.consumed: bool | None = None
        self.error: BaseException | None = None


class Observer:
    """Watches one connection; any thread may call. Made by `observer_of`."""

    def __init__(self, tracer: Tracer | None, spans: Spans | None) -> None:
        self._tracer = tracer
        self.spans = spans

    @property
    def traces(self) -> bool:
        """Whether it writes RocketMQ's trace."""
        return self._tracer is not None

    # -- sending
    def sender(self, inner: MessageSender, group: str | None, host_of: Callable[[Receipt], str]) -> MessageSender:
        """Return a sender whose sends are noted; the trace is next to the broker.

        Args:
            host_of: where a broker stored what a receipt is for, as "host:port".
        """
        if self._tracer is not None:
            inner = self._tracer.sender(inner, group, host_of)
        if self.spans is not None:
            inner = self.spans.sender(inner, host_of)
        return inner

    def bound(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return a call for another thread that belongs to the span which is current here."""
        return call if self.spans is None else functools.partial(contextvars.copy_context().run, call)

    # -- receiving
    def handed(self, receiver: Receiver, messages: Sequence[Message], began_ns: int) -> None:
        """Note that a consumer hands messages out which it has waited for since `began_ns`."""
        if not messages:
            return
        if self._tracer is not None and receiver._traces_what_it_hands:
            self._tracer.handed(receiver.group, messages)
        if self.spans is not None:
            self.spans.received(receiver.topic, receiver.group, messages, began_ns)

    def damaged(self, receiver: Receiver, error: DamagedMessage, began_ns: int) -> None:
        """Note a damaged message that a consumer left out and reported."""
        if self._tracer is not None:
            self._tracer.damaged(receiver.group, error)
        if self.spans is not None:
            self.spans.damaged(receiver.topic, receiver.group, error, began_ns)

    @contextmanager
    def calling(self, group: str | None, message: Message) -> Iterator[Call]:
        """Note a listener's call; the block says what came of it."""
        call = Call()
        with ExitStack() as watching:
            outcome = None if self._tracer is None else watching.enter_context(self._tracer.consuming(group, message))
            if self.spans is not None:
                watching.enter_context(self.spans.calling(group, message, call))
            yield call
            if outcome is not None:
                outcome.append(call.consumed is True)

    # -- requests
    def asking(self, topic: str, body: Any, arguments: dict[str, Any]) -> AbstractContextManager[dict[str, Any]]:
        """Note a request and the wait for its reply, which the block is; it gets the arguments to send with."""
        return nullcontext(arguments) if self.spans is None else self.spans.requesting(topic, body, arguments)

    # -- transactions
    def begin(
        self, begin: Callable[..., Any], group: str, topic: str, body: Any, timeout: float, arguments: dict[str, Any]
    ) -> tuple[Any, TransactionTrace | None]:
        """Store the first half of a transaction with `begin`; return it, and the trace that notes its end."""
        if self.spans is not None:
            begin = self.spans.beginning(begin)
        if self._tracer is None:
            return begin(group, topic, body, timeout, **arguments), None
        return self._tracer.begin(begin, group, topic, body, timeout, arguments)

    def checked(self, group: str, message: Message, state: int) -> None:
        """Note what was answered to a broker's question about a transaction."""
        if self._tracer is not None:
            self._tracer.checked(group, message, state)

    # -- life
    def start_over(self) -> None:
        """In a forked child: what waits to be stored is the parent's."""
        if self._tracer is not None:
            self._tracer.start_over()

    def close(self, timeout: float) -> None:
        """Store what waits, for at most `timeout` seconds."""
        if self._tracer is not None:
            self._tracer.close(timeout)


def observer_of(store: Callable[[bytes, Sequence[str]], None], *, trace: bool, spans: SpansWanted) -> Observer | None:
    """Return the observer a connection was opened with; None without tracing.

    Args:
        store: stores one message of the trace with its keys.

    Raises:
        UsageError: spans are wanted, and OpenTelemetry is not installed; or `spans` is no provider.
    """
    if not isinstance(trace, bool | None):
        raise wrong_kind("trace", trace, "True or False", "trace=True")
    tracer = made = None
    if trace:
        from shmq.client.observers.trace import Tracer

        tracer = Tracer(store)
    if not isinstance(spans, bool | None) and not hasattr(spans, "get_tracer"):
        raise wrong_kind("spans", spans, "True, False, or a tracer provider of OpenTelemetry", "spans=True")
    if spans is not False:
        from shmq.client.observers.spans import Spans

        made = Spans(None if spans is True else spans)
    return None if tracer is None and made is None else Observer(tracer, made)


# ---- for consumers ---------------------------------------------------------------------------------------------------


def polled(
    observer: Observer | None, receiver: Receiver, reader: MessageSource, count_max: int, wait: float
) -> list[Message]:
    """Poll a reader, and note what came, or could not."""
    if observer is None:
        return reader.poll(count_max, wait)
    began_ns = time.time_ns()
    try:
        messages = reader.poll(count_max, wait)
    except DamagedMessage as error:
        observer.damaged(receiver, error, began_ns)
        raise
    observer.handed(receiver, messages, began_ns)
    return messages


def iterated(observer: Observer | None, receiver: Receiver, messages: Iterator[Message]) -> Iterator[Message]:
    """Return an iterator that notes each message as it is handed out, or the same one without an observer."""
    return messages if observer is None else _Noted(observer, receiver, messages)


class _Noted:
    """Such an iterator; it goes on behind an error, as the reader's own does, which a generator would not."""

    def __init__(self, observer: Observer, receiver: Receiver, messages: Iterator[Message]) -> None:
        self._observer = observer
        self._receiver = receiver
        self._messages = messages

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        began_ns = time.time_ns()
        try:
            message = next(self._messages)
        except DamagedMessage as error:
            self._observer.damaged(self._receiver, error, began_ns)
            raise
        self._observer.handed(self._receiver, [message], time.time_ns())
        return message
