"""Owns requests and replies over TCP: a request is a send, its reply is pushed to us by a broker.

It does not know listeners (client.replier does), nor routes and connections.

    request   a message with CORRELATION_ID, REPLY_TO_CLIENT (our client id) and TTL
    326       a broker pushes the reply over the connection our heartbeats come by

Rules:
    (1) brokers of a topic have heard of us as a producer before a request is sent to them: they look for it when the
        reply comes, at whichever broker of the cluster that is;
    (2) a reply goes by the broker its request came from, if that has the reply topic: there the requester is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from shmq.client.producers.compression import SYS_FLAG_COMPRESSED
from shmq.client.requests.local import reply_header, reply_properties
from shmq.client.requests.waiting import Waiting
from shmq.client.wire_tcp.outgoing import Outgoing, body_of
from shmq.errors import ProtocolError, TopicNotFound, UsageError
from shmq.message import encode_properties, parse_properties
from shmq.protocol import request_reply as wire
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.shm.core import Message, record_encode, records_read

if TYPE_CHECKING:
    from shmq.client.wire_tcp.session import RemoteSession

_TYPE_BITS = 0x700
_INT32_MAX = (1 << 31) - 1


class RemoteRequests:
    """The requests of one connection to a cluster."""

    def __init__(self, session: RemoteSession) -> None:
        self._session = session
        self._sender = session.sender(session.timeout)
        self._open: dict[str, asyncio.Future[Message]] = {}
        self._introduced: set[str] = set()
        self._ids = itertools.count(1)
        self._prefix = os.urandom(8).hex()

    def request(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Message:
        """Send a request and return its reply.

        Raises:
            RequestTimeout: none came in time.
        """
        return self._session.wait(self.begin(topic, body, timeout, **arguments), timeout)

    def begin(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Future[Message]:
        """Send a request and return a future of its reply."""
        waiting = Waiting(f"{self._prefix}{next(self._ids):x}", topic, timeout)
        extra = {
            wire.CORRELATION_ID: waiting.correlation_id,
            wire.REPLY_TO: self._session.client_id,
            wire.TTL: str(max(1, round(timeout * 1000))),
        }
        sending = self._sender.prepare(topic, body, extra, timeout=timeout, **arguments)
        return self._session.network.submit(self._ask(waiting, sending))

    async def _ask(self, waiting: Waiting, sending: Callable[[], Awaitable[Any]]) -> Message:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._open[waiting.correlation_id] = answer
        try:
            async with asyncio.timeout(waiting.timeout):
                await self._introduce(waiting)
                await sending()
                return await answer
        except TimeoutError as error:
            if type(error) is TimeoutError:
                raise waiting.timed_out() from None
            raise
        finally:
            self._open.pop(waiting.correlation_id, None)

    async def _introduce(self, waiting: Waiting) -> None:
        """Let the brokers of a topic know us as a producer."""
        if waiting.topic in self._introduced:
            return
        session = self._session
        session.registration.asks = True
        await session.names.writable_route(waiting.topic, timeout=waiting.timeout)
        await session.registration.beat()
        self._introduced.add(waiting.topic)

    def pushed(self, request: Command) -> Command:
        """Take a reply that a broker pushes, and answer it; on the I/O thread."""
        message = pushed_message(request, self._session.now_ms())
        answer = self._open.get(message.properties.get(wire.CORRELATION_ID, ""))
        if answer is not None:
            with contextlib.suppress(asyncio.InvalidStateError):  # a second reply, or one that came too late
                answer.set_result(message)
        return request.reply(Response.SUCCESS)

    # -- the other side
    def reply(self, message: Message, body: Any) -> bool:
        """Bring a reply to whoever asked; False when the requester is not there any more."""
        cluster = message.properties.get(wire.CLUSTER)
        if cluster is None:
            raise UsageError(
                f"request {message.message_id} does not say which cluster it is from",
                hint="brokers add the property CLUSTER; is it a message of a broker?",
            )
        text = encode_properties(reply_properties(message))
        outgoing = Outgoing(wire.reply_topic(cluster), body_of(body), text, 0, 0, (), self._session.now_ms())
        return bool(self._session.call(self._reply(outgoing, message.topic, message.queue_id)))

    async def _reply(self, outgoing: Outgoing, topic: str, number: int) -> bool:
        session = self._session
        route = await session.names.writable_route(outgoing.topic, timeout=session.timeout)
        queues = route.writable
        with contextlib.suppress(UsageError, LookupError):
            origin = session.numbers.queue(topic, number).brokerName
            queues = tuple(queue for queue in queues if queue.brokerName == origin) or queues
        address = route.master(queues[0].brokerName)
        if address is None:
            raise TopicNotFound(f"topic {outgoing.topic} has no broker now", hint="is it up, and registered?")
        ext = reply_header(outgoing.topic, outgoing.properties, queue_id=queues[0].queueId, born_ms=outgoing.born_ms)
        ext |= {"m": "false", "n": queues[0].brokerName}
        command = Command(code=Request.SEND_REPLY_MESSAGE_V2, ext=ext, body=bytes(outgoing.body))
        reply = await session.network.request(address, command, session.timeout)
        return reply.code == Response.SUCCESS


def pushed_message(request: Command, now_ms: int) -> Message:
    """Return the message in a PUSH_REPLY_MESSAGE_TO_CLIENT.

    Raises:
        ProtocolError: it is none.
    """
    ext = request.ext
    properties = {**parse_properties(ext.get("properties", "")), wire.ARRIVE_TIME: str(now_ms)}
    sys_flag = _number(ext, "sysFlag")
    record = record_encode(
        body=request.body,
        topic=ext.get("topic", "").encode()[:127],
        properties=encode_properties(properties).encode(),
        queue_id=max(0, _number(ext, "queueId")),
        flag=_number(ext, "flag"),
        sys_flag=sys_flag & (SYS_FLAG_COMPRESSED | _TYPE_BITS),
        born_ms=_number(ext, "bornTimestamp", 1 << 62),
        store_ms=_number(ext, "storeTimestamp", 1 << 62),
    )
    (message,) = records_read(record)
    return message


def _number(ext: Mapping[str, str], name: str, most: int = _INT32_MAX) -> int:
    text = ext.get(name, "0")
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal() or len(text) > 19:
        raise ProtocolError(f"a pushed reply has {name}={text[:32]!a}; a number is needed")
    return max(-1, min(int(text), most))
