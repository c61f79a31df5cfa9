"""Answering: what a replier does with each message, and how its reply gets to the requester.

    the function     returns bytes (or anything with the buffer protocol)    the reply; the request is consumed
                     returns None                                            consumed without a reply
                     raises                                                  as in a listener: later again, or dead

    requester   replier     the reply
    local       local       is stored by the replier in the requester's queue, without the broker
    local       TCP         is stored there by the broker, which reads in REPLY_TO_CLIENT where it belongs
    TCP         either      is sent to the broker (325), which pushes it to the requester (326)

Rules:
    (1) a request whose requester has given up by its TTL is consumed without being looked at;
    (2) a requester that is gone when the reply comes is reported at debug level, and the request consumed;
    (3) a message that is no request is handed to the function, and what it returns is dropped;
    (4) over TCP a reply goes by the broker its request came from, if that has the reply topic: there the requester is
        known.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from shmq.client.keywords import body_of
from shmq.client.wire import LOG, Question, Queues, Wire
from shmq.errors import BrokerNotRunning, RemoteError, TopicNotFound, UsageError
from shmq.functions import check_function, finished
from shmq.properties import encode_properties
from shmq.protocol import request_reply as wire
from shmq.protocol.codes import Request
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.route import DEFAULT_TOPIC
from shmq.shm.core import Message

REPLY_GROUP = "shmq_replier"
CLOCK_SKEW_MS = 60_000


class Home(NamedTuple):
    """The broker of this host, and what stores a reply there: (topic, body, properties, queue id); False: no topic."""

    cluster: str
    broker: str
    store: Callable[[str, Any, bytes, int], bool]


def replying(
    function: Callable[[Any], Any],
    reply: Callable[[Message, Any], bool],
    now_ms: Callable[[], int],
    *,
    same_clock: bool,
) -> Callable[[Any], None]:
    """Return the listener that answers requests with what a function returns; `reply` brings it to the requester."""

    check_function(function)

    def run(message: Any) -> None:
        if is_expired(message, now_ms(), same_clock=same_clock):
            report(message, "came after its requester had given up")
            return
        body = finished(function(message))
        if body is not None and is_request(message) and not reply(message, body):
            report(message, "was answered, but its requester is gone")

    return run


class Replier:
    """Brings replies to requesters."""

    def __init__(self, broker_wire: Wire, queues: Queues, home: Home | None = None) -> None:
        """
        Args:
            home: None over TCP.
        """
        self._wire = broker_wire
        self._queues = queues
        self._home = home

    def reply(self, message: Message, body: Any) -> bool:
        """Bring a reply to its requester; False when that is not there any more.

        Raises:
            ShmqError: the reply could not be stored, or the broker not be asked.
        """
        found, home = reply_properties(message), self._home
        cluster = message.properties.get(wire.CLUSTER) if home is None else home.cluster
        if cluster is None:
            raise UsageError(
                f"request {message.message_id} does not say which cluster it is from",
                hint="brokers add the property CLUSTER; is it a message of a broker?",
            )
        topic, address = wire.reply_topic(cluster), wire.SharedAddress.parse(found[wire.REPLY_TO])
        if home is not None and address is not None:
            # Out of a record, so no name or value holds a separator.
            raw = "".join(f"{name}\x01{value}\x02" for name, value in found.items()).encode()
            return home.store(topic, body, raw, address.queue_id)
        data = bytes(body_of(body))
        queue = self._queue(topic, message) if home is None else MessageQueue(home.broker, 0, topic)
        ext = _header(topic, encode_properties(found), queue)
        try:
            self._wire.request(Question(queue.brokerName, Request.SEND_REPLY_MESSAGE_V2, ext, data), self._wire.timeout)
        except RemoteError:
            return False
        return True

    def _queue(self, topic: str, message: Message) -> MessageQueue:
        """Return a queue of the reply topic, of the broker a request came from if that has one."""
        try:
            queue_ids = self._queues.write_queues(topic, with_master=True)
        except TopicNotFound as error:  # each broker has it: they have left the name servers, as for a switch
            raise BrokerNotRunning(
                f'no broker has "{topic}", where replies go, at the name servers now', hint="is the broker up?"
            ) from error
        queues = [self._queues.message_queue(topic, queue_id) for queue_id in queue_ids]
        with contextlib.suppress(UsageError, LookupError):
            origin = self._queues.message_queue(message.topic, message.queue_id).brokerName
            queues = [queue for queue in queues if queue.brokerName == origin] or queues
        return queues[0]


def is_request(message: Message) -> bool:
    """Whether a message is a request, which waits for a reply."""
    properties = message.properties
    return wire.REPLY_TO in properties and wire.CORRELATION_ID in properties


def is_expired(message: Message, now_ms: int, *, same_clock: bool) -> bool:
    """Whether the requester has given up; between hosts only when clocks that differ cannot be the reason."""
    text = message.properties.get(wire.TTL, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 12) or not is_request(message):
        return False
    return now_ms > message.store_ms + int(text) + (0 if same_clock else CLOCK_SKEW_MS)


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


def _header(topic: str, properties: str, queue: MessageQueue) -> dict[str, str]:
    """Return the header of SEND_REPLY_MESSAGE_V2."""
    born_ms = round(time.time() * 1000)
    values: Iterable[object] = (
        *(REPLY_GROUP, topic, DEFAULT_TOPIC, 4, queue.queueId, 0, born_ms, 0, properties, 0),
        "false",
    )
    fields = {name: str(value) for name, value in zip("abcdefghijk", values, strict=True)}
    return fields | {"m": "false", "n": queue.brokerName}


def report(message: Any, what: str) -> None:
    """Log what became of a request."""
    LOG.debug('request %s on topic "%s" %s', message.message_id, message.topic, what)
