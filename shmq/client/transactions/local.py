"""Owns transactions in this host's memory: the half and its end are appended by the producing process itself.

It does not know users' objects (transaction), nor when a broker asks (the broker's `transactions`).

    begin     half message ──▶ RMQ_SYS_TRANS_HALF_TOPIC, by this process
    commit    message + op record in one append of the core, on account of the half
    rollback  op record, likewise
                 │ fenced: the broker has taken the half over, because it is old or somebody named it
                 └──▶ END_TRANSACTION to the broker, which knows whether it is open

Rules:
    (1) the core refuses, under its lock, what is done on account of a half below the fence; so of this process and the
        broker exactly one can end a transaction;
    (2) the topics of transactions are there before the first half: the broker makes them when it is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from shmq.client.producers.unique_id import UniqueIds
from shmq.client.transactions.transaction import Question, TxState, check_topic_of, end_fields, half_properties
from shmq.client.wire_tcp.outgoing import keys_of, message_properties
from shmq.errors import BrokerNotRunning, ProtocolError, RemoteError, TransactionError, UsageError
from shmq.message import encode_properties, is_system_topic, parse_properties
from shmq.protocol import transaction as wire
from shmq.protocol.codes import Request, Response
from shmq.shm.core import CoreError, Receipt, receipt_make, record_decode, records_read, tag_hash

if TYPE_CHECKING:
    from shmq.client.wire_shm.session import Session
    from shmq.protocol.command import Command

_BUSY_PAUSE: Final = 0.02
_TEXTS_MAX: Final = 4096
_LOCAL_HOST: Final = "127.0.0.1"


class LocalHalf:
    """An open transaction: what its end needs."""

    __slots__ = (
        "body",
        "born_ms",
        "flag",
        "group",
        "log_position",
        "message_id",
        "offset",
        "queue_id",
        "text",
        "topic",
    )

    def __init__(
        self, group: str, topic: str, queue_id: int, body: bytes, text: bytes, flag: int, born_ms: int, message_id: str
    ) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        self.text = text
        self.flag = flag
        self.born_ms = born_ms
        self.message_id = message_id
        self.offset = self.log_position = -1


class LocalTransactions:
    """The transactions of one attachment."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ids = UniqueIds(_LOCAL_HOST)
        self._store: object = None  # whose topics are known to be there
        self._queues: dict[str, int] = {}
        self._version = -1
        self._turn = 0
        self._texts: dict[tuple[str, str, int, float | None], bytes] = {}
        self._asked: Callable[[Question], None] | None = None

    def begin(
        self,
        group: str,
        topic: str,
        body: Any,
        timeout: float,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        check_after: float | None = None,
    ) -> LocalHalf:
        """Store a message that nobody sees yet."""
        session = self._session
        if session.store is not self._store:
            self._prepare()
        if isinstance(body, str):
            raise TypeError("a body is bytes, not str; did you mean body=text.encode()?")
        born_ms = time.time_ns() // 1_000_000
        message_id = self._ids.next(born_ms)
        number = self._queue(topic, message_group, queue_id)
        text = self._fixed_text(group, topic, number, check_after) + message_id.encode() + b"\x02"
        found = message_properties(tag, keys_of(key, keys), message_group, properties)
        if found:
            text += encode_properties(found).encode()
        data = body if type(body) is bytes else bytes(memoryview(body))
        half = LocalHalf(group, topic, number, data, text, flag, born_ms, message_id)
        half.offset, half.log_position, _, end = session.internal_producer.append(
            wire.HALF_TOPIC, data, text, queue_id=wire.QUEUE_ID, flag=flag, born_ms=born_ms, timeout=timeout
        )
        if session.wait_durable:
            session.store.wait_durable(end, timeout)
        return half

    def _fixed_text(self, group: str, topic: str, queue_id: int, check_after: float | None) -> bytes:
        """What the properties of all transactions of a queue begin with, up to the value of UNIQ_KEY."""
        key = group, topic, queue_id, check_after
        text = self._texts.get(key)
        if text is None:
            found = half_properties(group, check_after)
            found.update({wire.REAL_TOPIC: topic, wire.REAL_QUEUE_ID: str(queue_id)})
            text = encode_properties(found).encode() + wire.UNIQUE_KEY.encode() + b"\x01"
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            self._texts[key] = text
        return text

    def end(self, half: LocalHalf, state: TxState, timeout: float) -> Receipt | None:
        """Make it visible and return where it is, or never let it be seen."""
        op = (wire.OP_TOPIC, wire.QUEUE_ID, wire.op_body(half.offset), wire.OP_PROPERTIES, 0, 0, 0, b"", 0, 0, None)
        real = (
            half.topic,
            half.queue_id,
            half.body,
            half.text,
            half.flag,
            wire.COMMIT,
            half.born_ms,
            b"",
            0,
            half.log_position,
            None,
        )
        records = (real, op) if state == wire.COMMIT else (op,)
        try:
            stored = self._session.internal_producer.append_together(records, half.log_position, timeout)
        except BrokerNotRunning:  # these segments were given up: the next broker knows what is open
            stored = None
        if stored is None:
            return self._end_at_broker(half, state, timeout)
        if state != wire.COMMIT:
            return None
        return receipt_make(half.topic, half.queue_id, *stored[0][:3], half.message_id)

    def _end_at_broker(self, half: LocalHalf, state: TxState, timeout: float) -> Receipt | None:
        fields = end_fields(half.group, half.offset, half.log_position, state, half.message_id)
        ext = self._ask(fields, timeout).ext
        if state != wire.COMMIT:
            return None
        try:
            queue_id, offset, position, store_ms, end = (
                int(ext[name]) for name in ("queueId", "queueOffset", "logPosition", "storeTimestamp", "logEnd")
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the answer to a commit lacks a number: {error}") from error
        if self._session.wait_durable:
            self._session.store.wait_durable(end, timeout)
        return receipt_make(half.topic, queue_id, offset, position, store_ms, half.message_id)

    def _ask(self, fields: dict[str, str], timeout: float) -> Command:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._session.control.request(Request.END_TRANSACTION, fields, timeout=timeout)
            except RemoteError as error:
                if error.code == Response.SYSTEM_BUSY and time.monotonic() < deadline:
                    time.sleep(_BUSY_PAUSE)
                    continue
                raise TransactionError(
                    f"transaction {fields['transactionId']} cannot be ended: {error.remark}",
                    hint="the broker may have asked somebody else, or rolled it back: shmq tx list",
                ) from error

    def _prepare(self) -> None:
        """Let the broker make the topics of transactions."""
        store = self._session.store
        self._session.control.request(Request.ANSWER_CHECKS)
        self._store = store

    def _queue(self, topic: str, message_group: str | None, queue_id: int | None) -> int:
        store = self._session.store
        version = store.table_version
        if version != self._version:
            self._queues.clear()
            self._version = version
        count = self._queues.get(topic)
        if count is None:
            check_topic_of(topic, is_system=is_system_topic(topic))
            count = self._queues[topic] = store.topic(self._session.resolve(topic))["write_queues"]
        if queue_id is not None:
            if not 0 <= queue_id < count:
                raise UsageError(f"topic {topic} has {count} write queues, there is no queue {queue_id}")
            return queue_id
        if count == 0:
            raise UsageError(f"topic {topic} takes no messages: it has no write queue")
        if message_group is not None:
            return (tag_hash(message_group) & 0x7FFFFFFF) % count
        self._turn = turn = self._turn + 1
        return turn % count

    # -- checks
    def answer(self, groups: list[str], asked: Callable[[Question], None]) -> None:
        """Let the broker ask this client."""
        self._asked = asked
        self._session.control.on_check = self._checked
        for group in groups:
            self._session.control.request(Request.ANSWER_CHECKS, {"producerGroup": group})
        self._store = self._session.store

    def _checked(self, command: Command) -> None:
        question = question_of(command, self._tell)
        if question is not None and self._asked is not None:
            self._asked(question)

    def _tell(self, fields: dict[str, str]) -> None:
        self._ask(fields, self._session.timeout)


def question_of(command: Command, tell: Callable[[dict[str, str]], None]) -> Question | None:
    """Read CHECK_TRANSACTION_STATE; None when it makes no sense. `tell` sends the fields of the answer."""
    messages = records_read(command.body)
    offset, position = (command.ext.get(name, "") for name in ("tranStateTableOffset", "commitLogOffset"))
    if not messages or not offset.isdecimal() or not position.isdecimal():
        return None
    message = messages[0]
    try:
        text = record_decode(command.body)["properties"].decode(errors="replace")
    except CoreError:
        return None
    group = parse_properties(text).get(wire.PRODUCER_GROUP, "")

    def say(state: TxState) -> None:
        tell(end_fields(group, int(offset), int(position), state, message.message_id, is_check=True))

    return Question(group, message, say)
