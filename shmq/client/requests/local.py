"""Owns requests and replies of a process on the broker's host: both ways go through shared memory.

It does not know listeners (replier does) nor how threads share one reader (waiting_requests does).

    request    a message on its topic with CORRELATION_ID, REPLY_TO_CLIENT=shm:<queue>:<client id>, TTL and CLUSTER
    reply      a message in that queue of <cluster>_REPLY_TOPIC, which the requester reads from its end on

    requester   replier     the reply
    local       local       is stored by the replier in the requester's queue: nobody else has a part in it
    local       TCP         is stored there by the broker, which reads in REPLY_TO_CLIENT where it belongs
    TCP         local       is sent to the broker (325), which pushes it to the requester (326)

A private topic for every requesting process would make the tables grow with processes that come and go. The reply topic
of the cluster exists anyway and keeps replies for administrators as in RocketMQ; processes divide its queues by their
client ids, and read over replies that are for others.

Rule: a request is sent only after the reader stands at the end of its queue, so no reply is missed and no old one read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from shmq.client.requests.waiting import Waiting, WaitingRequests
from shmq.errors import CorruptionError, RemoteError, TopicNotFound, UsageError
from shmq.message import check_properties, encode_properties
from shmq.protocol import request_reply as wire
from shmq.protocol.codes import Request
from shmq.protocol.route import DEFAULT_TOPIC

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shmq.client.wire_shm.session import Session
    from shmq.shm.core import Message, Producer, Reader

REPLY_GROUP = "shmq_replier"
POLL_MAX = 64
CLOCK_SKEW_MS = 60_000


class LocalRequests:
    """The requests of one attachment to a broker of this host."""

    def __init__(self, session: Session, client_id: str) -> None:
        self._session = session
        cluster = session.control.attachment.cluster
        topic = wire.reply_topic(cluster)
        entry = session.store.topic(session.create(topic, queues=wire.REPLY_QUEUES))
        queue_id = zlib.crc32(client_id.encode()) % entry["read_queues"]
        self._queue = entry["queues"][queue_id]
        self._reader: Reader = session.pull_reader((), None)
        self._reader.assign(topic, self._queue, queue_id, self._end())
        self._producer: Producer = session.core_producer(session.timeout, wait_durable=False)
        self._ids = itertools.count(1)
        self._prefix = os.urandom(8).hex()
        address = wire.SharedAddress(queue_id, client_id)
        self._suffix = encode_properties({wire.REPLY_TO: str(address), wire.CLUSTER: cluster})
        self._waiting = WaitingRequests(self._poll)

    def request(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Message:
        """Send a request and return its reply.

        Raises:
            RequestTimeout: none came in time.
        """
        waiting = self._send(topic, body, timeout, None, arguments)
        try:
            reply: Message | None = self._waiting.wait(waiting)
        finally:
            self._waiting.drop(waiting)
        if reply is None:
            raise waiting.timed_out()
        return reply

    def begin(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Future[Message]:
        """Send a request and return a future of its reply."""
        from concurrent.futures import Future  # only who does not wait here pays for it

        future: Future[Message] = Future()
        self._send(topic, body, timeout, future, arguments)
        return future

    def close(self) -> None:
        """End every wait."""
        self._waiting.close()
        self._reader.close()

    def _send(
        self, topic: str, body: Any, timeout: float, future: Future[Message] | None, arguments: dict[str, Any]
    ) -> Waiting:
        waiting = Waiting(f"{self._prefix}{next(self._ids):x}", topic, timeout, future)
        text = request_text(arguments.pop("properties", None), waiting.correlation_id, timeout) + self._suffix
        if self._waiting.is_empty:
            # What came for others since the last request is theirs.
            self._reader.seek(self._queue, self._end())
        self._waiting.add(waiting)
        try:
            raw: Any = text.encode()
            self._producer.send(topic, body, properties=raw, timeout=timeout, **arguments)
        except BaseException:
            self._waiting.drop(waiting)
            raise
        return waiting

    def _end(self) -> int:
        return self._session.store.queue(self._queue)[1]

    def _poll(self, seconds: float) -> Iterator[tuple[str, Message]]:
        with contextlib.suppress(CorruptionError):  # it is stepped over; whose it was gets no reply
            for message in self._reader.poll(POLL_MAX, seconds):
                yield message.properties.get(wire.CORRELATION_ID, ""), message


def request_text(properties: Mapping[str, str] | None, correlation_id: str, timeout: float) -> str:
    """Return the property text of a request, without the address of its reply.

    Raises:
        UsageError: a property that may not be set.
    """
    found = {wire.CORRELATION_ID: correlation_id, wire.TTL: str(max(1, round(timeout * 1000)))}
    if properties:
        check_properties(properties)
        found.update(properties)
    return encode_properties(found)


def is_request(message: Message) -> bool:
    """Whether somebody waits for a reply to a message."""
    properties = message.properties
    return wire.REPLY_TO in properties and wire.CORRELATION_ID in properties


def is_expired(message: Message, *, same_clock: bool) -> bool:
    """Whether the requester has given up; between hosts only when clocks that differ cannot be the reason."""
    text = message.properties.get(wire.TTL, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 12) or not is_request(message):
        return False
    return time.time() * 1000 > message.store_ms + int(text) + (0 if same_clock else CLOCK_SKEW_MS)


def reply_properties(message: Message) -> dict[str, str]:
    """Return the properties of the reply to a request.

    Raises:
        UsageError: it is none.
    """
    properties = message.properties
    if not is_request(message):
        raise UsageError(f"message {message.message_id} is no request", hint="send it with mq.request()")
    copied = (wire.CORRELATION_ID, wire.REPLY_TO, wire.TTL)
    found = {name: properties[name] for name in copied if name in properties}
    return {wire.MESSAGE_TYPE: wire.MESSAGE_TYPE_REPLY, **found}


def reply_locally(session: Session, producer: Producer, message: Message, body: Any) -> bool:
    """Bring a reply to whoever asked; False when the requester is not there any more.

    Raises:
        ShmqError: the reply could not be stored, or the broker not be asked.
    """
    found = reply_properties(message)
    topic = wire.reply_topic(session.control.attachment.cluster)
    address = wire.SharedAddress.parse(found[wire.REPLY_TO])
    if address is not None:
        # Out of a record, so no name or value holds a separator.
        raw: Any = "".join(f"{name}\x01{value}\x02" for name, value in found.items()).encode()
        try:
            producer.send(topic, body, properties=raw, queue_id=address.queue_id)
        except TopicNotFound:  # somebody deleted it; requesters read the new one from their next connection on
            session.create(topic, queues=wire.REPLY_QUEUES)
            return False
        return True
    if isinstance(body, str):
        raise TypeError("a reply is bytes, not str; did you mean text.encode()?")
    ext = reply_header(topic, encode_properties(found), queue_id=0, born_ms=round(time.time() * 1000))
    try:
        session.control.request(Request.SEND_REPLY_MESSAGE_V2, ext, bytes(body), session.timeout)
    except RemoteError:
        return False
    return True


def reply_header(topic: str, properties: str, *, queue_id: int, born_ms: int, group: str = "") -> dict[str, str]:
    """Return the header of a SEND_REPLY_MESSAGE_V2."""
    values: Iterable[object] = (
        *(group or REPLY_GROUP, topic, DEFAULT_TOPIC, 4, queue_id, 0, born_ms, 0, properties, 0),
        "false",
    )
    return {name: str(value) for name, value in zip("abcdefghijk", values, strict=True)}
