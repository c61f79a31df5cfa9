"""The message trace of one connection: what is noted of sends and consumed messages, and its way to the broker.

    send, send_batch       Pub, with how long it took and whether it succeeded
    a listener's call      SubBefore, SubAfter
    a message received     SubBefore, SubAfter at once, as of RocketMQ's lite pull consumer: what comes of it is unknown
    a damaged message      SubBefore, SubAfter of context code EXCEPTION; TOPIC/QUEUE/OFFSET is one of its keys
    a transaction begins   Pub, of type "half"
    commit, rollback       EndTransaction, by the producer that ends it
    check                  EndTransaction, from-check, by the member that was asked

    add() ──▶ queue of at most 2048 ──▶ a thread: up to 100 traces or 100,000 bytes in one message, after 0.5 s at most

Invariants:
    1. Tracing never makes a send fail or wait: what does not fit into the queue, or cannot be stored, is counted in
       `dropped` and forgotten.
    2. `send_oneway` and `reserve` are not traced: how they end, and what they store, is not known here.
    3. The thread ends when nothing was traced for a while, and begins again with the next trace.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from shmq.client.background import started
from shmq.client.keywords import DEFAULT_PRODUCER_GROUP, keys_of
from shmq.client.kinds import refuse_wrong
from shmq.client.wire import LOG, MessageSender
from shmq.errors import ConnectError, DamagedMessage
from shmq.properties import parse_properties
from shmq.protocol.message_id import message_id_text, message_place
from shmq.protocol.system_topics import trace as wire
from shmq.protocol.system_topics.trace import ContextCode, MessageType, Trace, encode_trace, trace_keys
from shmq.protocol.system_topics.transaction import COMMIT, ROLLBACK
from shmq.shm.core import CoreError, Message, Receipt, record_decode
from shmq.words import keys_in

QUEUE_MAX: Final = 2048
BATCH_MAX: Final = 100
BATCH_BYTES_MAX: Final = 100_000
KEYS_CHARACTERS_MAX: Final = 16_000
FLUSH_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 5.0

_DELAYS = ("delay_level", "delay", "deliver_at")
_STATES: Final = {COMMIT: "COMMIT_MESSAGE", ROLLBACK: "ROLLBACK_MESSAGE"}
_UNKNOWN: Final = "UNKNOW"
_REQUEST_ID_BYTES: Final = 16


class Tracer:
    """Collects traces and stores them in the background; any thread may add."""

    def __init__(self, store: Callable[[bytes, list[str]], None]) -> None:
        """
        Args:
            store: stores one trace message with its keys.
        """
        self._store = store
        self.dropped = 0
        self.start_over()

    def start_over(self) -> None:
        """Begin anew; in a forked child the thread, and what waits, are the parent's."""
        self._changed = threading.Condition()
        self._waiting: deque[Trace] = deque()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    def add(self, trace: Trace) -> None:
        """Take note of something."""
        with self._changed:
            if self._closed or len(self._waiting) >= QUEUE_MAX:
                self.dropped += 1
                return
            if self._thread is None:
                try:
                    self._thread = started(threading.Thread(target=self._run, name="shmq-trace", daemon=True))
                except ConnectError:  # what is traced has been done, and does not fail for it
                    self.dropped += 1
                    return
            self._waiting.append(trace)
            if len(self._waiting) in (1, BATCH_MAX):
                self._changed.notify_all()

    def close(self, timeout: float) -> None:
        """Store what waits, for at most `timeout` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._busy, timeout)

    def sender(self, inner: MessageSender, group: str | None, host_of: Callable[[Receipt], str]) -> MessageSender:
        """Return a sender whose sends are traced."""
        return TracedSender(inner, self, group, host_of)

    @contextlib.contextmanager
    def consuming(self, group: str | None, message: Message) -> Iterator[list[bool]]:
        """Trace a listener's call; the block appends whether the message was consumed."""
        outcome: list[bool] = []
        request_id = self._before(group, message)
        began = time.monotonic()
        try:
            yield outcome
        finally:
            self._after(group, message, request_id, _since_ms(began), succeeded=outcome == [True])

    def handed(self, group: str | None, messages: Sequence[Message]) -> None:
        """Note that an application has got messages."""
        for message in messages:
            self._after(group, message, self._before(group, message), 0, succeeded=True)

    def damaged(self, group: str | None, error: DamagedMessage) -> None:
        """Note that a message is left out, under what its record still says of it."""
        message_id, keys = _said_by(error)
        request_id = self._began(group, message_id, keys, retries=0)
        self._ended(group, message_id, keys, request_id, 0, ContextCode.EXCEPTION)

    def _before(self, group: str | None, message: Message) -> str:
        return self._began(group, message.message_id, " ".join(message.keys), retries=max(0, message.attempt - 1))

    def _began(self, group: str | None, message_id: str, keys: str, *, retries: int) -> str:
        request_id = os.urandom(_REQUEST_ID_BYTES).hex().upper()
        self.add(
            Trace(
                wire.SUB_BEFORE, message_id, _now_ms(), group or "", keys=keys, request_id=request_id, retries=retries
            )
        )
        return request_id

    def _after(self, group: str | None, message: Message, request_id: str, cost_ms: int, *, succeeded: bool) -> None:
        context_code = ContextCode.SUCCESS if succeeded else ContextCode.FAILED
        self._ended(group, message.message_id, " ".join(message.keys), request_id, cost_ms, context_code)

    def _ended(
        self, group: str | None, message_id: str, keys: str, request_id: str, cost_ms: int, context_code: ContextCode
    ) -> None:
        self.add(
            Trace(
                wire.SUB_AFTER,
                message_id,
                _now_ms(),
                group or "",
                keys=keys,
                cost_ms=cost_ms,
                succeeded=context_code == ContextCode.SUCCESS,
                request_id=request_id,
                context_code=context_code,
            )
        )

    # -- transactions
    def begin(
        self, begin: Callable[..., Any], group: str, topic: str, body: Any, timeout: float, arguments: dict[str, Any]
    ) -> tuple[Any, TransactionTrace]:
        """Store the first half of a transaction, and return it and what notes its end."""
        words = keys_of(arguments.get("key"), arguments.get("keys"))  # an iterator of keys is read twice
        began = time.monotonic()
        half = begin(group, topic, body, timeout, **{**arguments, "key": None, "keys": words or None})
        about = Trace(
            wire.PUB,
            half.message_id,
            _now_ms() - _since_ms(began),
            group,
            topic,
            arguments.get("tag") or "",
            " ".join(words),
            body_bytes=_size(body),
            cost_ms=_since_ms(began),
            message_type=MessageType.TRANSACTION_HALF,
        )
        self.add(about)
        return half, TransactionTrace(self, about)

    def checked(self, group: str, message: Message, state: int) -> None:
        """Note what was answered to a broker's question."""
        about = Trace(wire.PUB, message.message_id, 0, group, message.topic, message.tag or "", " ".join(message.keys))
        self.add(_end_of(about, state, is_from_check=True))

    # -- the thread
    def _run(self) -> None:
        while batch := self._next_batch():
            text = "".join(map(encode_trace, batch))
            try:
                self._store(text.encode(errors="replace"), trace_keys(batch))
            except Exception as error:
                # The messages themselves are stored, and tracing must not make a send fail.
                self.dropped += len(batch)
                _warn(error)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next_batch(self) -> list[Trace]:
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(IDLE_SECONDS)
            if not self._waiting:
                self._thread = None
                return []
            self._changed.wait_for(lambda: self._closed or len(self._waiting) >= BATCH_MAX, FLUSH_SECONDS)
            self._busy = True
            return self._take()

    def _take(self) -> list[Trace]:
        """Take what fits into one message; the first always does."""
        batch: list[Trace] = []
        size = keys = 0
        while self._waiting and len(batch) < BATCH_MAX:
            trace = self._waiting[0]
            size += 4 * len(encode_trace(trace))  # UTF-8 at its longest
            keys += len(trace.message_id) + len(trace.keys) + 2
            if batch and (size > 4 * BATCH_BYTES_MAX or keys > KEYS_CHARACTERS_MAX):
                break
            batch.append(self._waiting.popleft())
        return batch


