"""OpenTelemetry's spans of one connection, and the context that travels with its messages. Needs the extra `otel`.

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
    4. Attributes have the names of OpenTelemetry's messaging conventions for RocketMQ (status: development), where
       `messaging.rocketmq.namespace` is required and empty; for where a damaged message is the names are ours.
    5. An argument that no send takes has no attribute, and is refused by the send itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from shmq.client.keywords import MEANINGS
from shmq.client.kinds import refuse_wrong
from shmq.client.place import parse_address
from shmq.delay_levels import DELAY
from shmq.errors import DamagedMessage, ShmqError, UsageError
from shmq.timing import DELAY_MS, DELIVER_MS
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
            with self.sending("send", topic, arguments, body, {TYPE: "transaction"}) as span:
                half = begin(group, topic, body, timeout, **carrying(arguments))
                span.set_attribute(MESSAGE_ID, half.message_id)
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
            attributes=of_received(topic, group, len(messages)),
            links=[link for message in messages for link in _links(context_of(message))],
            start_time=began_ns,
        ).end()

    def damaged(self, topic: str, group: str | None, error: DamagedMessage, began_ns: int) -> None:
        """Make a failed span of a message that was asked for at `began_ns` and is left out."""
        span = self._tracer.start_span(
            f"receive {topic}",
            kind=trace.SpanKind.CLIENT,
            attributes=of_damaged(topic, group, error),
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
                span.set_attribute(ERROR_TYPE, _NOT_CONSUMED)

    @contextmanager
    def processing(self, group: str | None, message: Message) -> Iterator[trace.Span]:
        """Make a span of whatever the block does with a message."""
        sent = context_of(message)
        attributes = of_processed(message, group)
        with self._current(f"process {message.topic}", trace.SpanKind.CONSUMER, attributes, sent) as span:
            yield span

    @contextmanager
    def sending(
        self, name: str, topic: str, arguments: dict[str, Any], body: Any, more: Attributes | None = None
    ) -> Iterator[trace.Span]:
        """Make a span of a send, and the current one of the block."""
        keys = arguments.get("keys")
        if isinstance(keys, Iterable) and not isinstance(keys, (str, list, tuple)):
            arguments["keys"] = list(keys)  # it is read twice
        attributes = of_operation(name, str(topic)) | of_send(arguments, body) | (more or {})
        with self._current(f"{name} {topic}", trace.SpanKind.PRODUCER, attributes) as span:
            yield span

    @contextmanager
    def _current(
        self, name: str, kind: trace.SpanKind, attributes: Attributes, parent: Context | None = None
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
        with self._spans.sending("send", topic, arguments, body) as span:
            receipt: Receipt = self._inner.send(topic, body, **carrying(arguments))
            if span.is_recording():
                span.set_attributes(of_receipt(receipt, self._host_of(receipt)))
        return receipt

    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        with self._spans.sending("send", topic, arguments, body):
            self._inner.send_oneway(topic, body, **carrying(arguments))

    def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Any) -> list[Receipt]:
        """Store all bodies into one queue, in order; they share one context."""
        refuse_wrong({"bodies": bodies})
        bodies = tuple(bodies)
        with self._spans.sending("send", topic, arguments, None, {BATCH_COUNT: len(bodies)}):
            receipts: list[Receipt] = self._inner.send_batch(topic, bodies, **carrying(arguments))
        return receipts

    def reserve(self, topic: str, size: int, **arguments: Any) -> Any:
        """Return memory for a body to be written in place; what is stored belongs to this span."""
        with self._spans.sending("create", topic, arguments, None, {BODY_SIZE: size}):
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
        span.set_attribute(ERROR_TYPE, f"{kind.__module__}.{kind.__qualname__}")


SYSTEM: Final = "messaging.system"
NAMESPACE: Final = "messaging.rocketmq.namespace"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
BATCH_COUNT: Final = "messaging.batch.message_count"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
ENVELOPE_SIZE: Final = "messaging.message.envelope.size"
TAG: Final = "messaging.rocketmq.message.tag"
KEYS: Final = "messaging.rocketmq.message.keys"
TYPE: Final = "messaging.rocketmq.message.type"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
DELIVERY_TIME: Final = "messaging.rocketmq.message.delivery_timestamp"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
QUEUE_OFFSET: Final = "shmq.queue.offset"
LOG_POSITION: Final = "shmq.log.position"

_TYPES: Final = {"create": "create", "send": "send", "request": "send", "receive": "receive", "process": "process"}

Attributes = dict[str, Any]


def of_operation(operation: str, topic: str) -> Attributes:
    """Return what is said of every operation: "create", "send", "request", "receive" or "process"."""
    return {
        SYSTEM: "rocketmq",
        NAMESPACE: "",
        OPERATION_NAME: operation,
        OPERATION_TYPE: _TYPES[operation],
        DESTINATION: topic,
    }


def of_send(arguments: Mapping[str, Any], body: Any) -> Attributes:
    """Return what is known of a message before it is sent; no body when it is several messages, or not written yet."""
    keys = arguments.get("keys")
    words = [*([arguments["key"]] if arguments.get("key") else []), *(keys if isinstance(keys, (list, tuple)) else ())]
    found = _of_message(arguments.get("tag"), words, arguments.get("message_group"))
    found[TYPE] = "normal" if MESSAGE_GROUP not in found else "fifo"
    due = _of_delay(arguments)
    if due:
        found |= {TYPE: "delay", **due}
    with contextlib.suppress(TypeError):  # what is no body is refused by the send
        if body is not None:
            found[BODY_SIZE] = len(body) if isinstance(body, (bytes, bytearray)) else memoryview(body).nbytes
    return found


def of_receipt(receipt: Receipt, host: str) -> Attributes:
    """Return what is known once a message is stored.

    Args:
        host: the broker that stored it, as "host:port"; "" when that is not known.
    """
    found: Attributes = {MESSAGE_ID: receipt.message_id, PARTITION: str(receipt.queue_id)}
    with contextlib.suppress(UsageError):
        address = parse_address(host)
        found |= {SERVER_ADDRESS: address.host, SERVER_PORT: address.port}
    return found


def of_processed(message: Message, group: str | None) -> Attributes:
    """Return the attributes of a message that is being processed."""
    found = of_operation("process", message.topic) | {
        MESSAGE_ID: message.message_id,
        BODY_SIZE: _size_of(message),
        ENVELOPE_SIZE: message.record_bytes,
        PARTITION: str(message.queue_id),
        **_of_message(message.tag, message.keys, message.message_group),
    }
    return found if group is None else found | {GROUP: group}


def _size_of(message: Message) -> int:
    try:
        return message.size
    except ShmqError:  # compressed, and damaged: the program learns that from the body
        return len(message.view)


def of_received(topic: str, group: str | None, count: int) -> Attributes:
    """Return what is known of several messages that were handed out together."""
    found = of_operation("receive", topic) | {BATCH_COUNT: count}
    return found if group is None else found | {GROUP: group}


def of_damaged(topic: str, group: str | None, error: DamagedMessage) -> Attributes:
    """Return what is known of a message that was left out, and where it is."""
    place = {PARTITION: str(error.queue_id), QUEUE_OFFSET: error.offset, LOG_POSITION: error.position}
    return of_received(topic, group, 0) | place


def _of_message(tag: Any, keys: Sequence[Any], message_group: Any) -> Attributes:
    found: Attributes = {}
    if tag:
        found[TAG] = str(tag)
    if keys:
        found[KEYS] = [str(key) for key in keys]
    if message_group:
        found[MESSAGE_GROUP] = str(message_group)
    return found


def _of_delay(arguments: Mapping[str, Any]) -> Attributes:
    meant: dict[str, str] = {}
    for name, meaning in MEANINGS.items():
        with contextlib.suppress(UsageError):  # the send will say so
            if arguments.get(name) is not None:
                meant |= meaning(arguments[name])
    if DELAY in meant:
        return {DELAY_LEVEL: int(meant[DELAY])}
    if DELIVER_MS in meant:
        return {DELIVERY_TIME: int(meant[DELIVER_MS])}
    if DELAY_MS in meant:
        return {DELIVERY_TIME: round(time.time() * 1000) + int(meant[DELAY_MS])}
    return {}
