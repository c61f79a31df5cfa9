"""Sending over TCP: one send is a few tries on the I/O thread; the caller waits or takes a future.

    arguments ──outgoing──▶ Outgoing ──send_policy──▶ queue ──request──▶ answer ──send_policy──▶ receipt, error
                               ▲              ▲                             │
                               │              └─────── another try ─────────┤
                               └─────── a batch in two: too large ──────────┘

Invariants:
    1. A message group stays on its queue, whatever fails: its order is worth more than the send.
    2. The parts of a batch go to one queue, one after the other; only the first may choose another one.
    3. Every send ends within its timeout.
    4. A message keeps its id over every retry, so consumers can recognise a message that was stored twice.
    5. A send to a broker that changes its master waits for the next one; see `send_policy`.
    6. A batch that a broker refuses as too large is stored nowhere, so it goes on as two: a broker's bound may be lower
       than RocketMQ's own, as with log files that hold less.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Self

from shmq.client.edge import edge
from shmq.client.keywords import body_of, keys_of, message_properties, take_properties, take_special
from shmq.client.kinds import check_body, check_wait, refuse_wrong, whole_in
from shmq.client.refusals import until_taken
from shmq.client.remote.outgoing import Outgoing, batches, halves, send_command, single
from shmq.client.remote.send_policy import (
    MASTER_PAUSE_SECONDS,
    RETRIES,
    Attempts,
    FaultTable,
    QueueChoice,
    begins_anew,
    queue_of_group,
    send_error,
    waits_for_master,
)
from shmq.client.wire import ResultT
from shmq.client.wire_tcp.name_service import NameService, no_master
from shmq.client.wire_tcp.wire import TcpWire
from shmq.errors import (
    ConnectError,
    MessageTooLarge,
    RequestTimeout,
    SendTimeout,
    ShmqError,
    UsageError,
)
from shmq.message import TRACE_TOPIC, check_open_topic
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import number_in
from shmq.protocol.message_id import UniqueIds, position_in
from shmq.protocol.system_topics.trace import TRACE_GROUP
from shmq.shm.core import Receipt, receipt_make
from shmq.shm.pickling import stays_here

Publish = Callable[[memoryview, Mapping[str, str]], Receipt]


class TcpSends:
    """Sends to the brokers of a cluster; see `shmq.client.wire.Sends`."""

    def __init__(self, wire: TcpWire) -> None:
        self._wire = wire
        options = wire.place.options
        self._compression = options.compression
        self._choice = QueueChoice(FaultTable() if options.avoid_slow else None)
        self._ids = UniqueIds(wire.local_host)

    def sender(
        self, timeout: float, *, group: str | None = None, compression: str | None = None, keeps: object = None
    ) -> TcpSender:
        """Return something that sends; `timeout` in seconds, `compression` as the URL says when None."""
        made = TcpSender(self._wire, self._choice, self._ids, timeout, group or "", compression or self._compression)
        made.keeps = keeps
        return made

    def until_taken(self, call: Callable[[float], ResultT], seconds: float, topic: str) -> ResultT:
        may_wait = functools.partial(_may_wait, self._wire.names, topic, self._wire.timeout)
        return until_taken(call, seconds, lambda error: self._wire.call(may_wait(error)))

    def fastest_queue(self, topic: str) -> int | None:
        wire = self._wire
        route = wire.call(wire.names.writable_route(topic, timeout=wire.timeout))
        queue = self._choice.fastest(route, wire.network.loop.time())
        return None if queue is None else wire.numbers.number(queue)

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        self.sender(self._wire.timeout, group=TRACE_GROUP).send(TRACE_TOPIC, body, keys=keys)

    def host_of(self, receipt: Receipt) -> str:
        wire = self._wire
        route = wire.names.routes.old(receipt.topic)
        if route is None:
            return ""
        return str(route.master(wire.numbers.queue(receipt.topic, receipt.queue_id).brokerName) or "")


class TcpSender:
    """Sends for one producer group, with one timeout; any thread may use it."""

    __reduce_ex__ = stays_here("hand over the connection, and call its send() there")

    def __init__(
        self, wire: TcpWire, choice: QueueChoice, ids: UniqueIds, timeout: float, group: str, compression: str
    ) -> None:
        self._wire = wire
        self._choice = choice
        self._ids = ids
        self._timeout = timeout
        self._group = group
        self._compression = compression
        self.keeps: object = None

    @edge
    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        receipt: Receipt = self._wait(self.start_send(topic, body, **arguments), arguments)
        return receipt

    @edge
    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        """Hand one message to a broker that does not answer."""
        self._wait(self.start_send_oneway(topic, body, **arguments), arguments)

    @edge
    def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Any) -> list[Receipt]:
        receipts: list[Receipt] = self._wait(self.start_send_batch(topic, bodies, **arguments), arguments)
        return receipts

    @edge
    def reserve(self, topic: str, size: int, *, timeout: float | None = None, **arguments: Any) -> TcpSlot:
        """Return memory for a body of up to `size` bytes; it is sent at the end of the `with` block."""
        refuse_wrong({"topic": topic, "size": size, "timeout": timeout, **arguments})
        properties = arguments.pop("properties", None)

        def publish(body: memoryview, properties: Mapping[str, str]) -> Receipt:
            return self.send(topic, body, properties=properties, timeout=timeout, **arguments)

        return TcpSlot(operator.index(size), publish, properties)

    # -- the same, with a future instead of a wait
    def start_send(self, topic: str, body: Any, **arguments: Any) -> Future[Receipt]:
        """Begin a send."""
        message, timeout, place = self._message(topic, body, **arguments)
        return self._wire.network.submit(self._send_one(message, place, timeout))

    def start_send_oneway(self, topic: str, body: Any, **arguments: Any) -> Future[None]:
        """Begin a send without an answer; it ends when the message is on its way."""
        message, timeout, place = self._message(topic, body, **arguments)
        return self._wire.network.submit(self._send_oneway(message, place, timeout))

    def start_send_batch(
        self,
        topic: str,
        bodies: Sequence[Any],
        *,
        tag: str | None = None,
        keys: Sequence[str | None] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        timeout: float | None = None,
    ) -> Future[list[Receipt]]:
        """Begin a batch."""
        named = {"tag": tag, "keys": keys, "properties": properties, "message_group": message_group}
        refuse_wrong({"topic": topic, "bodies": bodies, **named, "queue_id": queue_id, "timeout": timeout})
        check_open_topic(topic)
        bodies, keys = tuple(bodies), None if keys is None else tuple(keys)
        if keys is not None and len(keys) != len(bodies):
            raise UsageError(f"{len(keys)} keys for {len(bodies)} bodies", hint="one key for each body")
        each = [
            message_properties(tag, keys_of(keys[number], None) if keys else (), message_group, properties)
            for number in range(len(bodies))
        ]
        wire = self._wire
        parts = batches(self._ids, wire.now_ms(), topic, [body_of(body) for body in bodies], each)
        place = _Place(whole_in(queue_id), message_group)
        return wire.network.submit(self._send_parts(parts, place, self._seconds(timeout)))

    def prepare(
        self,
        topic: str,
        body: Any,
        extra: Mapping[str, str],
        *,
        sys_flag: int = 0,
        retries: int = RETRIES,
        **arguments: Any,
    ) -> Callable[..., Awaitable[Receipt]]:
        """Return a send for the I/O thread, of a message with properties that only clients of brokers may set.

        It takes the seconds that are left for it, where they are not all of them.
        """
        message, timeout, place = self._message(topic, body, extra=extra, **arguments)
        message = message._replace(sys_flag=message.sys_flag | sys_flag)
        return lambda left=timeout: self._send_one(message, place, left, retries, waits=False)

    def _message(
        self,
        topic: str,
        body: Any,
        *,
        queue_id: int | None = None,
        flag: int = 0,
        timeout: float | None = None,
        extra: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> tuple[Outgoing, float, _Place]:
        refuse_wrong({"topic": topic, "queue_id": queue_id, "flag": flag, "timeout": timeout})
        check_open_topic(topic)
        found = take_properties(arguments)
        place = _Place(whole_in(queue_id), arguments.pop("message_group", None))
        if arguments:
            found.update(take_special(arguments))
        found.update(extra or {})
        wire = self._wire
        message = single(self._ids, wire.now_ms(), self._compression, topic, body, flag, found)
        return message, self._seconds(timeout), place

    def _wait(self, future: Future[Any], arguments: Mapping[str, Any]) -> Any:
        return self._wire.wait(future, self._seconds(arguments.get("timeout")))

    def _seconds(self, timeout: float | None) -> float:
        return check_wait(timeout, self._timeout)

    # -- on the I/O thread
    async def _send_one(
        self, message: Outgoing, place: _Place, timeout: float, retries: int = RETRIES, *, waits: bool = True
    ) -> Receipt:
        attempts = Attempts(self._now() + timeout, retries=retries, waits=waits)
        receipts, _ = await self._send(message, place, attempts)
        return receipts[0]

    async def _send_parts(self, parts: Sequence[Outgoing], place: _Place, timeout: float) -> list[Receipt]:
        deadline = self._now() + timeout
        found: list[Receipt] = []
        waiting = list(reversed(parts))
        refused_bytes = sys.maxsize
        while waiting:
            part = waiting.pop()
            if len(part.message_ids) > 1 and len(part.body) >= refused_bytes:
                waiting += reversed(halves(part))
                continue
            try:
                receipts, queue = await self._send(part, place, Attempts(deadline))
            except MessageTooLarge as error:
                if len(part.message_ids) == 1 or error.maybe_stored:
                    _tell(error, found)
                    raise
                refused_bytes = len(part.body)
                waiting.append(part)
            except ShmqError as error:
                _tell(error, found)
                raise
            else:
                place = _Place(None, None, queue)
                found += receipts
        return found

    async def _send_oneway(self, message: Outgoing, place: _Place, timeout: float) -> None:
        attempts = Attempts(self._now() + timeout, retries=0)
        while True:
            try:
                queue, address = await self._choose(message, place, attempts)
                command = self._command(message, queue, oneway=True)
                await self._wire.network.notify(address, command, max(0.001, attempts.deadline - self._now()))
            except ShmqError as error:
                if not await self._wait_for_master(message.topic, error, attempts):
                    raise
            else:
                return

    async def _send(self, message: Outgoing, place: _Place, attempts: Attempts) -> tuple[list[Receipt], MessageQueue]:
        is_doubtful = False  # an earlier try may have stored it
        while True:
            try:
                queue, address = await self._choose(message, place, attempts)
            except ShmqError as refused:
                if await self._wait_for_master(message.topic, refused, attempts):
                    continue
                raise _doubted(refused) if is_doubtful else refused from None
            started = self._now()
            try:
                remaining = max(0.001, attempts.deadline - started)
                # A broker that does not answer must leave time for another one.
                share = (
                    remaining / (attempts.left + 1) if place.is_free and self._has_choice(message.topic) else remaining
                )
                reply = await self._wire.network.request(address, self._command(message, queue), share)
                error = send_error(reply)
                if error is None:
                    self._report(queue.brokerName, self._now() - started)
                    return self._receipts(message, queue, reply), queue
                failed = False
            except (ConnectError, RequestTimeout) as raised:
                error, failed = raised, True
            self._report(queue.brokerName, self._now() - started, failed=failed)
            is_doubtful |= error.maybe_stored
            if attempts.may_retry(error, queue.brokerName, self._now()):
                if failed or error.code == 17:
                    self._wire.names.routes.forget(message.topic)
            elif not await self._wait_for_master(message.topic, error, attempts):
                raise _doubted(error) if is_doubtful else error

    async def _wait_for_master(self, topic: str, error: ShmqError, attempts: Attempts) -> bool:
        """Wait a moment for the next master of a topic's broker; False where there will be none before the deadline."""
        remaining = attempts.deadline - self._now()
        if not attempts.waits or remaining <= 0 or not await _may_wait(self._wire.names, topic, remaining, error):
            return False
        await asyncio.sleep(min(MASTER_PAUSE_SECONDS, remaining))
        return self._now() < attempts.deadline

    async def _choose(self, message: Outgoing, place: _Place, attempts: Attempts) -> tuple[MessageQueue, Any]:
        wire = self._wire
        remaining = max(0.001, attempts.deadline - self._now())
        route = await wire.names.writable_route(message.topic, timeout=remaining)
        queue = place.queue
        if queue is None and place.queue_id is not None:
            queue = wire.numbers.queue(message.topic, place.queue_id)
            if queue not in route.permitted:
                raise UsageError(
                    f"topic {message.topic} has no queue {place.queue_id} that may be written",
                    hint=f"its queues are {sorted(map(wire.numbers.number, route.permitted))}",
                )
        if queue is None and place.message_group is not None:
            queue = queue_of_group(route, place.message_group)
        if queue is None:
            queue = self._choice.select(route, self._now(), avoid=attempts.avoid)
        address = route.master(queue.brokerName)
        if address is None:
            raise no_master(queue.brokerName)
        return queue, address

    def _has_choice(self, topic: str) -> bool:
        route = self._wire.names.routes.old(topic)
        return route is not None and len(route.brokers) > 1

    def _command(self, message: Outgoing, queue: MessageQueue, *, oneway: bool = False) -> Command:
        return send_command(
            message, group=self._group, broker_name=queue.brokerName, queue_id=queue.queueId, oneway=oneway
        )

    def _receipts(self, message: Outgoing, queue: MessageQueue, reply: Command) -> list[Receipt]:
        ids = reply.ext.get("msgId", "").split(",")
        queue_id, first = (number_in("the answer to a send", reply.ext, name) for name in ("queueId", "queueOffset"))
        number = self._wire.numbers.number(MessageQueue(queue.brokerName, queue_id, message.topic))
        return [
            receipt_make(
                message.topic,
                number,
                first + index,
                position_in(ids[index] if index < len(ids) else "") or 0,
                message.born_ms,
                message_id,
                reply.ext.get("recallHandle"),
            )
            for index, message_id in enumerate(message.message_ids)
        ]

    def _report(self, broker_name: str, latency: float, *, failed: bool = False) -> None:
        self._choice.report(broker_name, latency, self._now(), failed=failed)

    def _now(self) -> float:
        return self._wire.network.loop.time()