class TracedSender:
    """A sender whose sends are traced; the four ways of `MessageSender`."""

    def __init__(
        self, inner: MessageSender, tracer: Tracer, group: str | None, host_of: Callable[[Receipt], str]
    ) -> None:
        """
        Args:
            host_of: where a broker stored what a receipt is for, as "host:port".
        """
        self._inner = inner
        self._tracer = tracer
        self._group = group or DEFAULT_PRODUCER_GROUP
        self._host_of = host_of
        self.send_oneway = inner.send_oneway
        self.reserve = inner.reserve

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        refuse_wrong({"topic": topic, **arguments})
        keys = arguments.get("keys")
        if keys is not None and not isinstance(keys, (str, list, tuple)):
            keys = arguments["keys"] = list(keys)  # it is read twice
        words = [*([arguments["key"]] if arguments.get("key") else []), *(keys or ())]
        kind = MessageType.NORMAL
        if any(arguments.get(name) for name in _DELAYS):
            kind = MessageType.DELAY
        elif arguments.get("message_group") is not None:
            kind = MessageType.ORDER
        with self._sending(topic, [body], arguments, [" ".join(map(str, words))], kind) as receipts:
            receipt: Receipt = self._inner.send(topic, body, **arguments)
            receipts.append(receipt)
        return receipt

    def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Any) -> list[Receipt]:
        refuse_wrong({"topic": topic, "bodies": bodies, **arguments})
        bodies = tuple(bodies)  # it is read twice, and so are its keys
        if arguments.get("keys") is not None:
            arguments["keys"] = tuple(arguments["keys"])
        keys = [str(key) for key in arguments.get("keys") or [""] * len(bodies)]
        with self._sending(topic, bodies, arguments, keys, MessageType.NORMAL) as receipts:
            receipts += self._inner.send_batch(topic, bodies, **arguments)
        return receipts

    @contextlib.contextmanager
    def _sending(
        self, topic: str, bodies: Sequence[Any], arguments: dict[str, Any], keys: Sequence[str], kind: MessageType
    ) -> Iterator[list[Receipt]]:
        receipts: list[Receipt] = []
        started, began = _now_ms(), time.monotonic()
        try:
            yield receipts
        finally:
            cost_ms = _since_ms(began)
            base = Trace(
                wire.PUB,
                "",
                started,
                self._group,
                str(topic),
                arguments.get("tag") or "",
                cost_ms=cost_ms,
                message_type=kind,
                succeeded=False,
            )
            if not receipts:
                self._tracer.add(base._replace(keys=" ".join(filter(None, keys)), body_bytes=sum(map(_size, bodies))))
            for number, receipt in enumerate(receipts):
                self._tracer.add(
                    base._replace(
                        message_id=receipt.message_id,
                        keys=keys[number] if number < len(keys) else "",
                        store_host=self._host_of(receipt),
                        body_bytes=_size(bodies[number]),
                        offset_message_id=receipt.message_id if message_place(receipt.message_id) else "",
                        succeeded=True,
                    )
                )


