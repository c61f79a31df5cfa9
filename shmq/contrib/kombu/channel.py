"""A channel: which queues and exchanges there are, publishing, and what becomes of messages in hand.

publish ──▶ each durable queue that is bound, as far as this process has declared it
        └─▶ the exchange's log: always for fanout and topic exchanges, else when no durable queue wants the message

thread of a queue ──offer──▶ inbox of the connection ──drain_events──▶ deliver ──▶ callback
room = prefetch count - in hand - asked for or in the inbox
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Callable
from queue import Empty
from typing import Any, Final, NamedTuple

from kombu.log import get_logger
from kombu.transport import virtual

from shmq import Connection, Message
from shmq.contrib.kombu.envelope import encoded
from shmq.contrib.kombu.sources import SLICE_SECONDS, Place, Pops
from shmq.errors import GroupNotFound, InvalidName, TopicNotFound, UsageError
from shmq.message import TOPIC_BYTES_MAX, retry_topic_of
from shmq.words import check_word

_UNLIMITED: Final = 64
"""Messages in hand of a channel without a prefetch count."""
_KEY_CHARACTERS_MAX: Final = 128
_NAME_CHARACTERS_MAX: Final = (TOPIC_BYTES_MAX - len(retry_topic_of("", ""))) // 2
"""Of a durable queue's topic, which is its group's name too: %RETRY%group+topic has both."""
_logger = get_logger(__name__)


class Item(NamedTuple):
    """A message on its way to a callback; `stored` is None where nothing has to be settled."""

    channel: Channel
    queue: str
    payload: dict[str, Any]
    stored: Message | None


class QoS(virtual.QoS):
    """Counts what is in hand; what happens to it, the channel does."""

    restore_at_shutdown = False

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Forget a message; it was given back already, or not."""
        self._quick_ack(delivery_tag)


