"""The halves of transactions: how one is stored, hidden, and how it ends, on this host and over TCP.

                this host                                            TCP
    begin       half message appended by this process                one send of it, tried once
    commit      message + op record in one append of the core,       END_TRANSACTION to the broker that has the half;
                on account of the half                               its answer is awaited, unlike RocketMQ's clients do
    rollback    op record, likewise                                  END_TRANSACTION, likewise
                   │ fenced: the broker has taken the half over,
                   │ because it is old or another client named it
                   └──▶ END_TRANSACTION to the broker, which knows whether it is open
    check       the broker asks; the answer is an END_TRANSACTION

Rules:
    (1) the core refuses, under its lock, what is done on account of a half below the fence; so of this process and the
        broker exactly one can end a transaction;
    (2) on this host the topics of transactions are there before the first half: the broker makes them when asked;
    (3) over TCP a half is sent once: a try that only seemed to fail would leave a second half, asked about too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shmq.client.keywords import body_of, queue_in_order, take_properties
from shmq.client.kinds import real_in
from shmq.client.table_cache import TableCache
from shmq.client.transactions.transaction import Half, TransactionCheck, TxState
from shmq.client.wire import Question, Queues, Wire
from shmq.errors import BrokerNotRunning, RemoteError, ShmqError, TransactionError, UsageError
from shmq.message import check_topic, is_system_topic, pop_names
from shmq.properties import encode_properties, parse_properties
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import number_in
from shmq.protocol.message_id import UniqueIds
from shmq.protocol.system_topics import transaction as wire
from shmq.shm.core import CoreError, Producer, Receipt, Store, receipt_make, record_decode, records_read

_BUSY_PAUSE: Final = 0.02
_TEXTS_MAX: Final = 4096
_LOCAL_HOST: Final = "127.0.0.1"
_CHECK_AFTER_MOST: Final = 1e8


@dataclass(slots=True, eq=False)
class LocalHalf(Half):
    """An open transaction of this host: what its end needs."""

    queue_id: int
    body: bytes
    text: bytes
    flag: int
    born_ms: int

    @property
    def receipt(self) -> Receipt:
        """That of the half."""
        return receipt_make(self.topic, self.queue_id, self.offset, self.log_position, self.born_ms, self.message_id)


@dataclass(slots=True, eq=False)
class RemoteHalf(Half):
    """An open transaction at some broker."""

    receipt: Receipt


BegunHalf = LocalHalf | RemoteHalf  # this host may lead now, or not any more


class Transactions:
    """The transactions of one session; ends at brokers, and their questions, are the same on both ways."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._asked: Callable[[TransactionCheck], None] | None = None

    def begin(self, group: str, topic: str, body: Any, timeout: float, **arguments: Any) -> BegunHalf:
        """Store a message that stays hidden; `arguments` are those of `send`."""
        raise NotImplementedError

    def end(self, half: BegunHalf, state: TxState, timeout: float) -> Receipt | None:
        """Make it visible and return where it is, or never let it be seen.

        Raises:
            TransactionError: it has been ended already.
        """
        raise NotImplementedError

    def _end_at_broker(self, half: Half, state: TxState, timeout: float) -> Command:
        """Let the broker that has a half end its transaction.

        Raises:
            TransactionError: it has been ended already.
        """
        fields = end_fields(half.group, half.offset, half.log_position, state, half.message_id)
        return self._tell(half.broker, {**fields, "topic": half.topic, "bname": half.broker}, timeout)

    def _tell(self, broker: str, fields: dict[str, str], timeout: float) -> Command:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return self._wire.request(Question.of(broker, end_command(fields)), timeout)
            except RemoteError as error:
                if error.code == Response.SYSTEM_BUSY and time.monotonic() < deadline:
                    time.sleep(_BUSY_PAUSE)
                    continue
                command = ": shmq tx list" if self._wire.is_local else ""
                refused = TransactionError(
                    f"transaction {fields['transactionId']} cannot be ended: {error.remark}",
                    hint=f"the broker may have asked another member, or rolled it back{command}",
                )
                refused.maybe_stored = error.maybe_stored
                raise refused from error

    def tell(self, fields: dict[str, str], timeout: float) -> None:
        """Say how a transaction ended that a broker has asked about, to the leader of that broker.

        Raises:
            TransactionError: it has been ended already.
        """
        self._tell(fields["bname"], fields, timeout)

    def answer(self, groups: list[str], asked: Callable[[TransactionCheck], None]) -> None:
        """Let brokers ask this client; over TCP they know its groups by its heartbeats."""
        self._asked = asked

    def asked(self, command: Command, tell: Callable[[dict[str, str]], object]) -> None:
        """A broker asks, on a thread of the wire; `tell` sends the fields of the answer."""
        check = check_of(command, tell)
        if check is not None and self._asked is not None:
            self._asked(check)


