"""Owns POP's requests to brokers: take messages, settle them, ask whether a broker offers it at all.

It does not know who takes them, nor when. Every method is a coroutine of the I/O thread and ends within its timeout.

Rules: (1) a pop goes to the master of a broker name; (2) receipts are what the broker said, or what its answer makes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from shmq.errors import BrokerNotRunning, ProtocolError
from shmq.message import popped_topic
from shmq.protocol.body import encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import error_of
from shmq.protocol.pop import BatchAck, BatchAcks, Receipt, bit_set, parse_start_offsets
from shmq.protocol.route import DEFAULT_TOPIC

if TYPE_CHECKING:
    from shmq.client.consumer import ConsumerSpec
    from shmq.client.remote.place import Address
    from shmq.client.remote.session import RemoteSession

FROM_FIRST: Final = 0
ANY_QUEUE: Final = -1
NOTHING: Final = (Response.PULL_NOT_FOUND, Response.POLLING_TIMEOUT, Response.POLLING_FULL)


class Batch(NamedTuple):
    """What a pop brought; `body` is empty when that was nothing."""

    body: bytes = b""
    first_offsets: Mapping[tuple[str, int], int] = MappingProxyType({})
    pop_ms: int = 0
    invisible_ms: int = 0
    revive_queue: int = 0
    rest: int = 0


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
        ext = {
            "consumerGroup": spec.group or "",
            "topic": spec.topic,
            "queueId": str(ANY_QUEUE),
            "maxMsgNums": str(count),
            "invisibleTime": str(math.ceil(invisible * 1000)),
            "pollTime": str(round(hold * 1000)),
            "bornTime": str(self._session.now_ms()),
            "initMode": str(FROM_FIRST),
            "expType": spec.wanted.kind,
            "exp": spec.wanted.expression,
            "order": "false",
            "bname": broker_name,
        }
        command = Command(code=Request.POP_MESSAGE, ext=ext)
        reply = await self._ask(spec.topic, broker_name, command, hold + self._session.timeout)
        if reply.code in NOTHING:
            return Batch()
        if (error := error_of(reply)) is not None:
            raise error
        return Batch(
            reply.body,
            parse_start_offsets(reply.ext.get("startOffsetInfo", "")),
            _number(reply, "popTime"),
            _number(reply, "invisibleTime"),
            _number(reply, "reviveQid"),
            _number(reply, "restNum"),
        )

    async def ack(self, spec: ConsumerSpec, receipts: Sequence[Receipt]) -> None:
        """Settle messages of one pop of one queue."""
        first = receipts[0]
        if len(receipts) == 1:
            command = Command(code=Request.ACK_MESSAGE, ext=_settling(spec, first))
        else:
            ack = BatchAck(
                c=spec.group or "",
                t=spec.topic,
                r=first.retry_flag,
                so=first.first_offset,
                q=first.queue_id,
                rq=first.revive_queue,
                pt=first.pop_ms,
                it=first.invisible_ms,
                b=bit_set(first.first_offset, (receipt.offset for receipt in receipts)),
            )
            body = encode_body(BatchAcks(brokerName=first.broker, acks=[ack]))
            command = Command(code=Request.BATCH_ACK_MESSAGE, ext={"bname": first.broker}, body=body)
        reply = await self._ask(spec.topic, first.broker, command, self._session.timeout)
        if (error := error_of(reply)) is not None:
            raise error

    async def change(self, spec: ConsumerSpec, receipt: Receipt, seconds: float) -> Receipt | None:
        """Hide a message for so long from now; its new receipt, None when it is not popped any more."""
        ext = _settling(spec, receipt) | {"invisibleTime": str(math.ceil(seconds * 1000))}
        command = Command(code=Request.CHANGE_MESSAGE_INVISIBLETIME, ext=ext)
        reply = await self._ask(spec.topic, receipt.broker, command, self._session.timeout)
        if reply.code == Response.NO_MESSAGE:
            return None
        if (error := error_of(reply)) is not None:
            raise error
        return receipt._replace(
            first_offset=receipt.first_offset if receipt.is_ordered else receipt.offset,
            pop_ms=_number(reply, "popTime"),
            invisible_ms=_number(reply, "invisibleTime"),
        )

    async def _ask(self, topic: str, broker_name: str, command: Command, timeout: float) -> Command:
        return await self._session.network.request(await self._master(topic, broker_name), command, timeout)

    async def _master(self, topic: str, broker_name: str) -> Address:
        route = await self._session.names.route(topic, timeout=self._session.timeout)
        address = route.master(broker_name) if route is not None else None
        if address is None:
            raise BrokerNotRunning(f"broker {broker_name} of topic {topic} is not registered now", hint="is it up?")
        return address


def _settling(spec: ConsumerSpec, receipt: Receipt) -> dict[str, str]:
    return {
        "consumerGroup": spec.group or "",
        "topic": popped_topic(spec.group or "", spec.topic, receipt.retry_flag),
        "queueId": str(receipt.queue_id),
        "offset": str(receipt.offset),
        "extraInfo": str(receipt),
        "bname": receipt.broker,
    }


def _number(reply: Command, name: str) -> int:
    text = reply.ext.get(name, "")
    if not text.isdecimal() or len(text) > 18:
        raise ProtocolError(f"the answer to a pop has {name}={text[:32]!a}")
    return int(text)
