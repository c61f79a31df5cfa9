"""OpenTelemetry's spans of one connection, and the context that travels with its messages. Needs the extra `otel`.

What a span says of a message: span_attributes.py.

    send orders       PRODUCER   around a send, and the first half of a transaction; `traceparent` becomes a property
    request orders    PRODUCER   around a request and the wait for its reply
    create orders     PRODUCER   of `reserve`, whose body is written later
    receive orders    CLIENT     of a poll that found something; links to the contexts of its messages. Failed: of a
                                 message that is damaged and left out
    process orders    CONSUMER   around a listener's call, or `shmq.otel.processing`; child of the message's context,
                                 and linked to it

Invariants:
    1. A message that carries a `traceparent` of the application's keeps it.
    2. Nothing here makes a send or a call fail, or waits.
    3. A broken `traceparent` is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from shmq.client.kinds import refuse_wrong
from shmq.client.observers import span_attributes as about
from shmq.errors import DamagedMessage, UsageError
from shmq.version import __version__

try:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise UsageError("spans need OpenTelemetry", hint="pip install 'shmq[otel]'") from error

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from shmq.client.transactions.transaction import Half
    from shmq.client.wire import MessageSender
    from shmq.shm.core import Message, Receipt

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.38.0"
TRACEPARENT: Final = "traceparent"
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_CARRIED: Final = (TRACEPARENT, "tracestate")
_NOT_CONSUMED: Final = "not_consumed"


class Call(Protocol):
    """The outcome of a listener's call."""

    consumed: bool | None
    error: BaseException | None


