"""Owns POP's requests to brokers over TCP: take messages, settle them, ask whether a broker offers it at all.

It does not know who takes them, nor when. Every method is a coroutine of the I/O thread and ends within its timeout.

Rule: a pop goes to the master of a broker name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shmq.client.pop.words import (
    ANY_QUEUE,
    Batch,
    ack_body,
    batch_of,
    hiding_fields,
    new_receipt,
    pop_fields,
    settling_fields,
)
from shmq.errors import BrokerNotRunning
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.protocol.pop import Receipt
from shmq.protocol.route import DEFAULT_TOPIC

if TYPE_CHECKING:
    from shmq.client.place import Address
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_tcp.session import RemoteSession


class PopRequests:
    """Requests of one connection."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session

    async def is_offered(self, spec: ConsumerSpec) -> bool:
        """Say whether every broker of a topic, or of the cluster while it has none, offers POP."""
        session, timeout = self._session, self._session.timeout
        # A topic that does not exist yet will be where the default topic is.
        route = await session.names.route(spec.topic, timeout=timeout)
        route = route or await session.names.route(DEFAULT_TOPIC, timeout=timeout)
        masters = [master for name in route.brokers if (master := route.master(name))] if route else []
        ext = {"consumerGroup": spec.group or "", "topic": spec.topic, "queueId": str(ANY_QUEUE)}
        for address in masters:
            command = Command(code=Request.POLLING_INFO, ext=dict(ext))
            reply = await session.network.request(address, command, timeout)
            if reply.code == Response.REQUEST_CODE_NOT_SUPPORTED:
                return False
        return bool(masters)

    async def pop(self, spec: ConsumerSpec, broker_name: str, *, count: int, invisible: float, hold: float) -> Batch:
        """Take messages of a topic from one broker, waiting `hold` seconds for the first."""
        fields = pop_fields(
            spec, broker_name, count=count, invisible=invisible, hold=hold, now_ms=self._session.now_ms()
        )
        command = Command(code=Request.POP_MESSAGE, ext=fields)
        return batch_of(await self._ask(spec.topic, broker_name, command, hold + self._session.timeout))

    async def ack(self, spec: ConsumerSpec, receipts: Sequence[Receipt]) -> None:
        """Settle messages of one pop of one queue."""
        first = receipts[0]
        if len(receipts) == 1:
            command = Command(code=Request.ACK_MESSAGE, ext=settling_fields(spec, first))
        else:
            body = ack_body(spec, {first.pop: [receipt.offset for receipt in receipts]})
            command = Command(code=Request.BATCH_ACK_MESSAGE, ext={"bname": first.broker}, body=body)
        reply = await self._ask(spec.topic, first.broker, command, self._session.timeout)
        if (error := error_of(reply)) is not None:
            raise error

    async def change(self, spec: ConsumerSpec, receipt: Receipt, seconds: float) -> Receipt | None:
        """Hide a message for so long from now; its new receipt, None when it is not popped any more."""
        command = Command(code=Request.CHANGE_MESSAGE_INVISIBLETIME, ext=hiding_fields(spec, receipt, seconds))
        return new_receipt(await self._ask(spec.topic, receipt.broker, command, self._session.timeout), receipt)

    async def _ask(self, topic: str, broker_name: str, command: Command, timeout: float) -> Command:
        return await self._session.network.request(await self._master(topic, broker_name), command, timeout)

    async def _master(self, topic: str, broker_name: str) -> Address:
        route = await self._session.names.route(topic, timeout=self._session.timeout)
        address = route.master(broker_name) if route is not None else None
        if address is None:
            raise BrokerNotRunning(f"broker {broker_name} of topic {topic} is not registered now", hint="is it up?")
        return address