class LocalTransactions(Transactions):
    """The transactions of one generation of segments."""

    def __init__(
        self,
        wire: Wire,
        broker: str,
        *,
        store: Store,
        producer: Producer,
        resolve: Callable[[str], int],
        waits_durable: Callable[[str], bool],
    ) -> None:
        """
        Args:
            resolve: returns the index of a topic, which is made if need be.
            waits_durable: whether a message of a topic counts once it is on disk only.
        """
        super().__init__(wire)
        self._broker = broker
        self._store = store
        self._producer = producer
        self._resolve = resolve
        self._waits_durable = waits_durable
        self._is_prepared = False  # the topics of transactions are known to be there
        self._ids = UniqueIds(_LOCAL_HOST)
        self._queues: TableCache[int] = TableCache()
        self._turn = 0
        self._texts: dict[tuple[str, str, int, float | None], bytes] = {}

    def begin(
        self,
        group: str,
        topic: str,
        body: Any,
        timeout: float,
        *,
        queue_id: int | None = None,
        flag: int = 0,
        check_after: float | None = None,
        **arguments: Any,
    ) -> LocalHalf:
        if not self._is_prepared:
            self._prepare()
        if isinstance(body, str):
            body_of(body)  # refuses it
        born_ms = time.time_ns() // 1_000_000
        message_id = self._ids.next(born_ms)
        number = self._queue(topic, arguments.get("message_group"), queue_id)
        text = self._fixed_text(group, topic, number, check_after) + message_id.encode() + b"\x02"
        found = take_properties(arguments) if arguments else None
        if found:
            text += encode_properties(found).encode()
        wire.check_half(text)
        data = body if type(body) is bytes else bytes(body_of(body))
        offset, position, _, end = self._producer.append(
            wire.HALF_TOPIC, data, text, queue_id=wire.QUEUE_ID, flag=flag, born_ms=born_ms, timeout=timeout
        )
        if self._waits_durable(topic):
            self._store.wait_durable(end, timeout)
        return LocalHalf(group, topic, self._broker, message_id, offset, position, number, data, text, flag, born_ms)

    def _fixed_text(self, group: str, topic: str, queue_id: int, check_after: float | None) -> bytes:
        """The common beginning of the properties of a queue's transactions, up to the value of UNIQ_KEY."""
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

    def end(self, half: BegunHalf, state: TxState, timeout: float) -> Receipt | None:
        is_doubtful = False
        if isinstance(half, LocalHalf):
            try:
                stored = self._append_end(half, state, timeout)
            except BrokerNotRunning as error:  # these segments were given up: the next broker knows what is open
                stored, is_doubtful = None, error.maybe_stored
            if stored is not None:
                at = stored[0][:3]
                return receipt_make(half.topic, half.queue_id, *at, half.message_id) if state == wire.COMMIT else None
        try:
            ext = self._end_at_broker(half, state, timeout).ext
        except ShmqError as error:
            error.maybe_stored |= is_doubtful
            raise
        if state != wire.COMMIT:
            return None
        place = place_of(ext)
        if place is None:  # a stock broker leads, which does not say it: the half is all that is known
            return half.receipt
        if self._waits_durable(half.topic) and self._store.standing == 0:
            self._store.wait_durable(place.log_end, timeout)
        return receipt_make(half.topic, *place[:4], half.message_id)

    def _append_end(self, half: LocalHalf, state: TxState, timeout: float) -> list[tuple[int, int, int, int]] | None:
        """End it in this host's log, and return where that is; None where the broker has taken it over."""
        op = (wire.OP_TOPIC, wire.QUEUE_ID, wire.op_body(half.offset), wire.OP_PROPERTIES, 0, 0, 0, b"", 0, 0, None)
        flags, at = wire.COMMIT, half.log_position
        real = half.topic, half.queue_id, half.body, half.text, half.flag, flags, half.born_ms, b"", 0, at, None
        records = (real, op) if state == wire.COMMIT else (op,)
        return self._producer.append_together(records, half.log_position, timeout)

    def _prepare(self, fields: Mapping[str, str] | None = None) -> None:
        """Let the broker make the topics of transactions."""
        self._wire.request(Question(self._broker, Request.ANSWER_CHECKS, fields))
        self._is_prepared = True

    def _queue(self, topic: str, message_group: str | None, queue_id: int | None) -> int:
        store = self._store
        known = self._queues.of(store)
        count = known.get(topic) if isinstance(topic, str) else None
        if count is None:
            check_topic_of(topic)
            count = known[topic] = store.topic(self._resolve(topic))["write_queues"]
        if queue_id is not None:
            if not 0 <= queue_id < count:
                raise UsageError(f"topic {topic} has {count} write queues, there is no queue {queue_id}")
            return queue_id
        if count == 0:
            raise UsageError(f"topic {topic} takes no messages: it has no write queue")
        if message_group is not None:
            return queue_in_order(message_group, count)
        self._turn = turn = self._turn + 1
        return turn % count

    def answer(self, groups: list[str], asked: Callable[[TransactionCheck], None]) -> None:
        super().answer(groups, asked)
        for group in groups:
            self._prepare({"producerGroup": group})

    def checked(self, command: Command) -> None:
        """The broker asks, on the thread that reads its answers."""
        self.asked(command, lambda fields: self._tell(self._broker, fields, self._wire.timeout))


