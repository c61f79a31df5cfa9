"""Asking: the requests of one session, and the two ways they leave and their replies come.

                this host                                              TCP
    request     a message on its topic with CORRELATION_ID, TTL and
                REPLY_TO_CLIENT=shm:<queue>:<client id>, CLUSTER       REPLY_TO_CLIENT=<client id>
    reply       a message in that queue of <cluster>_REPLY_TOPIC,      326: a broker pushes it over the connection
                which is read from its end on                          our heartbeats come by

A private topic for every requesting process of this host would make the tables grow with processes that come and go.
The reply topic of the cluster exists anyway and keeps replies for administrators as in RocketMQ; processes divide its
queues by their client ids, and read over replies that are for others.

Rules:
    (1) on this host a request is sent only after the reader stands at the end of its queue, so no reply is missed and
        no old one read;
    (2) over TCP the brokers of a topic have heard of us as a producer before a request is sent to them: they look for
        it when the reply comes, at whichever broker of the cluster that is.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from shmq.client.requests.waiting import Waiting, WaitingRequests
from shmq.errors import CorruptionError, UsageError
from shmq.message import check_properties, encode_properties
from shmq.protocol import request_reply as wire
from shmq.shm.core import Message, Producer, Reader, Store

if TYPE_CHECKING:
    from concurrent.futures import Future


POLL_MAX = 64


class Way(Protocol):
    """How requests leave and replies come."""

    @property
    def poll(self) -> Callable[[float], Iterable[tuple[str, Message]]] | None:
        """What waits so many seconds for replies, and returns them by correlation id; None: they are pushed."""

    def skip(self) -> None:
        """Read over the replies there are: nobody waits, so they are for others."""

    def send(
        self, waiting: Waiting, body: Any, arguments: dict[str, Any], *, failed: Callable[[Exception], None]
    ) -> None:
        """Send a request; where that does not wait, `failed` is called later if it could not be sent."""

    def close(self) -> None:
        """Read no replies any more."""


class Requests:
    """The requests of one session, and its replies to those of others; any thread may use it."""

    def __init__(self, open_way: Callable[[], Way], reply: Callable[[Message, Any], bool]) -> None:
        """
        Args:
            open_way: called when the first request is sent.
            reply: brings a reply to whoever asked; False when the requester is not there any more.
        """
        self.reply = reply
        self._open_way = open_way
        self._way: Way | None = None
        self._waiting: WaitingRequests | None = None
        self._making = threading.Lock()
        self._closed = False
        self._ids = itertools.count(1)
        self._prefix = os.urandom(8).hex()

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for a reply."""
        return self._waiting is None or self._waiting.is_empty

    def request(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Message:
        """Send a request and return its reply.

        Raises:
            RequestTimeout: none came in time.
        """
        requests, waiting = self._send(topic, body, timeout, None, arguments)
        try:
            reply: Message | None = requests.wait(waiting)
        finally:
            requests.drop(waiting)
        if reply is None:
            raise waiting.timed_out()
        return reply

    def begin(self, topic: str, body: Any, timeout: float, **arguments: Any) -> Future[Message]:
        """Send a request and return a future of its reply."""
        from concurrent.futures import Future  # imported only by those who do not wait here

        future: Future[Message] = Future()
        self._send(topic, body, timeout, future, arguments)
        return future

    def arrived(self, reply: Message) -> None:
        """Take a reply that was pushed."""
        if self._waiting is not None:
            self._waiting.arrived(reply.properties.get(wire.CORRELATION_ID, ""), reply)

    def close(self) -> None:
        """End every wait."""
        with self._making:
            self._closed = True
            way, requests = self._way, self._waiting
        if requests is not None:
            requests.close()
        if way is not None:
            way.close()

    def _opened(self) -> tuple[Way, WaitingRequests]:
        way, requests = self._way, self._waiting
        if way is None or requests is None:
            with self._making:
                if self._closed:
                    raise UsageError("the connection is closed", hint="connect again with shmq.connect()")
                if self._way is None:
                    way = self._open_way()
                    self._waiting = WaitingRequests(way.poll)
                    self._way = way
                way, requests = self._way, self._waiting
            assert requests is not None
        return way, requests

    def _send(
        self, topic: str, body: Any, timeout: float, future: Future[Message] | None, arguments: dict[str, Any]
    ) -> tuple[WaitingRequests, Waiting]:
        way, requests = self._opened()
        waiting = Waiting(f"{self._prefix}{next(self._ids):x}", topic, timeout, future)
        with self._making:  # nobody else may send, and be answered, between these two
            if requests.is_empty:
                way.skip()
            requests.add(waiting)
        try:
            way.send(waiting, body, arguments, failed=lambda error: requests.fail(waiting, error))
        except BaseException:
            requests.drop(waiting)
            raise
        return requests, waiting


class SharedReplies:
    """The way through this host's memory: the process stores its requests, and reads its queue of the reply topic."""

    def __init__(
        self, store: Store, reader: Reader, producer: Producer, topic_index: int, *, cluster: str, client_id: str
    ) -> None:
        """
        Args:
            topic_index: of the reply topic, in the store.
        """
        self._store = store
        self._reader = reader
        self._producer = producer
        entry = store.topic(topic_index)
        queue_id = zlib.crc32(client_id.encode()) % entry["read_queues"]
        self._queue = entry["queues"][queue_id]
        reader.assign(wire.reply_topic(cluster), self._queue, queue_id, self._end())
        address = wire.SharedAddress(queue_id, client_id)
        self._suffix = encode_properties({wire.REPLY_TO: str(address), wire.CLUSTER: cluster})

    def send(
        self, waiting: Waiting, body: Any, arguments: dict[str, Any], *, failed: Callable[[Exception], None]
    ) -> None:
        """Store a request."""
        text = request_text(arguments.pop("properties", None), waiting.correlation_id, waiting.timeout) + self._suffix
        raw: Any = text.encode()
        self._producer.send(waiting.topic, body, properties=raw, timeout=waiting.timeout, **arguments)

    def skip(self) -> None:
        """Read over the replies there are."""
        self._reader.seek(self._queue, self._end())

    def poll(self, seconds: float) -> Iterable[tuple[str, Message]]:
        """Wait so many seconds for messages in the queue, and return them by correlation id."""
        with contextlib.suppress(CorruptionError):  # it is stepped over; whose it was gets no reply
            for message in self._reader.poll(POLL_MAX, seconds):
                yield message.properties.get(wire.CORRELATION_ID, ""), message

    def close(self) -> None:
        """Read no replies any more."""
        self._reader.close()

    def _end(self) -> int:
        return self._store.queue(self._queue)[1]


def request_properties(correlation_id: str, timeout: float) -> dict[str, str]:
    """Return the properties of a request, without the address of its reply."""
    return {wire.CORRELATION_ID: correlation_id, wire.TTL: str(max(1, round(timeout * 1000)))}


def request_text(properties: Mapping[str, str] | None, correlation_id: str, timeout: float) -> str:
    """Return the property text of a request, without the address of its reply.

    Raises:
        UsageError: a property that may not be set.
    """
    found = request_properties(correlation_id, timeout)
    if properties:
        check_properties(properties)
        found.update(properties)
    return encode_properties(found)
