"""Owns finding messages of this host by key and by id.

It does not know what is asked for beyond that. Records are read where they are, in the log; the key index is the
broker's, so it is asked over the control plane. It follows the log: what was stored lately is read from the queues too.

    stored ──────────────────────────────────── a minute ago ──────── now
    the index (QUERY_MESSAGE) answers all of it │ the queues' ends are read as well

Rule: a message is found as soon as its send has returned, if the index is less than a minute behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from shmq.client.position import Kind, Position
from shmq.errors import RemoteError
from shmq.protocol.codes import Request, Response
from shmq.protocol.message_id import message_place
from shmq.shm.core import CoreError, Message, records_read

if TYPE_CHECKING:
    from shmq.client.search.browse import KeyQuery
    from shmq.client.wire_shm.session import Session

INDEX_LAG_MS: Final = 60_000
_READ_COUNT = 256


def query_ext(query: KeyQuery) -> dict[str, str]:
    """Return the fields of QUERY_MESSAGE."""
    ext = {
        "topic": query.topic,
        "key": query.key,
        "maxNum": str(query.count_max),
        "beginTimestamp": str(query.begin_ms),
        "endTimestamp": str(query.end_ms),
    }
    return {**ext, "_UNIQUE_KEY_QUERY": "true"} if query.is_unique else ext


def find_by_key(session: Session, query: KeyQuery) -> list[Message]:
    """Return the messages of a topic that have a key."""
    found = {message.log_position: message for message in _indexed(session, query)}
    for message in _latest(session, query.topic):
        found.setdefault(message.log_position, message)
    return [message for message in found.values() if query.wants(message)]


def _indexed(session: Session, query: KeyQuery) -> list[Message]:
    try:
        return records_read(session.control.request(Request.QUERY_MESSAGE, query_ext(query)).body)
    except RemoteError as error:
        if error.code != Response.QUERY_NOT_FOUND:
            raise
        return []


def _latest(session: Session, topic: str) -> Iterator[Message]:
    since = Position(Kind.TIME_MS, round(time.time() * 1000) - INDEX_LAG_MS)
    reader = session.pull_reader((), None)
    try:
        for queue in session.read_queues(topic):
            reader.assign(topic, queue.queue_index, queue.queue_id, session.place_in(topic, queue, since))
        ends = {queue.queue_id: session.bounds(topic, queue)[1] for queue in session.read_queues(topic)}
        while messages := reader.poll(_READ_COUNT, 0.0):
            yield from (message for message in messages if message.offset < ends[message.queue_id])
            if all(message.offset >= ends[message.queue_id] for message in messages):
                return
    finally:
        reader.close()


def find_by_place(session: Session, topic: str, message_id: str) -> Message | None:
    """Return the message an offset message id leads to, None when it leads to none of this topic."""
    place = message_place(message_id)
    if place is None:
        return None
    try:
        message = session.store.message_at(place.log_position)
    except CoreError:
        return None
    return message if message.topic == topic else None
