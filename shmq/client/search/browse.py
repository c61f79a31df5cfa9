"""Owns looking for messages without consuming them: what `mq.browse` may be asked, and in which order it answers.

It does not know where messages are: sessions read queues, search the key index and open ids.

    id=                offset message id or unique key          the message, in a list
    key=               RocketMQ's keys, through the key index   with since/until: stored in that time
    queue_id=, offset= one queue from an offset on
    nothing, since=    all queues, merged by the time of storing

Rules:
    (1) no offset of any group moves, and nothing is acknowledged;
    (2) what was stored before the call is looked at, what comes meanwhile is not waited for;
    (3) messages come in the order they were stored in, the oldest first, at most `limit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from shmq.client import options
from shmq.client.position import BEGIN, Kind, Position, parse_moment
from shmq.client.wanted import EVERYTHING, Wanted
from shmq.errors import OffsetOutOfRange, UsageError
from shmq.message import check_topic

if TYPE_CHECKING:
    from shmq.client.wire import MessageReader, QueueSlot, Session
    from shmq.shm.core import Message

TIME_MS_MAX: Final = (1 << 63) - 1
_READ_COUNT: Final = 256


class KeyQuery(NamedTuple):
    """A question to the key index; times in ms, both included."""

    topic: str
    key: str
    is_unique: bool = False
    begin_ms: int = 0
    end_ms: int = TIME_MS_MAX
    count_max: int = 64

    def wants(self, message: Message) -> bool:
        """Whether a message is an answer; the index only knows hashes and whole seconds."""
        if not self.begin_ms <= message.store_ms <= self.end_ms:
            return False
        if message.properties.get("UNIQ_KEY") == self.key:
            return True
        return not self.is_unique and self.key in message.keys


class Wish(NamedTuple):
    """What is looked for in queues; see `wish_of`."""

    topic: str
    wanted: Wanted = EVERYTHING
    begin_ms: int | None = None
    end_ms: int | None = None
    queue_id: int | None = None
    offset: int | None = None
    limit: int = options.BROWSE_MAX

    def wants(self, message: Message) -> bool:
        """Whether a message that was read belongs to the answer."""
        tags, where = self.wanted.tags, self.wanted.filter
        return (not tags or message.tag in tags) and (where is None or where.matches(message))


def wish_of(
    topic: str,
    *,
    wanted: Wanted = EVERYTHING,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    queue_id: int | None = None,
    offset: int | None = None,
    limit: int = options.BROWSE_MAX,
) -> Wish:
    """Check what is asked for.

    Raises:
        UsageError: a time, a limit or a combination that means nothing.
    """
    check_topic(topic)
    if not 1 <= limit <= options.BROWSE_LIMIT_MAX:
        raise UsageError(f"limit={limit} is not possible", hint=f"1 to {options.BROWSE_LIMIT_MAX}")
    if offset is not None and queue_id is None:
        raise UsageError("an offset counts messages of one queue", hint="browse(topic, queue_id=0, offset=…)")
    if offset is not None and offset < 0:
        raise UsageError(f"offset {offset} is negative", hint="offsets begin at 0; the newest messages: since=…")
    if offset is not None and since is not None:
        raise UsageError("both an offset and a time to begin at", hint="give offset= or since=")
    begin_ms = None if since is None else parse_moment(since)
    end_ms = None if until is None else parse_moment(until)
    if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
        raise UsageError(f"since={since} is later than until={until}", hint="swap them")
    return Wish(topic, wanted, begin_ms, end_ms, queue_id, offset, limit)


def browse(session: Session, wish: Wish, *, key: str | None = None, message_id: str | None = None) -> list[Message]:
    """Return the messages that are wished for, the oldest first.

    Raises:
        TopicNotFound: there is no such topic.
        OffsetOutOfRange: the offset is not stored any more, or not yet.
        UsageError: both a key and an id.
    """
    queues = session.read_queues(wish.topic, must_exist=True)
    if key is not None and message_id is not None:
        raise UsageError("both a key and an id", hint='browse("orders", key="o-42") or browse("orders", id="0A00…")')
    if message_id is not None:
        return _by_id(session, wish.topic, message_id)
    if key is not None:
        query = KeyQuery(
            wish.topic,
            key,
            begin_ms=wish.begin_ms or 0,
            end_ms=TIME_MS_MAX if wish.end_ms is None else wish.end_ms,
            count_max=wish.limit,
        )
        found = (message for message in session.find_by_key(query) if wish.wants(message))
        return _in_order(found)[: wish.limit]
    return _from_queues(session, wish, queues)


def _by_id(session: Session, topic: str, message_id: str) -> list[Message]:
    found = session.find_by_place(topic, message_id)
    if found is not None:
        return [found]
    return _in_order(session.find_by_key(KeyQuery(topic, message_id, is_unique=True)))


def _from_queues(session: Session, wish: Wish, queues: Sequence[QueueSlot]) -> list[Message]:
    wanted = [queue for queue in queues if wish.queue_id in (None, queue.queue_id)]
    if wish.queue_id is not None and not wanted:
        known = [queue.queue_id for queue in queues]
        raise UsageError(f"topic {wish.topic} has no queue {wish.queue_id}", hint=f"its queues are {known}")
    found: list[Message] = []
    for queue in wanted:
        found += _from_queue(session, wish, queue)
    return _in_order(found)[: wish.limit]


def _from_queue(session: Session, wish: Wish, queue: QueueSlot) -> Iterator[Message]:
    offset_min, offset_max = session.bounds(wish.topic, queue)
    start = _start_in(session, wish, queue, offset_min, offset_max)
    if start >= offset_max:
        return
    reader = session.pull_reader(wish.wanted.tags, None, wish.wanted.where)
    try:
        reader.assign(wish.topic, queue.queue_index, queue.queue_id, start)
        left = wish.limit
        for message in _stored(reader, offset_max):
            if wish.end_ms is not None and message.store_ms > wish.end_ms:
                return
            if wish.begin_ms is not None and message.store_ms < wish.begin_ms:
                continue  # a broker's search by time may answer a place before it
            if wish.wants(message):
                yield message
                left -= 1
                if not left:
                    return
    finally:
        reader.close()


def _start_in(session: Session, wish: Wish, queue: QueueSlot, offset_min: int, offset_max: int) -> int:
    if wish.offset is not None:
        if not offset_min <= wish.offset < offset_max:
            stored = f"offsets {offset_min} to {offset_max - 1}" if offset_max > offset_min else "no message"
            raise OffsetOutOfRange(
                f"queue {queue.queue_id} of {wish.topic} holds {stored}, not {wish.offset}",
                hint=f"browse from {offset_min} on",
            )
        return wish.offset
    place = BEGIN if wish.begin_ms is None else Position(Kind.TIME_MS, wish.begin_ms)
    return session.place_in(wish.topic, queue, place)


def _stored(reader: MessageReader, offset_max: int) -> Iterator[Message]:
    """Read on until nothing is left below an offset."""
    while messages := reader.poll(_READ_COUNT, 0.0):
        for message in messages:
            if message.offset >= offset_max:
                return
            yield message


def _in_order(messages: Iterator[Message] | Sequence[Message]) -> list[Message]:
    return sorted(messages, key=lambda message: (message.store_ms, message.log_position))