class Channel(virtual.Channel):
    """A virtual channel over one shmq connection."""

    QoS = QoS
    do_restore = False
    supports_fanout = True
    visibility_timeout = 60.0
    topic_prefix = "kombu-"
    attempts_max: int | None = None
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "visibility_timeout",
        "topic_prefix",
        "attempts_max",
    )

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self.mq: Connection = connection.mq
        self._transport = connection  # kombu forgets its own when the channel is closed
        self._inbox = connection.inbox
        self._pops: dict[str, Pops] = {}
        self._places = connection.places
        self._known: set[str] = set()  # topics that are there
        self._no_ack: set[str] = set()
        self._queue_of: dict[str, str] = {}  # by delivery tag
        self._tags = itertools.count(1)
        self._room = threading.Condition()
        self._taken = 0  # asked for or in the inbox, and not delivered yet

    # -- names
    def topic_of(self, queue: str) -> str:
        """Return the topic of a durable queue.

        Raises:
            InvalidName: it is too long for workers to take messages from it.
        """
        topic = self.topic_prefix + _escaped(queue)
        if (more := len(topic) - _NAME_CHARACTERS_MAX) > 0:
            raise InvalidName(
                f"queue {queue!r:.80} needs a topic whose name has {len(topic)} characters, "
                f"{_NAME_CHARACTERS_MAX} are allowed",
                hint=f"shorten the queue's name, or option topic_prefix, by {more}",
            )
        return topic

    def log_of(self, exchange: str) -> str:
        """Return the topic of an exchange's log, which is there."""
        return self._topic(f"{self.topic_prefix}x-{_escaped(exchange)}", queues=1)

    def _topic(self, name: str, queues: int | None = None) -> str:
        if name not in self._known:
            if name not in self.mq.admin.topics:
                self.mq.admin.create_topic(name, queues=queues)
            self._known.add(name)
        return name

    # -- declaring
    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Declare a queue; one that ends with its user is transient."""
        if "x-max-priority" in (options.get("arguments") or {}):
            self._warn_of_priorities(f"queue {queue} is declared with x-max-priority")
        is_kept = options.get("durable", True) and not options.get("auto_delete") and not options.get("exclusive")
        if queue and not is_kept:
            self._places.setdefault(queue, {})
        return super().queue_declare(queue, passive, **options)

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", **options: Any) -> None:
        """Bind a queue; a transient one reads the exchange's log from here."""
        exchange = exchange or "amq.direct"
        super().queue_bind(queue, exchange, routing_key, **options)
        places = self._places.get(queue)
        if places is not None and exchange not in places:
            places[exchange] = self._place(queue, exchange)
            if queue in self._active_queues:
                places[exchange].start(self)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Nothing is kept outside this process: see the picture above."""

    def _place(self, queue: str, exchange: str) -> Place:
        def is_wanted(routing_key: str) -> bool:
            return queue in self._bound(exchange, routing_key)

        return Place(self, queue, self.mq.pull_consumer(self.log_of(exchange), start="end"), is_wanted)

    def _new_queue(self, queue: str, **options: Any) -> None:
        if queue not in self._places:
            self._topic(self.topic_of(queue), queues=1)  # one queue keeps the order

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return queue in self._places or self.topic_of(queue) in self.mq.admin.topics

    def _delete(self, queue: str, *arguments: Any, **options: Any) -> None:
        if queue in self._places:
            for place in self._places.pop(queue).values():
                place.close()
            return
        self._stop(queue)
        topic = self.topic_of(queue)
        self._known.discard(topic)
        with contextlib.suppress(TopicNotFound):
            self.mq.admin.delete_topic(topic)
        with contextlib.suppress(GroupNotFound):
            self.mq.admin.groups[topic].delete()

    def _size(self, queue: str) -> int:
        if queue in self._places:
            return sum(place.lag() for place in self._places[queue].values())
        topic = self.topic_of(queue)
        with contextlib.suppress(GroupNotFound):
            lags = [each for each in self.mq.admin.groups[topic].lag.offsets if each.topic == topic]
            if lags:
                return sum(max(0, each.offset_max - max(each.committed, each.offset_min)) for each in lags)
        with contextlib.suppress(TopicNotFound):
            return sum(each.offset_max - each.offset_min for each in self.mq.admin.topics[topic].queues)
        return 0

    def _purge(self, queue: str) -> int:
        if queue in self._places:
            return sum(place.purge() for place in self._places[queue].values())
        size = self._size(queue)
        topic = self.topic_of(queue)
        if size:
            self._popping(queue)  # so that there is a group whose place can be moved
            self.mq.admin.groups[topic].skip(topic)
        return size

    # -- publishing
    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> None:
        """Publish a message."""
        self._inplace_augment_message(message, exchange, routing_key)
        if self._get_message_priority(message) != self.default_priority:
            self._warn_of_priorities(f"a message for {routing_key or exchange} has a priority")
        if not exchange:
            self._put(routing_key, message)
            return
        kept = [queue for queue in self._bound(exchange, routing_key) if queue not in self._places]
        for queue in kept:
            self._put(queue, message)
        if not kept or self.typeof(exchange).type != "direct":
            self.mq.send(self.log_of(exchange), encoded(message))

    def _bound(self, exchange: str, routing_key: str) -> list[str]:
        if exchange not in self.state.exchanges:
            return []
        found: list[str] = self.typeof(exchange).lookup(self.get_table(exchange), exchange, routing_key, None) or []
        return [queue for queue in found if queue]

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        headers = message.get("headers") or {}
        key = headers.get("id")
        self.mq.send(self._topic(self.topic_of(queue), queues=1), encoded(message), key=key if _is_key(key) else None)

    def _warn_of_priorities(self, what: str) -> None:
        if not self._transport.has_warned_of_priorities:
            self._transport.has_warned_of_priorities = True
            _logger.warning("%s, which shmq does not keep: give what is urgent a queue of its own", what)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Leave text as it is; only bytes have to become text for JSON."""
        if isinstance(body, str):
            return body, None
        return super().encode_body(body, encoding)  # type: ignore[no-any-return]

    # -- consuming
    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[..., Any], consumer_tag: str, **options: Any
    ) -> None:
        """Deliver a queue's messages to a callback from now on."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)
        if no_ack:
            self._no_ack.add(queue)
        if queue in self._places:
            for place in self._places[queue].values():
                place.start(self)
        else:
            self._popping(queue).start()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Deliver no more; what is in hand stays there."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._no_ack.discard(queue)
            if queue in self._pops:
                self._pops[queue].pause()

    def _popping(self, queue: str) -> Pops:
        if queue not in self._pops:
            self._new_queue(queue)
            options = {"invisible": self.visibility_timeout, "attempts_max": self.attempts_max}
            self._pops[queue] = Pops(self, queue, self.connection.connected(), self.topic_of(queue), options)
        return self._pops[queue]

    def _stop(self, queue: str) -> None:
        if pops := self._pops.pop(queue, None):
            pops.close()

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if queue in self._places:
            for place in self._places[queue].values():
                if (payload := place.get()) is not None:
                    return self._tagged(payload)
            raise Empty
        while (stored := self._popping(queue).get()) is not None:
            if (payload := self._held(queue, stored)) is not None:
                return payload
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """Return the next message of a queue, None when there is none now."""
        message = super().basic_get(queue, no_ack, **options)
        if message is not None and no_ack:
            self._settle(message.delivery_tag, requeue=False)
        return message

    def reserve(self, count: int) -> int:
        with self._room:
            room = min(count, self._left())
            if room <= 0:
                self._room.wait(SLICE_SECONDS)
                return 0
            self._taken += room
            return room

    def release(self, count: int) -> None:
        """So many of what was reserved will not be delivered."""
        with self._room:
            self._taken -= count
            self._room.notify_all()

    def _left(self) -> int:
        estimate = self.qos.can_consume_max_estimate()
        return (_UNLIMITED if estimate is None else estimate) - self._taken

    def offer(self, queue: str, stored: Message) -> None:
        self._inbox.put(Item(self, queue, {}, stored))

    def offer_transient(self, queue: str, payload: dict[str, Any]) -> None:
        self._inbox.put(Item(self, queue, payload, None))

    def deliver(self, item: Item) -> bool:
        """Hand a message to its callback; False when it is not for one, or the queue is not consumed any more."""
        try:
            if self.closed or item.queue not in self._active_queues:
                if item.stored is not None and item.queue in self._pops:
                    self._pops[item.queue].give_back(item.stored)
                return False
            payload = self._tagged(item.payload) if item.stored is None else self._held(item.queue, item.stored)
            if payload is None:
                return False
            self.connection._deliver(payload, item.queue)
            if item.queue in self._no_ack:
                self._settle(payload["properties"]["delivery_tag"], requeue=False)
            return True
        finally:
            if item.stored is not None:
                self.release(1)

    def _tagged(self, payload: dict[str, Any]) -> dict[str, Any]:
        payload["properties"]["delivery_tag"] = str(next(self._tags))
        return payload

    def _held(self, queue: str, stored: Message) -> dict[str, Any] | None:
        pops = self._pops.get(queue)
        if pops is None or stored.settled or (payload := pops.decoded(stored)) is None:
            return None  # its queue is deleted, or it was given back, or set aside
        properties = self._tagged(payload)["properties"]
        if stored.attempt > 1:
            properties["delivery_info"]["redelivered"] = True
        tag = properties["delivery_tag"]
        self._queue_of[tag] = queue
        pops.hold(tag, stored)
        return payload

    def count_foreign(self) -> None:
        """Something that no kombu has written was set aside."""
        self._transport.foreign_count += 1

    # -- settling
    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message."""
        self._settle(delivery_tag, requeue=False)
        super().basic_ack(delivery_tag, multiple)
        self.release(0)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or give it back."""
        self._settle(delivery_tag, requeue=requeue)
        super().basic_reject(delivery_tag, requeue)
        self.release(0)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages may be in hand; 0 for no limit."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.release(0)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give everything in hand back."""
        if not requeue:
            raise NotImplementedError("messages cannot be recovered without giving them back: requeue=True")
        for tag in list(self._queue_of):
            self.basic_reject(tag, requeue=True)

    def _settle(self, tag: str, *, requeue: bool) -> None:
        queue = self._queue_of.pop(tag, None)
        if queue in self._pops:
            self._pops[queue].settle(tag, requeue=requeue)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver one event of the connection; kombu calls the transport's own."""
        self.connection.drain_events(self.connection, timeout)

    def close(self) -> None:
        """Close; what is in hand comes again at once."""
        if not self.closed:
            for queue in list(self._pops):
                self._stop(queue)
        super().close()


def _escaped(name: str) -> str:
    """Return a queue's name as topics may have one: other characters as `%` and their two digits."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda found: b"%%%02X" % found[0][0], name.encode()).decode()


def _is_key(key: Any) -> bool:
    """Whether a message can be found by a task's id, which its caller may have chosen."""
    if not isinstance(key, str) or len(key) > _KEY_CHARACTERS_MAX:
        return False
    try:
        check_word("key", key)
    except UsageError:
        return False
    return True
