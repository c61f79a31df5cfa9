"""Owns transactions over TCP: the half is a send, its end a request to the broker that has it.

It does not know users' objects (client.transaction).

    begin    one send, tried once: a try that only seemed to fail would leave a second half, which is asked about too
    end      END_TRANSACTION to that broker, and its answer is awaited, unlike RocketMQ's clients do
    39       the broker asks; the answer is an END_TRANSACTION over the connection the question came by
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from shmq.client.transactions.local import question_of
from shmq.client.transactions.transaction import Question, TxState, check_topic_of, end_fields, half_properties
from shmq.errors import BrokerNotRunning, RemoteError, TransactionError
from shmq.message import is_system_topic
from shmq.protocol import transaction as wire
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.shm.core import Receipt

if TYPE_CHECKING:
    from shmq.client.wire_tcp.channel import Channel
    from shmq.client.wire_tcp.session import RemoteSession


class RemoteHalf(NamedTuple):
    """An open transaction at some broker; `receipt` names the half's queue offset and log position."""

    group: str
    topic: str
    message_id: str
    broker_name: str
    receipt: Receipt


class RemoteTransactions:
    """The transactions of one connection to a cluster."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._asked: Callable[[Question], None] | None = None
        self._introduced: set[str] = set()

    def begin(
        self, group: str, topic: str, body: Any, timeout: float, *, check_after: float | None = None, **arguments: Any
    ) -> RemoteHalf:
        """Store a message that nobody sees yet."""
        check_topic_of(topic, is_system=is_system_topic(topic))
        session = self._session
        sender = session.sender(timeout, group=group)
        sending = sender.prepare(
            topic, body, half_properties(group, check_after), sys_flag=wire.PREPARED, retries=0, **arguments
        )
        receipt: Receipt = session.wait(session.network.submit(self._begin(topic, sending, timeout)), timeout)
        broker_name = session.numbers.queue(topic, receipt.queue_id).brokerName
        return RemoteHalf(group, topic, receipt.message_id, broker_name, receipt)

    async def _begin(self, topic: str, sending: Callable[[], Awaitable[Receipt]], timeout: float) -> Receipt:
        session = self._session
        if topic not in self._introduced:
            # Brokers ask members they have heard of; the next heartbeat would come half a minute later.
            await session.names.writable_route(topic, timeout=timeout)
            await session.registration.beat()
            self._introduced.add(topic)
        return await sending()

    def end(self, half: RemoteHalf, state: TxState, timeout: float) -> Receipt | None:
        """Make it visible, or never let it be seen; a commit's receipt names the half's place: brokers say no more."""
        fields = end_fields(half.group, half.receipt.offset, half.receipt.log_position, state, half.message_id)
        self._session.call(self._end(half, fields, timeout), timeout)
        return half.receipt if state == wire.COMMIT else None

    async def _end(self, half: RemoteHalf, fields: dict[str, str], timeout: float) -> None:
        session = self._session
        route = await session.names.writable_route(half.topic, timeout=timeout)
        address = route.master(half.broker_name)
        if address is None:
            raise BrokerNotRunning(f"broker {half.broker_name} has no master now", hint="is it up, and registered?")
        command = Command(code=Request.END_TRANSACTION, ext={**fields, "topic": half.topic, "bname": half.broker_name})
        error = error_of(await session.network.request(address, command, timeout))
        if isinstance(error, RemoteError):
            raise TransactionError(
                f"transaction {half.message_id} cannot be ended: {error.remark}",
                hint="the broker may have asked somebody else, or rolled it back",
            ) from error
        if error is not None:
            raise error

    def answer(self, groups: list[str], asked: Callable[[Question], None]) -> None:
        """Let brokers ask this client; they know its groups by its heartbeats."""
        self._asked = asked

    def checked(self, channel: Channel, request: Command) -> None:
        """A broker asks; on the I/O thread."""
        topic = request.ext.get("topic", "")

        def tell(fields: dict[str, str]) -> None:
            command = Command(code=Request.END_TRANSACTION, ext={**fields, "topic": topic} if topic else fields)
            session = self._session
            error = error_of(session.call(session.network.request(channel.address, command, session.timeout)))
            if error is not None:
                raise error

        question = question_of(request, tell)
        if question is not None and self._asked is not None:
            self._asked(question)