async def _may_wait(names: NameService, topic: str, timeout: float, error: ShmqError) -> bool:
    """Whether the next master of a topic's broker may take what failed so; it is looked for at the next use."""
    has_route = names.routes.old(topic) is not None
    if not waits_for_master(error, has_route=has_route):
        return False
    if not begins_anew(error) and not await names.may_switch(topic, timeout=timeout):
        return False
    names.routes.forget(topic)
    return True


def _tell(error: ShmqError, stored: list[Receipt]) -> None:
    """Say in the error of one part of a batch what the parts before it have stored."""
    if stored:
        error.maybe_stored, error.receipts = True, stored


def _doubted(error: ShmqError) -> ShmqError:
    """The error of a send that has tried more than once: one of the tries may have stored the message."""
    if not isinstance(error, SendTimeout):  # there it is said
        error.args = (f"whether the message is stored is not known: {error}",)
    error.maybe_stored = True
    return error


class _Place(NamedTuple):
    """The place a caller gives for a message."""

    queue_id: int | None
    message_group: str | None
    queue: MessageQueue | None = None

    @property
    def is_free(self) -> bool:
        """Whether any queue will do."""
        return self.queue is None and self.queue_id is None and self.message_group is None


class TcpSlot:
    """As `shmq.Slot`, in memory of this process: `with mq.reserve(…) as slot:` sends at the end of the block."""

    __reduce_ex__ = stays_here("hand over the connection, and reserve there")

    def __init__(self, size: int, publish: Publish, properties: Mapping[str, str] | None) -> None:
        check_body(size)
        self._memory = bytearray(size)
        self._publish = publish
        self._open = True
        self.view = memoryview(self._memory)
        self.size = size
        self.properties: dict[str, str] = dict(properties or {})
        self.receipt: Receipt | None = None

    def commit(self) -> Receipt:
        """Send the first `size` bytes.

        Raises:
            UsageError: it was committed or aborted before, or `size` grew.
        """
        size = whole_in(self.size, 0, len(self._memory))
        if not self._open or size is None:
            raise UsageError("the slot is over, or its size grew", hint="reserve another one")
        self._open = False
        self.receipt = self._publish(memoryview(self._memory)[:size], self.properties)
        return self.receipt

    def abort(self) -> None:
        """Send nothing; twice is harmless."""
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is not None:
            self.abort()
        elif self._open:
            self.commit()
