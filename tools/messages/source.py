"""The sources of `shmq consume`: stored messages, new ones, or those of a group.

Every source has one verb, `take`:

    History     the stored messages of a topic in the order of the log, without asking the broker; ends
    Following   what is stored after that; never ends
    Merged      both in one, over TCP, by the times at which brokers stored them
    Membership  this member's share of a group's messages; each is settled or given back

A topic's queues are one log, so their messages have one order, that of their log positions. History merges by it: a
file that went in line by line comes out line by line, however many queues it went through.

Invariants:
1. History gives each message that was visible when it began exactly once, in ascending log position.
2. Following begins at the very offsets where History ended: nothing is skipped or repeated between them.
3. At most `READ_AHEAD` messages of each queue are held.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shmq.client.position import parse_position
from shmq.client.spec import Wanted
from shmq.client.wire import poll_whole
from shmq.figures.model import QueueInfo, TopicInfo
from shmq.shm.core import Message, Reader
from shmq.tools.broker.memory import Memory
from shmq.tools.broker.view import BrokerView

if TYPE_CHECKING:
    import shmq

READ_AHEAD = 256
_DIGITS_MAX = 19  # with more, a number is beyond every count
BATCH = 256


class Source:
    """Something that messages come from; settling means nothing to it."""

    def take(self, count_max: int, wait: float) -> list[Message]:
        """Return at most `count_max` messages; [] when none came within `wait` seconds."""
        raise NotImplementedError

    def at_end(self) -> bool:
        """Say whether everything there was has been taken; asked after an empty `take`."""
        return False

    def settle(self, messages: Sequence[Message]) -> None:
        """Take note that these were handled."""

    def give_back(self, message: Message) -> bool:
        """Take note that this one could not be handled; True when it will be delivered again."""
        return False


class _Cursor:
    """One queue of a History: its reader, and what was read ahead."""

    def __init__(self, memory: Memory, topic: TopicInfo, queue: QueueInfo, offset: int, wanted: Wanted) -> None:
        self.queue_id = queue.queue_id
        self.offset = offset
        self._end = queue.offset_max
        self._ahead: deque[Message] = deque()
        self._reader = Reader(memory.store, tags=wanted.tags or None, where=wanted.filter, spin_us=0)
        self._reader.assign(topic.name, memory.queue_index(topic, queue), queue.queue_id, offset)

    def next(self) -> Message | None:
        """Return the next message below the end, or None."""
        while not self._ahead and self.offset < self._end:
            messages = poll_whole(self._reader, READ_AHEAD, 0.0)
            self._ahead.extend(message for message in messages if message.offset < self._end)
            if not self._ahead:
                # Filtered out or deleted by retention: the reader knows how far it went. Without progress, what is
                # left is not visible yet, and Following begins there.
                reached = self._end if messages else min(self._end, self._reader.assigned()[0].next_offset)
                if reached <= self.offset:
                    return None
                self.offset = reached
        if not self._ahead:
            return None
        message = self._ahead.popleft()
        self.offset = message.offset + 1
        return message

    def close(self) -> None:
        self._reader.close()


class History(Source):
    """Stored messages from `starts` (queue id to offset) up to what was stored when this was made."""

    def __init__(self, memory: Memory, topic: TopicInfo, starts: Mapping[int, int], wanted: Wanted) -> None:
        readable = topic.queues[: topic.read_queues]
        self._cursors = [_Cursor(memory, topic, queue, starts[queue.queue_id], wanted) for queue in readable]
        self._heap: list[tuple[int, int, Message]] = []
        self._kept: deque[Message] = deque()
        for index in range(len(self._cursors)):
            self._advance(index)

    @property
    def offsets(self) -> dict[int, int]:
        """The offset at which each queue goes on after what was taken; complete once `take` has returned []."""
        return {cursor.queue_id: cursor.offset for cursor in self._cursors}

    def take(self, count_max: int, wait: float = 0.0) -> list[Message]:
        """Return at most `count_max` messages in log order; [] at the end. Never waits, whatever `wait` says."""
        messages = [self._kept.popleft() for _ in range(min(count_max, len(self._kept)))]
        while self._heap and len(messages) < count_max:
            _, index, message = heapq.heappop(self._heap)
            messages.append(message)
            self._advance(index)
        return messages

    def at_end(self) -> bool:
        """Say whether everything has been taken."""
        return not self._heap and not self._kept

    def keep_last(self, count: int) -> None:
        """Take everything but the last `count` messages, which `take` gives from now on."""
        kept: deque[Message] = deque(maxlen=count)
        while batch := self.take(BATCH):
            kept.extend(batch)
        self._kept = kept

    def close(self) -> None:
        """Let the readers go; messages stay valid."""
        for cursor in self._cursors:
            cursor.close()

    def _advance(self, index: int) -> None:
        message = self._cursors[index].next()
        if message is not None:
            heapq.heappush(self._heap, (message.log_position, index, message))


def starts_of(view: BrokerView, topic: TopicInfo, where: str) -> dict[int, int]:
    """Return the queue offset that a place means in each queue.

    Args:
        where: `begin`, `end`, an offset, `-100` (messages before the end of each queue), `-2h`, an ISO time.

    Raises:
        UsageError: it is none of these.
    """
    last = last_count(where)
    if last is not None:
        return {queue.queue_id: max(queue.offset_min, queue.offset_max - last) for queue in topic.queues}
    position = parse_position(where)
    return {queue.queue_id: view.place_in(topic, queue, position) for queue in topic.queues}


def last_count(where: str) -> int | None:
    """Return the number of `-100`, a count of messages before the end; None for every other place."""
    word = where.strip()
    if not (word.startswith("-") and word[1:].isascii() and word[1:].isdigit()):
        return None
    digits = word[1:].lstrip("0") or "0"
    return int(digits) if len(digits) < _DIGITS_MAX else sys.maxsize


class Following(Source):
    """Messages of a topic as they come, from given offsets on; stores no offset anywhere."""

    def __init__(self, consumer: shmq.PullConsumer, offsets: Mapping[int, int]) -> None:
        self._consumer = consumer
        for queue_id in consumer.queues():
            if queue_id in offsets:
                consumer.seek(queue_id, offsets[queue_id])

    def take(self, count_max: int, wait: float) -> list[Message]:
        """Return at most `count_max` messages; [] when none came within `wait` seconds."""
        messages = self._consumer.poll(count_max, wait)
        if not messages:
            self._consumer.queues()  # the topic may have got more
        return sorted(messages, key=lambda message: message.log_position)


class Merged(Source):
    """Both over TCP: what a topic stores and gets, from given offsets on; stores no offset anywhere."""

    def __init__(self, consumer: shmq.PullConsumer, starts: dict[int, int], last: int | None) -> None:
        self._consumer = consumer
        self._kept: list[Message] = []
        for queue in consumer.queues():
            if queue in starts:
                consumer.seek(queue, starts[queue])
        if last is not None:
            self._keep_last(last)

    def _keep_last(self, count: int) -> None:
        stored: list[Message] = []
        while batch := self._consumer.poll(256, 0.0):
            stored += batch
        stored.sort(key=_by_time)
        self._kept = stored[-count:] if count else []

    def take(self, count_max: int, wait: float) -> list[Message]:
        """Return at most `count_max` messages; [] when none came within `wait` seconds."""
        if self._kept:
            taken, self._kept = self._kept[:count_max], self._kept[count_max:]
            return taken
        return sorted(self._consumer.poll(count_max, wait), key=_by_time)

    def at_end(self) -> bool:
        """Say whether everything stored has been taken."""
        return not self._kept and not sum(self._consumer.lag().values())


def _by_time(message: Message) -> tuple[int, int]:
    return message.store_ms, message.log_position


class Membership(Source):
    """This member's share of what a group has still to consume."""

    def __init__(self, subscription: shmq.Subscription) -> None:
        self._subscription = subscription
        self._given_back: set[tuple[int, int]] = set()

    def take(self, count_max: int, wait: float) -> list[Message]:
        """Return at most `count_max` messages; [] when none came within `wait` seconds."""
        messages = self._subscription.receive(max=count_max, wait=wait)
        self._given_back.difference_update((message.queue_id, message.offset) for message in messages)
        return messages

    def at_end(self) -> bool:
        """Say whether nothing is left but what was given back and waits for its next delivery.

        A queue lags from its lowest unacknowledged message on, so what was given back hides how much lies behind it;
        but what could be delivered has been, or the `take` before this would not have been empty.
        """
        return bool(self._given_back) or self._subscription.lag() == 0

    def settle(self, messages: Sequence[Message]) -> None:
        """Acknowledge them."""
        for message in messages:
            message.ack()

    def give_back(self, message: Message) -> bool:
        """Let the group deliver it again, after its usual delay."""
        self._given_back.add((message.queue_id, message.offset))
        message.nack()
        return True
