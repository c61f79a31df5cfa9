"""Owns OpenTelemetry's spans of one connection: create, send, receive and process, with the messaging conventions.

It does not know how messages are stored, nor what happens to a span. It needs the extra `otel`.

    send orders       PRODUCER   around a send; `traceparent` becomes a property of the message
    create orders     PRODUCER   of `reserve`, whose body is written later
    receive orders    CLIENT     of a poll that found something; a link to each message's context
    process orders    CONSUMER   around a listener's call, or `shmq.otel.processing`; child of the message's context

Names are those of the semantic conventions 1.38 (messaging, status: development). `messaging.rocketmq.namespace` is
required there and is empty, as everywhere without namespaces.

Rules:
    (1) a message that carries a `traceparent` of the application's keeps it;
    (2) nothing here makes a send or a call fail;
    (3) a broken `traceparent` is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import UsageError
from shmq.version import __version__

try:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise UsageError("spans need OpenTelemetry", hint="pip install 'shmq[otel]'") from error

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from shmq.client.link import Link
    from shmq.client.transport import MessageSender
    from shmq.shm.core import Message, Receipt

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.38.0"
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_CARRIED: Final = ("traceparent", "tracestate")
_DELAYS: Final = ("delay_level", "delay", "deliver_at")

Attributes = dict[str, Any]


class Spans:
    """Makes the spans of one connection; any thread may call."""

    def __init__(self, provider: trace.TracerProvider | None, about: Mapping[str, Any]) -> None:
        """
        Args:
            about: attributes of every span.
        """
        self._tracer = trace.get_tracer("shmq", __version__, provider, SCHEMA_URL)
        self._about = {"messaging.system": "rocketmq", "messaging.rocketmq.namespace": "", **about}

    def start_over(self) -> None:
        """Nothing is kept."""

    def close(self, timeout: float) -> None:
        """Nothing is kept."""

    def traced(self, inner: MessageSender, group: str | None, host_of: Callable[[Receipt], str]) -> MessageSender:
        """Return a sender whose sends are spans."""
        return SpannedSender(inner, self)

    def received(self, topic: str, group: str | None, messages: Sequence[Message], began_ns: int) -> None:
        """Make a span of a poll that found something."""
        if not messages:
            return
        found = [trace.get_current_span(context_of(message)).get_span_context() for message in messages]
        attributes = self._attributes("receive", topic) | {"messaging.batch.message_count": len(messages)}
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        self._tracer.start_span(
            f"receive {topic}",
            kind=trace.SpanKind.CLIENT,
            attributes=attributes,
            links=[trace.Link(each) for each in found if each.is_valid],
            start_time=began_ns,
        ).end()

    @contextmanager
    def consuming(self, group: str | None, message: Message) -> Iterator[list[bool]]:
        """Make a span of a listener's call; the block appends whether the message was consumed."""
        outcome: list[bool] = []
        with self.processing(group, message) as span:
            yield outcome
            if outcome != [True]:
                span.set_status(trace.StatusCode.ERROR)
                span.set_attribute("error.type", "not_consumed")

    @contextmanager
    def processing(self, group: str | None, message: Message) -> Iterator[trace.Span]:
        """Make a span of whatever the block does with a message."""
        attributes = self._attributes("process", message.topic) | {
            "messaging.message.id": message.message_id,
            "messaging.message.body.size": len(message.body),
            "messaging.destination.partition.id": str(message.queue_id),
            **_of_rocketmq(message.tag, message.keys, message.properties),
        }
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        with self._tracer.start_as_current_span(
            f"process {message.topic}",
            context=context_of(message),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            yield span

    @contextmanager
    def sending(self, name: str, topic: str, attributes: Attributes) -> Iterator[trace.Span]:
        """Make a span of a send, and the current one of the block."""
        with self._tracer.start_as_current_span(
            f"{name} {topic}",
            kind=trace.SpanKind.PRODUCER,
            attributes=self._attributes(name, topic) | attributes,
        ) as span:
            yield span

    def _attributes(self, operation: str, topic: str) -> Attributes:
        return {
            **self._about,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
        }


class SpannedSender:
    """A sender whose sends are spans; the four ways of `MessageSender`."""

    def __init__(self, inner: MessageSender, spans: Spans) -> None:
        self._inner = inner
        self._spans = spans

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        """Store one message and return where."""
        with self._spans.sending("send", str(topic), _of_send(arguments, body)) as span:
            receipt: Receipt = self._inner.send(topic, body, **_carrying(arguments))
            span.set_attributes(_of_receipt(receipt))
        return receipt

    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        """Store one message without a receipt."""
        with self._spans.sending("send", str(topic), _of_send(arguments, body)):
            self._inner.send_oneway(topic, body, **_carrying(arguments))

    def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Any) -> list[Receipt]:
        """Store all bodies into one queue, in order; they share one context."""
        attributes = _of_send(arguments, None) | {"messaging.batch.message_count": len(bodies)}
        with self._spans.sending("send", str(topic), attributes):
            receipts: list[Receipt] = self._inner.send_batch(topic, bodies, **_carrying(arguments))
        return receipts

    def reserve(self, topic: str, size: int, **arguments: Any) -> Any:
        """Return memory for a body to be written in place; what is stored belongs to this span."""
        attributes = _of_send(arguments, None) | {"messaging.message.body.size": size}
        with self._spans.sending("create", str(topic), attributes):
            return self._inner.reserve(topic, size, **_carrying(arguments))