class TransactionTrace:
    """The trace of one transaction."""

    __slots__ = ("_about", "_tracer")

    def __init__(self, tracer: Tracer, about: Trace) -> None:
        self._tracer = tracer
        self._about = about

    def ended(self, state: int) -> None:
        """Note that its producer ended it."""
        self._tracer.add(_end_of(self._about, state, is_from_check=False))


def _end_of(about: Trace, state: int, *, is_from_check: bool) -> Trace:
    return about._replace(
        kind=wire.END_TRANSACTION,
        time_ms=_now_ms(),
        message_type=MessageType.TRANSACTION_COMMIT,
        transaction_id=about.message_id,
        transaction_state=_STATES.get(state, _UNKNOWN),
        is_from_check=is_from_check,
    )


def _size(body: Any) -> int:
    return len(body) if isinstance(body, (bytes, bytearray)) else memoryview(body).nbytes


def _now_ms() -> int:
    return round(time.time() * 1000)


def _said_by(error: DamagedMessage) -> tuple[str, str]:
    """Message id, and keys with the place, of a message that is left out; the id is empty where its record is gone."""
    place = f"{error.topic}/{error.queue_id}/{error.offset}"
    try:
        record = record_decode(error.record)
    except CoreError:
        return "", place
    properties = parse_properties(record["properties"].decode(errors="replace"))
    message_id = properties.get("UNIQ_KEY") or message_id_text(record["store_host"], error.position)
    return message_id, " ".join((*keys_in(properties.get("KEYS", "")), place))


def _since_ms(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


def _warn(error: Exception) -> None:
    LOG.warning("traces of messages could not be stored: %s", error)
