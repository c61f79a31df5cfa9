"""Owns finding messages of a cluster by key and by id, as RocketMQ's tools do it.

It does not know what is asked for beyond that. Every function is a coroutine of the I/O thread.

    key    every master of the topic is asked (QUERY_MESSAGE), at once
    id     the broker whose address the id holds (VIEW_MESSAGE_BY_ID); where none has it, for instance behind a
           translated address, every master of the topic

Rule: no address is connected to because an id names it; ids are input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shmq.client.search.local import query_ext
from shmq.errors import RemoteError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of
from shmq.protocol.message_id import message_place
from shmq.shm.core import Message, records_read

if TYPE_CHECKING:
    from shmq.client.place import Address
    from shmq.client.search.browse import KeyQuery
    from shmq.client.wire_tcp.session import RemoteSession


async def find_by_key(session: RemoteSession, query: KeyQuery) -> list[Message]:
    """Return the messages of a topic that have a key."""
    masters = await _masters(session, query.topic)
    found = await asyncio.gather(
        *(_ask(session, query.topic, master, Request.QUERY_MESSAGE, query_ext(query)) for master in masters.items())
    )
    return [message for messages in found for message in messages if query.wants(message)]


async def find_by_place(session: RemoteSession, topic: str, message_id: str) -> Message | None:
    """Return the message an offset message id leads to, None when it leads to none of this topic."""
    place = message_place(message_id)
    if place is None:
        return None
    masters = await _masters(session, topic)
    named = {name: address for name, address in masters.items() if address == (place.host, place.port)}
    ext = {"offset": str(place.log_position)}
    for some in (named, masters):
        answers = await asyncio.gather(
            *(_ask(session, topic, master, Request.VIEW_MESSAGE_BY_ID, ext) for master in some.items())
        )
        found = [message for messages in answers for message in messages if message.topic == topic]
        if found:
            return next((each for each in found if each.offset_message_id == message_id.upper()), found[0])
    return None


async def _masters(session: RemoteSession, topic: str) -> dict[str, Address]:
    route = await session.names.readable_route(topic, timeout=session.timeout)
    session.numbers.learn(route)
    named: Iterable[tuple[str, Address | None]] = ((name, route.reader(name)) for name in route.brokers)
    return {name: address for name, address in named if address is not None}


async def _ask(
    session: RemoteSession, topic: str, master: tuple[str, Address], code: int, ext: dict[str, str]
) -> list[Message]:
    broker_name, address = master
    reply = await session.network.request(address, Command(code=code, ext=dict(ext)), session.timeout)
    if (error := error_of(reply)) is not None:
        # RocketMQ answers a position without a record with its general error.
        if isinstance(error, RemoteError) and reply.code in (Response.QUERY_NOT_FOUND, Response.SYSTEM_ERROR):
            return []
        raise error
    return records_read(reply.body, queue_base=session.numbers.number(MessageQueue(broker_name, 0, topic)))