def spans_of(link: Link, provider: trace.TracerProvider | None) -> Spans:
    """Return what makes the spans of a connection; without a provider the global one gets them."""
    about = {"server.address": link.place.broker_name, "network.transport": "tcp" if link.is_remote else "unix"}
    return Spans(provider, about)


def context_of(message: Message) -> Context:
    """Return the context a message carries; an empty one when it carries none."""
    properties = message.properties
    carrier = {name: properties[name] for name in _CARRIED if name in properties}
    return _PROPAGATOR.extract(carrier, context=context.Context())


def _carrying(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the current context among the properties."""
    properties = arguments.get("properties") or {}
    if _CARRIED[0] in properties:
        return arguments
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return {**arguments, "properties": {**properties, **{name: text for name, text in carrier.items() if text}}}


def _of_send(arguments: Mapping[str, Any], body: Any) -> Attributes:
    keys = arguments.get("keys") or ()
    words = [*([arguments["key"]] if arguments.get("key") else []), *([keys] if isinstance(keys, str) else keys)]
    found = _of_rocketmq(arguments.get("tag"), words, {})
    found["messaging.rocketmq.message.type"] = "normal"
    if any(arguments.get(name) for name in _DELAYS):
        found["messaging.rocketmq.message.type"] = "delay"
        if arguments.get("delay_level"):
            found["messaging.rocketmq.message.delay_time_level"] = int(arguments["delay_level"])
    elif arguments.get("message_group") is not None:
        found["messaging.rocketmq.message.type"] = "fifo"
        found["messaging.rocketmq.message.group"] = str(arguments["message_group"])
    if body is not None:
        found["messaging.message.body.size"] = len(body) if isinstance(body, bytes) else memoryview(body).nbytes
    return found


def _of_receipt(receipt: Receipt) -> Attributes:
    return {
        "messaging.message.id": receipt.message_id,
        "messaging.destination.partition.id": str(receipt.queue_id),
    }


def _of_rocketmq(tag: str | None, keys: Sequence[str], properties: Mapping[str, str]) -> Attributes:
    found: Attributes = {}
    if tag:
        found["messaging.rocketmq.message.tag"] = tag
    if keys:
        found["messaging.rocketmq.message.keys"] = [str(key) for key in keys]
    if group := properties.get("__SHARDINGKEY"):
        found["messaging.rocketmq.message.group"] = group
    return found