class Spans:
    """Makes the spans of one connection; any thread may call."""

    def __init__(self, provider: trace.TracerProvider | None) -> None:
        """
        Args:
            provider: None takes the global one.
        """
        self._tracer = trace.get_tracer("shmq", __version__, provider, SCHEMA_URL)

    def sender(self, inner: MessageSender, host_of: Callable[[Receipt], str]) -> MessageSender:
        """Return a sender whose sends are spans."""
        return SpannedSender(inner, self, host_of)

    def beginning(self, begin: Callable[..., Half]) -> Callable[..., Half]:
        """Return what stores the first half of a transaction, as a span."""

        def call(group: str, topic: str, body: Any, timeout: float, **arguments: Any) -> Half:
            with self.sending("send", topic, arguments, body, {about.TYPE: "transaction"}) as span:
                half = begin(group, topic, body, timeout, **carrying(arguments))
                span.set_attribute(about.MESSAGE_ID, half.message_id)
            return half

        return call

    @contextmanager
    def requesting(self, topic: str, body: Any, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Make a span of a request and its reply; the block gets the arguments to send with."""
        with self.sending("request", topic, arguments, body):
            yield carrying(arguments)

    def received(self, topic: str, group: str | None, messages: Sequence[Message], began_ns: int) -> None:
        """Make a span of messages that were handed out; they were asked for at `began_ns` since the epoch."""
        self._tracer.start_span(
            f"receive {topic}",
            kind=trace.SpanKind.CLIENT,
            attributes=about.of_received(topic, group, len(messages)),
            links=[link for message in messages for link in _links(context_of(message))],
            start_time=began_ns,
        ).end()

    def damaged(self, topic: str, group: str | None, error: DamagedMessage, began_ns: int) -> None:
        """Make a failed span of a message that was asked for at `began_ns` and is left out."""
        span = self._tracer.start_span(
            f"receive {topic}",
            kind=trace.SpanKind.CLIENT,
            attributes=about.of_damaged(topic, group, error),
            start_time=began_ns,
        )
        _fail(span, error)
        span.end()

    @contextmanager
    def calling(self, group: str | None, message: Message, call: Call) -> Iterator[None]:
        """Make a span of a listener's call, which says afterwards what became of the message."""
        with self.processing(group, message) as span:
            yield
            if call.error is not None:
                _fail(span, call.error)
            elif call.consumed is not True:
                span.set_status(trace.StatusCode.ERROR)
                span.set_attribute(about.ERROR_TYPE, _NOT_CONSUMED)

    @contextmanager
    def processing(self, group: str | None, message: Message) -> Iterator[trace.Span]:
        """Make a span of whatever the block does with a message."""
        sent = context_of(message)
        attributes = about.of_processed(message, group)
        with self._current(f"process {message.topic}", trace.SpanKind.CONSUMER, attributes, sent) as span:
            yield span

    @contextmanager
    def sending(
        self, name: str, topic: str, arguments: dict[str, Any], body: Any, more: about.Attributes | None = None
    ) -> Iterator[trace.Span]:
        """Make a span of a send, and the current one of the block."""
        keys = arguments.get("keys")
        if isinstance(keys, Iterable) and not isinstance(keys, (str, list, tuple)):
            arguments["keys"] = list(keys)  # it is read twice
        attributes = about.of_operation(name, str(topic)) | about.of_send(arguments, body) | (more or {})
        with self._current(f"{name} {topic}", trace.SpanKind.PRODUCER, attributes) as span:
            yield span

    @contextmanager
    def _current(
        self, name: str, kind: trace.SpanKind, attributes: about.Attributes, parent: Context | None = None
    ) -> Iterator[trace.Span]:
        with self._tracer.start_as_current_span(
            name,
            context=parent,
            kind=kind,
            attributes=attributes,
            links=_links(parent) if parent is not None else (),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                _fail(span, error)
                raise


class SpannedSender:
    """A sender whose sends are spans; the four ways of `MessageSender`."""

    def __init__(self, inner: MessageSender, spans: Spans, host_of: Callable[[Receipt], str]) -> None:
        """
        Args:
            host_of: where a broker stored what a receipt is for, as "host:port".
        """
        self._inner = inner
        self._spans = spans
        self._host_of = host_of

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        """Store one message and return where."""
        with self._spans.sending("send", topic, arguments, body) as span:
            receipt: Receipt = self._inner.send(topic, body, **carrying(arguments))
            if span.is_recording():
                span.set_attributes(about.of_receipt(receipt, self._host_of(receipt)))
        return receipt

    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        with self._spans.sending("send", topic, arguments, body):
            self._inner.send_oneway(topic, body, **carrying(arguments))

    def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Any) -> list[Receipt]:
        """Store all bodies into one queue, in order; they share one context."""
        refuse_wrong({"bodies": bodies})
        bodies = tuple(bodies)
        with self._spans.sending("send", topic, arguments, None, {about.BATCH_COUNT: len(bodies)}):
            receipts: list[Receipt] = self._inner.send_batch(topic, bodies, **carrying(arguments))
        return receipts

    def reserve(self, topic: str, size: int, **arguments: Any) -> Any:
        """Return memory for a body to be written in place; what is stored belongs to this span."""
        with self._spans.sending("create", topic, arguments, None, {about.BODY_SIZE: size}):
            return self._inner.reserve(topic, size, **carrying(arguments))


def context_of(message: Message) -> Context:
    """Return the context a message carries; an empty one when it carries none."""
    properties = message.properties
    carrier = {name: properties[name] for name in _CARRIED if name in properties}
    return _PROPAGATOR.extract(carrier, context=context.Context())


def carrying(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a send with the current context among the properties."""
    properties = arguments.get("properties") or {}
    if not isinstance(properties, Mapping) or TRACEPARENT in properties:
        return arguments
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    carried = {name: text for name, text in carrier.items() if text}
    return {**arguments, "properties": {**properties, **carried}} if carried else arguments


def _links(sent: Context) -> list[trace.Link]:
    found = trace.get_current_span(sent).get_span_context()
    return [trace.Link(found)] if found.is_valid else []


def _fail(span: trace.Span, error: BaseException) -> None:
    if span.is_recording():
        kind = type(error)
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
        span.set_attribute(about.ERROR_TYPE, f"{kind.__module__}.{kind.__qualname__}")