class RemoteTransactions(Transactions):
    """The transactions of one connection to a cluster."""

    def __init__(self, wire: Wire, queues: Queues, send_half: Callable[..., Receipt]) -> None:
        """
        Args:
            send_half: stores (topic, body, extra properties) once, for a group the broker then knows.
        """
        super().__init__(wire)
        self._queues = queues
        self._send_half = send_half

    def begin(
        self, group: str, topic: str, body: Any, timeout: float, *, check_after: float | None = None, **arguments: Any
    ) -> RemoteHalf:
        check_topic_of(topic)
        properties = half_properties(group, check_after)
        receipt = self._send_half(topic, body, properties, group=group, timeout=timeout, **arguments)
        broker = self._queues.message_queue(topic, receipt.queue_id).brokerName
        return RemoteHalf(group, topic, broker, receipt.message_id, receipt.offset, receipt.log_position, receipt)

    def end(self, half: BegunHalf, state: TxState, timeout: float) -> Receipt | None:
        """Make it visible, or never let it be seen; with a stock broker a commit's receipt names the half's place."""
        place = place_of(self._end_at_broker(half, state, timeout).ext)
        if state != wire.COMMIT:
            return None
        if place is None:
            return half.receipt
        queue_id = self._queues.queue_id(MessageQueue(half.broker, place.queue_id, half.topic))
        return receipt_make(half.topic, queue_id, *place[1:4], half.message_id)


class Place(NamedTuple):
    """The place of a committed message, from a broker of ours."""

    queue_id: int
    queue_offset: int
    log_position: int
    store_ms: int
    log_end: int


def place_of(ext: Mapping[str, str]) -> Place | None:
    """Read where a committed message is from the answer to END_TRANSACTION; None of a broker that does not say it.

    Raises:
        ProtocolError: the answer lacks a number.
    """
    names = ("queueId", "queueOffset", "logPosition", "storeTimestamp", "logEnd")
    if not any(name in ext for name in names):
        return None
    return Place(*(number_in("the answer to a commit", ext, name) for name in names))


def check_of(command: Command, tell: Callable[[dict[str, str]], object]) -> TransactionCheck | None:
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
    named = {name: command.ext[name] for name in ("topic", "bname") if command.ext.get(name)}

    def fields(state: TxState) -> dict[str, str]:
        return {**end_fields(group, int(offset), int(position), state, message.message_id, is_check=True), **named}

    return TransactionCheck(group, message, fields, tell)


def check_topic_of(topic: str) -> None:
    """Check that messages of a transaction may go to a topic.

    Raises:
        InvalidName, UsageError: it is no name, or the broker's own.
    """
    if not isinstance(topic, str):
        check_topic(topic)
    if is_system_topic(topic) or any(pop_names(topic)):
        raise UsageError(f"topic {topic} is the broker's own", hint="another topic")


def half_properties(group: str, check_after: float | None) -> dict[str, str]:
    """Return what makes a message the first half of a transaction.

    Raises:
        UsageError: an impossible time.
    """
    found = {wire.IS_TRANSACTION: "true", wire.PRODUCER_GROUP: group}
    if check_after is not None:
        seconds = real_in(check_after)
        if seconds is None or not 0 <= seconds < _CHECK_AFTER_MOST:
            hint = f"check_after=60; 0 or more, less than {_CHECK_AFTER_MOST:.0f}"
            raise UsageError(f"check_after={check_after!r:.80} is no number of seconds", hint=hint)
        found[wire.IMMUNITY_SECONDS] = str(round(seconds))
    return found


def end_command(fields: dict[str, str]) -> Command:
    """Return the request that ends a transaction."""
    return Command(code=Request.END_TRANSACTION, ext=fields)


def end_fields(
    group: str, queue_offset: int, log_position: int, state: TxState, message_id: str, *, is_check: bool = False
) -> dict[str, str]:
    """Return the fields of that request."""
    return {
        "producerGroup": group,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(log_position),
        "commitOrRollback": str(int(state)),
        "fromTransactionCheck": str(is_check).lower(),
        wire.TELLS_PLACE: str(not is_check).lower(),
        "msgId": message_id,
        "transactionId": message_id,
    }
