"""Owns sending over TCP: one send is a few tries on the I/O thread, which somebody waits for or not.

It does not know what a message looks like on the wire (outgoing), which queue is next (selection), nor what an answer
means (send_policy).

Rules:
    (1) a message group stays on its queue, whatever fails: its order is worth more than the send;
    (2) the parts of a batch go to one queue, one after the other; only the first may choose another one;
    (3) every send ends within its timeout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from shmq.client.producers.keywords import take_special
from shmq.client.producers.unique_id import offset_of_id
from shmq.client.wire_tcp.outgoing import (
    Outgoing,
    batches,
    body_of,
    keys_of,
    message_properties,
    send_command,
    single,
)
from shmq.client.wire_tcp.selection import queue_of_group
from shmq.client.wire_tcp.send_policy import RETRIES, Attempts, send_error
from shmq.client.wire_tcp.slot import RemoteSlot
from shmq.errors import BrokerNotRunning, ConnectError, ProtocolError, RequestTimeout, UsageError
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import Receipt, receipt_make

if TYPE_CHECKING:
    from shmq.client.wire_tcp.session import RemoteSession


class RemoteSender:
    """Sends for one producer group, with one timeout; any thread may use it."""

    def __init__(self, session: RemoteSession, timeout: float, group: str, compression: str) -> None:
        self._session = session
        self._timeout = timeout
        self._group = group
        self._compression = compression

    def send(self, topic: str, body: Any, **arguments: Any) -> Receipt:
        """Store one message and return where."""
        receipt: Receipt = self._wait(self.start_send(topic, body, **arguments), arguments)
        return receipt

    def send_oneway(self, topic: str, body: Any, **arguments: Any) -> None:
        """Hand one message to a broker that does not answer."""
        self._wait(self.start_send_oneway(topic, body, **arguments), arguments)

    def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Any) -> list[Receipt]:
        """Store all bodies into one queue, in order."""
        receipts: list[Receipt] = self._wait(self.start_send_batch(topic, bodies, **arguments), arguments)
        return receipts

    def reserve(self, topic: str, size: int, *, timeout: float | None = None, **arguments: Any) -> RemoteSlot:
        """Return memory for a body of up to `size` bytes; it is sent at the end of the `with` block."""
        properties = arguments.pop("properties", None)

        def publish(body: memoryview, properties: Mapping[str, str]) -> Receipt:
            return self.send(topic, body, properties=properties, timeout=timeout, **arguments)

        return RemoteSlot(size, publish, properties)

    # -- the same, for whoever waits in another way
    def start_send(self, topic: str, body: Any, **arguments: Any) -> Future[Receipt]:
        """Begin a send."""
        message, timeout, place = self._message(topic, body, **arguments)
        return self._session.network.submit(self._send_one(message, place, timeout))

    def start_send_oneway(self, topic: str, body: Any, **arguments: Any) -> Future[None]:
        """Begin a send that nobody answers; it ends when the message is on its way."""
        message, timeout, place = self._message(topic, body, **arguments)
        return self._session.network.submit(self._send_oneway(message, place, timeout))

    def start_send_batch(
        self,
        topic: str,
        bodies: Sequence[Any],
        *,
        tag: str | None = None,
        keys: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        timeout: float | None = None,
    ) -> Future[list[Receipt]]:
        """Begin a batch."""
        if keys is not None and len(keys) != len(bodies):
            raise UsageError(f"{len(keys)} keys for {len(bodies)} bodies", hint="one key for each body")
        each = [
            message_properties(tag, [keys[number]] if keys else (), message_group, properties)
            for number in range(len(bodies))
        ]
        session = self._session
        parts = batches(session.ids, session.now_ms(), topic, [body_of(body) for body in bodies], each)
        place = _Place(queue_id, message_group)
        return session.network.submit(self._send_parts(parts, place, self._timeout if timeout is None else timeout))

    def prepare(
        self,
        topic: str,
        body: Any,
        extra: Mapping[str, str],
        *,
        sys_flag: int = 0,
        retries: int = RETRIES,
        **arguments: Any,
    ) -> Callable[[], Awaitable[Receipt]]:
        """Return a send for the I/O thread, of a message with properties that only clients of brokers may set."""
        message, timeout, place = self._message(topic, body, extra=extra, **arguments)
        message = message._replace(sys_flag=message.sys_flag | sys_flag)
        return lambda: self._send_one(message, place, timeout, retries)

    def _message(
        self,
        topic: str,
        body: Any,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        timeout: float | None = None,
        extra: Mapping[str, str] | None = None,
        **special: Any,
    ) -> tuple[Outgoing, float, _Place]:
        found = message_properties(tag, keys_of(key, keys), message_group, properties)
        if special:
            found.update(take_special(special))
        found.update(extra or {})
        session = self._session
        message = single(session.ids, session.now_ms(), self._compression, topic, body, flag, found)
        return message, self._timeout if timeout is None else timeout, _Place(queue_id, message_group)

    def _wait(self, future: Future[Any], arguments: Mapping[str, Any]) -> Any:
        timeout = arguments.get("timeout")
        return self._session.wait(future, self._timeout if timeout is None else timeout)

    # -- on the I/O thread
    async def _send_one(self, message: Outgoing, place: _Place, timeout: float, retries: int = RETRIES) -> Receipt:
        receipts, _ = await self._send(message, place, Attempts(self._now() + timeout, retries=retries))
        return receipts[0]

    async def _send_parts(self, parts: Sequence[Outgoing], place: _Place, timeout: float) -> list[Receipt]:
        deadline = self._now() + timeout
        found: list[Receipt] = []
        for part in parts:
            receipts, queue = await self._send(part, place, Attempts(deadline))
            place = _Place(None, None, queue)
            found += receipts
        return found

    async def _send_oneway(self, message: Outgoing, place: _Place, timeout: float) -> None:
        attempts = Attempts(self._now() + timeout, retries=0)
        queue, address = await self._choose(message, place, attempts)
        command = self._command(message, queue, oneway=True)
        await self._session.network.notify(address, command, timeout)

    async def _send(self, message: Outgoing, place: _Place, attempts: Attempts) -> tuple[list[Receipt], MessageQueue]:
        while True:
            queue, address = await self._choose(message, place, attempts)
            started = self._now()
            try:
                remaining = max(0.001, attempts.deadline - started)
                # A broker that does not answer must leave time for another one.
                share = (
                    remaining / (attempts.left + 1) if place.is_free and self._has_choice(message.topic) else remaining
                )
                reply = await self._session.network.request(address, self._command(message, queue), share)
                error = send_error(reply)
                if error is None:
                    self._session.report(queue.brokerName, self._now() - started)
                    return self._receipts(message, queue, reply), queue
                failed = False
            except (ConnectError, RequestTimeout) as raised:
                error, failed = raised, True
            self._session.report(queue.brokerName, self._now() - started, failed=failed)
            if not attempts.may_retry(error, queue.brokerName, self._now()):
                raise error
            if failed or error.code == 17:
                self._session.names.routes.forget(message.topic)

    async def _choose(self, message: Outgoing, place: _Place, attempts: Attempts) -> tuple[MessageQueue, Any]:
        session = self._session
        remaining = max(0.001, attempts.deadline - self._now())
        route = await session.names.writable_route(message.topic, timeout=remaining)
        session.numbers.learn(route)
        queue = place.queue
        if queue is None and place.queue_id is not None:
            queue = session.numbers.queue(message.topic, place.queue_id)
            if queue not in route.writable:
                raise UsageError(
                    f"topic {message.topic} has no queue {place.queue_id} that may be written",
                    hint=f"its queues are {sorted(map(session.numbers.number, route.writable))}",
                )
        if queue is None and place.message_group is not None:
            queue = queue_of_group(route, place.message_group)
        if queue is None:
            queue = session.selector.select(route, self._now(), avoid=attempts.avoid)
        address = route.master(queue.brokerName)
        if address is None:
            raise BrokerNotRunning(f"broker {queue.brokerName} has no master now", hint="is it up, and registered?")
        return queue, address

    def _has_choice(self, topic: str) -> bool:
        route = self._session.names.routes.old(topic)
        return route is not None and len(route.brokers) > 1

    def _command(self, message: Outgoing, queue: MessageQueue, *, oneway: bool = False) -> Command:
        return send_command(
            message, group=self._group, broker_name=queue.brokerName, queue_id=queue.queueId, oneway=oneway
        )

    def _receipts(self, message: Outgoing, queue: MessageQueue, reply: Command) -> list[Receipt]:
        ids = reply.ext.get("msgId", "").split(",")
        texts = reply.ext.get("queueId", ""), reply.ext.get("queueOffset", "")
        if not all(text.isdecimal() and len(text) <= 19 for text in texts):
            raise ProtocolError(f"the answer to a send has queueId={texts[0][:32]!a}, queueOffset={texts[1][:32]!a}")
        stored = MessageQueue(queue.brokerName, int(texts[0]), message.topic)
        number, first = self._session.numbers.number(stored), int(texts[1])
        return [
            receipt_make(
                message.topic,
                number,
                first + index,
                offset_of_id(ids[index] if index < len(ids) else ""),
                message.born_ms,
                message_id,
                reply.ext.get("recallHandle"),
            )
            for index, message_id in enumerate(message.message_ids)
        ]

    def _now(self) -> float:
        return self._session.network.loop.time()


class _Place:
    """Where the caller wants a message to go."""

    __slots__ = ("message_group", "queue", "queue_id")

    def __init__(self, queue_id: int | None, message_group: str | None, queue: MessageQueue | None = None) -> None:
        self.queue_id = queue_id
        self.message_group = message_group
        self.queue = queue

    @property
    def is_free(self) -> bool:
        """Whether any queue will do."""
        return self.queue is None and self.queue_id is None and self.message_group is None
