"""Requests over TCP: a request is an ordinary send, and a broker pushes its reply to this client (326)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from shmq.client.requests.requester import Requests, Waiting, request_properties
from shmq.errors import ProtocolError
from shmq.properties import encode_properties, parse_properties
from shmq.protocol import request_reply as wire
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.compression import SYS_FLAG_COMPRESSED
from shmq.shm.core import Message, record_encode, records_read

_TYPE_BITS = 0x700
_INT32_MAX = (1 << 31) - 1


class PushedReplies:
    """The way over TCP: a request is an ordinary send, its reply is pushed to us by a broker."""

    poll = None

    def __init__(
        self,
        client_id: str,
        *,
        prepare: Callable[..., Callable[[], Awaitable[Any]]],
        introduce: Callable[[str, float], Awaitable[None]],
        submit: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """
        Args:
            prepare: returns a send of a message with properties that only clients of brokers may set.
            introduce: lets the brokers of a topic know that we ask.
            submit: runs a coroutine on the I/O thread.
        """
        self._client_id = client_id
        self._prepare = prepare
        self._introduce = introduce
        self._submit = submit

    def send(
        self, waiting: Waiting, body: Any, arguments: dict[str, Any], *, failed: Callable[[Exception], None]
    ) -> None:
        """Begin to send a request."""
        timeout = waiting.timeout
        extra = {**request_properties(waiting.correlation_id, timeout), wire.REPLY_TO: self._client_id}
        sending = self._prepare(waiting.topic, body, extra, timeout=timeout, **arguments)

        async def send() -> None:
            try:
                async with asyncio.timeout(timeout):
                    await self._introduce(waiting.topic, timeout)
                    await sending()
            except Exception as error:
                if type(error) is not TimeoutError:  # the waiting request has the deadline itself
                    failed(error)

        self._submit(send())

    def skip(self) -> None:
        """Nothing: replies without a waiting request are not kept."""

    def close(self) -> None:
        """Nothing: pushed replies are answered as long as the connection lives."""


def take_pushed(requests: Requests, request: Command) -> Command:
    """Take a reply that a broker pushes, and answer the broker; on the I/O thread.

    Raises:
        ProtocolError: it is none.
    """
    requests.arrived(pushed_message(request, round(time.time() * 1000)))
    return request.reply(Response.SUCCESS)


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
