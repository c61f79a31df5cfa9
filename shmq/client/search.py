"""Looking for stored messages without consuming them: by id, by key, or in the queues.

    id=                offset message id or unique key          the message, in a list
    key=               RocketMQ's keys, through the key index   with since/until: stored in that time
    queue_id=, offset= one queue from an offset on
    nothing, since=    all queues, merged by the time of storing

Brokers keep the key index, so every broker of the topic is asked. An offset message id names a place in one broker's
log. Where the log is in this host's memory it is read there; else the broker whose address the id holds is asked, and
then all of them: behind a translated address no broker has it. The index follows the log, so where the queues are in
this memory, their last minute is read as well:

    stored ──────────────────────────────────── a minute ago ──────── now
    the index (QUERY_MESSAGE) answers all of it │ the queues' ends are read as well

Invariants:
    1. No offset of any group moves, and nothing is acknowledged.
    2. What was stored before the call is looked at, what comes meanwhile is not waited for.
    3. Messages come in the order they were stored in, the oldest first, at most `limit`, by key as well and over each
       wire; `is_cut` says that there are more.
    4. No address is connected to because an id names it: ids are input.
    5. In this host's memory a message is found as soon as its send has returned, if the index is less than a minute
       behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import Final, NamedTuple, TypeVar

from shmq.addresses import Address
from shmq.client import options
from shmq.client.kinds import whole_in, wrong_kind
from shmq.client.position import BEGIN, Kind, Position, parse_moment
from shmq.client.spec import EVERYTHING, Wanted
from shmq.client.wire import Question, QueueReader, Queues, QueueSlot, Wire, ask_each, poll_whole
from shmq.errors import OffsetOutOfRange, RemoteError, UsageError
from shmq.message import check_topic
from shmq.protocol.client_requests import message_view
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import number_in, reply_of
from shmq.protocol.message_id import message_place
from shmq.shm.core import CoreError, Message, records_read

INDEX_LAG_MS: Final = 60_000
_READ_COUNT: Final = 256
FoundT = TypeVar("FoundT")


class Found(list[FoundT]):
    """The messages found, the oldest first.

    Attributes:
        is_cut: there is more: the limit left it out, or a broker cannot hand it out.
    """

    def __init__(self, found: Iterable[FoundT] = (), *, is_cut: bool = False) -> None:
        super().__init__(found)
        self.is_cut = is_cut


class Wish(NamedTuple):
    """A checked search in queues; see `wish_of`."""

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
        if self.queue_id not in (None, message.queue_id) or message.offset < (self.offset or 0):
            return False
        return (not tags or message.tag in tags) and (where is None or where.matches(message))


def wish_of(
    topic: str,
    *,
    wanted: Wanted = EVERYTHING,
    since: str | date | None = None,
    until: str | date | None = None,
    queue_id: int | None = None,
    offset: int | None = None,
    limit: int = options.BROWSE_MAX,
) -> Wish:
    """Check what is asked for.

    Raises:
        UsageError: a time, a limit or a combination that means nothing.
    """
    check_topic(topic)
    count_max = whole_in(limit, 1, options.BROWSE_LIMIT_MAX)
    if count_max is None:
        raise UsageError(f"limit={limit!r:.80} is not possible", hint=f"1 to {options.BROWSE_LIMIT_MAX}")
    queue_id, offset = _whole("queue_id", queue_id), _whole("offset", offset)
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
    return Wish(topic, wanted, begin_ms, end_ms, queue_id, offset, count_max)


def _whole(name: str, number: int | None) -> int | None:
    found = None if number is None else whole_in(number)
    if found is None and number is not None:
        raise wrong_kind(name, number, "an int", f"{name}=0")
    return found


class Search:
    """Looks for messages of one broker or cluster; any thread may use it.

    Args:
        pull_reader: makes a reader of its own for queues, for tags, a codec and an SQL92 expression.
        log: reads the record at a log position, where the log is in this host's memory.
    """

    def __init__(
        self,
        wire: Wire,
        queues: Queues,
        pull_reader: Callable[..., QueueReader],
        log: Callable[[int], Message] | None = None,
    ) -> None:
        self._wire = wire
        self._queues = queues
        self._pull_reader = pull_reader
        self._log = log

    def browse(self, wish: Wish, *, key: str | None = None, message_id: str | None = None) -> Found[Message]:
        """Return the messages that are wished for, the oldest first.

        Raises:
            TopicNotFound: there is no such topic.
            OffsetOutOfRange: the offset is not stored any more, or not yet.
            UsageError: both a key and an id.
        """
        queues = self._queues.read_queues(wish.topic, must_exist=True)
        if key is not None and message_id is not None:
            raise UsageError(
                "both a key and an id", hint='browse("orders", key="o-42") or browse("orders", id="0A00…")'
            )
        for name, text in (("key", key), ("id", message_id)):
            if text is not None and not isinstance(text, str):
                raise UsageError(f"{name} is a str, not {type(text).__name__}", hint=f'browse("orders", {name}="…")')
        if message_id is not None:
            found = self.find_by_place(wish.topic, message_id)
            return Found([found] if found is not None else self.find_by_unique_key(wish.topic, message_id))
        if key is not None:
            query = KeyQuery(
                wish.topic, key, begin_ms=wish.begin_ms or 0, end_ms=TIME_MS_MAX if wish.end_ms is None else wish.end_ms
            )
            return self._find_by_key(query, wish)
        return self._from_queues(wish, queues)

    # -- by key
    def find_by_unique_key(self, topic: str, unique_key: str) -> list[Message]:
        """Return the messages of a topic that have an id which their producer gave them, the oldest first."""
        return self._find_by_key(KeyQuery(topic, unique_key, is_unique=True), Wish(topic))

    def _find_by_key(self, query: KeyQuery, wish: Wish) -> Found[Message]:
        def wants(message: Message) -> bool:
            return query.wants(message) and wish.wants(message)

        pages = {name: KeyPages(query, wish.limit + 1, wants) for name in self._wire.brokers(query.topic)}
        while asked := [name for name, each in pages.items() if not each.is_done]:
            answers = self._ask([Question(name, Request.QUERY_MESSAGE, pages[name].query.fields) for name in asked])
            for name, reply in answers.items():
                said = None if reply is None else reply.ext.get("nextPosition")
                following = NO_MORE if reply is None else None
                if reply is not None and said is not None:
                    following = number_in("the answer to a search", reply.ext, "nextPosition")
                pages[name].take(self._messages_in(name, query.topic, reply), following)
        found = [message for each in pages.values() for message in each.found]
        if self._log is not None:
            known = {message.log_position for message in found}
            found += (each for each in self._latest(query.topic) if each.log_position not in known and wants(each))
        return _first(found, wish.limit, is_cut=any(each.is_cut for each in pages.values()))

    def _latest(self, topic: str) -> Iterator[Message]:
        """Return what was stored lately, which the index may not have yet."""
        since = Position(Kind.TIME_MS, round(time.time() * 1000) - INDEX_LAG_MS)
        queues = self._queues.read_queues(topic, must_exist=True)
        reader = self._pull_reader((), None)
        try:
            for queue in queues:
                start = self._queues.place_in(topic, queue, since)
                reader.assign(topic, queue.queue_index, queue.queue_id, start)
            ends = {queue.queue_id: self._queues.bounds(topic, queue)[1] for queue in queues}
            while messages := poll_whole(reader, _READ_COUNT, 0.0):
                yield from (message for message in messages if message.offset < ends[message.queue_id])
                if all(message.offset >= ends[message.queue_id] for message in messages):
                    return
        finally:
            reader.close()

    # -- by id
    def find_by_place(self, topic: str | None, message_id: str) -> Message | None:
        """Return the message an offset message id leads to; None when it leads to none, or to one of another topic.

        Args:
            topic: None takes any.
        """
        place = message_place(message_id)
        if place is None:
            return None
        if self._log is not None:
            try:
                message = self._log(place.log_position)
            except CoreError:
                return None
            return message if topic in (None, message.topic) else None
        brokers = self._wire.brokers(topic)
        address = str(Address(place.host, place.port))
        view = message_view(place.log_position)
        for some in ([name for name in brokers if self._wire.address(name) == address], brokers):
            answers = self._ask([Question(name, view.code, view.ext) for name in some])
            messages = (each for name, reply in answers.items() for each in self._messages_in(name, topic, reply))
            found = [message for message in messages if topic in (None, message.topic)]
            if found:
                return next((each for each in found if each.offset_message_id == message_id.upper()), found[0])
        return None

    def _ask(self, questions: Sequence[Question]) -> dict[str, Command | None]:
        """Return the answers by broker, None for one that has nothing."""
        found: dict[str, Command | None] = {}
        for question, answer in zip(questions, ask_each(self._wire, questions, slave_may_answer=True), strict=True):
            try:
                found[question.broker] = reply_of(answer)
            except RemoteError as error:
                # RocketMQ answers a position without a record with its general error.
                is_nothing = error.code == Response.SYSTEM_ERROR and self._log is None
                if not is_nothing and error.code != Response.QUERY_NOT_FOUND:
                    raise
                found[question.broker] = None
        return found

    def _messages_in(self, broker: str, topic: str | None, reply: Command | None) -> list[Message]:
        if reply is None:
            return []
        return records_read(reply.body, queue_base=self._queues.queue_id(MessageQueue(broker, 0, topic or "")))

    # -- in the queues
    def _from_queues(self, wish: Wish, queues: Sequence[QueueSlot]) -> Found[Message]:
        wanted = [queue for queue in queues if wish.queue_id in (None, queue.queue_id)]
        if wish.queue_id is not None and not wanted:
            known = [queue.queue_id for queue in queues]
            raise UsageError(f"topic {wish.topic} has no queue {wish.queue_id}", hint=f"its queues are {known}")
        found: list[Message] = []
        for queue in wanted:
            found += self._from_queue(wish, queue)
        return _first(found, wish.limit)

    def _from_queue(self, wish: Wish, queue: QueueSlot) -> Iterator[Message]:
        offset_min, offset_max = self._queues.bounds(wish.topic, queue)
        start = self._start_in(wish, queue, offset_min, offset_max)
        if start >= offset_max:
            return
        reader = self._pull_reader(wish.wanted.tags, None, wish.wanted.where)
        try:
            reader.assign(wish.topic, queue.queue_index, queue.queue_id, start)
            left = wish.limit + 1  # one more says that there is more
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

    def _start_in(self, wish: Wish, queue: QueueSlot, offset_min: int, offset_max: int) -> int:
        if wish.offset is not None:
            if not offset_min <= wish.offset < offset_max:
                stored = f"offsets {offset_min} to {offset_max - 1}" if offset_max > offset_min else "no message"
                raise OffsetOutOfRange(
                    f"queue {queue.queue_id} of {wish.topic} holds {stored}, not {wish.offset}",
                    hint=f"browse from {offset_min} on",
                )
            return wish.offset
        place = BEGIN if wish.begin_ms is None else Position(Kind.TIME_MS, wish.begin_ms)
        return self._queues.place_in(wish.topic, queue, place)


def _stored(reader: QueueReader, offset_max: int) -> Iterator[Message]:
    """Read on until nothing is left below an offset."""
    while messages := poll_whole(reader, _READ_COUNT, 0.0):
        for message in messages:
            if message.offset >= offset_max:
                return
            yield message


def _first(messages: Iterable[Message], limit: int, *, is_cut: bool = False) -> Found[Message]:
    """Return the oldest messages, and whether there are more."""
    in_order = sorted(messages, key=lambda message: (message.store_ms, message.log_position))
    return Found(in_order[:limit], is_cut=is_cut or len(in_order) > limit)


TIME_MS_MAX: Final = (1 << 63) - 1
PAGE_MAX: Final = 1000
NO_MORE: Final = 0
_ROCKETMQ_PAGE: Final = 64  # its maxMsgsNumBatch
_SECOND_MS: Final = 1000
_LOOKED_AT_MAX: Final = (
    20_000  # of a broker that answers with the newest first: they are held until the oldest is known
)


class KeyQuery(NamedTuple):
    """A question to the key index; times in ms, both included."""

    topic: str
    key: str
    is_unique: bool = False
    begin_ms: int = 0
    end_ms: int = TIME_MS_MAX
    from_position: int = 0

    @property
    def fields(self) -> dict[str, str]:
        """The header fields of QUERY_MESSAGE."""
        fields = {
            "topic": self.topic,
            "key": self.key,
            "maxNum": str(PAGE_MAX),
            "beginTimestamp": str(self.begin_ms),
            "endTimestamp": str(self.end_ms),
        }
        return fields | ({"_UNIQUE_KEY_QUERY": "true"} if self.is_unique else {"fromPosition": str(self.from_position)})

    def wants(self, message: Message) -> bool:
        """Whether a message is an answer; the index only knows hashes and whole seconds."""
        if not self.begin_ms <= message.store_ms <= self.end_ms:
            return False
        if message.properties.get("UNIQ_KEY") == self.key:
            return True
        return not self.is_unique and self.key in message.keys


class KeyPages:
    """What one broker has of a key, page by page until it is enough; without I/O, and no message is counted twice.

        shmq        fromPosition ─▶ the oldest records from there on, and where the next page begins, or 0
        RocketMQ    the newest 64 stored within a time of whole seconds: the next page ends where this one began

    What a broker cannot be asked for (RocketMQ: more than 64 messages with one key in one second) is reported as a cut.
    """

    def __init__(self, query: KeyQuery, enough: int, wants: Callable[[Message], bool]) -> None:
        self.query = query
        self.found: list[Message] = []
        self.is_done = self.is_cut = False
        self._enough = enough
        self._wants = wants
        self._seen: set[int] = set()

    def take(self, messages: Sequence[Message], following: int | None) -> None:
        """Take a page, and see what to ask for next.

        Args:
            following: what the broker says of it; None when it says nothing.
        """
        new = [message for message in messages if message.log_position not in self._seen]
        self._seen.update(message.log_position for message in new)
        self.found += filter(self._wants, new)
        if self.query.is_unique or following == NO_MORE:
            self.is_done = True
        elif following is not None:
            self.query = self.query._replace(from_position=following)
            self.is_done = len(self.found) >= self._enough
        else:
            self._step_back(messages, is_new=bool(new))

    def _step_back(self, messages: Sequence[Message], *, is_new: bool) -> None:
        """Go on before the oldest message of a page; one that brought nothing new was a second's, as is all of it."""
        if not messages:
            self.is_done = True
            return
        end_ms = min(message.store_ms for message in messages)
        if not is_new:
            end_ms -= _SECOND_MS
            self.is_cut |= len(messages) >= _ROCKETMQ_PAGE
        if len(self._seen) >= _LOOKED_AT_MAX:
            self.is_done = self.is_cut = True
        self.is_done |= end_ms < self.query.begin_ms
        self.query = self.query._replace(end_ms=min(end_ms, self.query.end_ms))
