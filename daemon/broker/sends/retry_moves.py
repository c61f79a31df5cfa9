"""Moves retries to where their readers are, when a group's members have changed since they were stored.

    members of a group begin to read different topics    %RETRY%group          -> %RETRY%group+topic, topic by topic
    a client of RocketMQ begins to read a topic          %RETRY%group+topic    -> %RETRY%group

`ConsumerGroup` says which of them has readers; from the other one no member takes anything. A moved retry is the same
message with the same number of tries, and counts as read by the group where it lay.

Invariants:
 1. A queue that a member owns, or has locked, is left alone: what it has in hand it settles first.
 2. The group's progress is moved behind a retry only when its copy is stored. Each copy names the record it was made
    from, so a broker that was killed between the two does not store it again.
 3. What is not visible yet, and what has no home, stays: nothing is passed over but what is damaged or deleted.
"""

from collections.abc import Callable, Iterator, Sequence

from shmq.daemon.broker.groups.consumer_group import ConsumerGroup
from shmq.daemon.broker.groups.registry import GroupRegistry
from shmq.daemon.broker.groups.settings import GroupSettings
from shmq.daemon.broker.log import Storage, retry_ms
from shmq.daemon.broker.records.property_text import property_of, with_properties
from shmq.daemon.broker.records.stored_record import StoredRecord, copy_of, kept_portions, records_of
from shmq.daemon.broker.tables import Topic
from shmq.daemon.broker.timers.copies import name_of
from shmq.daemon.broker.topics import ensure_topic
from shmq.daemon.logic.alarm import Alarm
from shmq.daemon.logic.effects import Effect, Report
from shmq.daemon.logic.requests import Part
from shmq.errors import ShmqError
from shmq.message import RETRY_TOPIC, retry_topic_of

_COPIES_PER_RUN = 200  # the event loop serves others in between
_READ_BYTES = 256 << 10
_SEARCHED = 64  # records at the end of a queue that may be the copy a killed broker stored last
_LEAVING_MS = 3000  # a TCP member that is asked to leave a queue commits what it has settled within that time
_HOLDER = 1 << 30
_HOLD_MS = 1000

Changed = Callable[[Sequence[str]], list[Effect]]


class RetryMoves(Part):
    """Looks after the retry topics of groups with members."""

    def __init__(
        self,
        storage: Storage,
        registry: GroupRegistry,
        groups: GroupSettings,
        *,
        changed: Changed,
        is_popped: Callable[[str, str, int], bool],
    ) -> None:
        """
        Args:
            changed: tells the members of groups to share their queues anew.
            is_popped: whether the clients of a group pop a topic.
        """
        self._tables, self._log, self._arrived = storage
        self._registry = registry
        self._groups = groups
        self._changed = changed
        self._alarm = Alarm()
        self._is_popped = is_popped
        self._sources: list[tuple[ConsumerGroup, Sequence[str]]] = []  # groups, and their topics without readers
        self._version = -1
        self._since_ms: dict[str, int] = {}  # topics without readers that hold something
        self._seen: set[int] = set()  # queues that this process has moved something of
        self._reported: set[str] = set()

    def tick(self, now_ms: int) -> Sequence[Effect]:
        """Move what lies where it has no readers."""
        return self._run(now_ms)

    def woken(self, now_ms: int) -> Sequence[Effect]:
        """Go on with what one run could not finish."""
        return self._alarm.ring(now_ms, self._run)

    def _run(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        room = _COPIES_PER_RUN
        waiting: dict[str, int] = {}
        for group, names in self._unread():
            for topic in self._filled(group.name, names, now_ms):
                since_ms = waiting[topic.name] = self._since_ms.get(topic.name, now_ms)
                if group.is_local or now_ms - since_ms >= _LEAVING_MS:
                    room -= self._move(group, topic, room, now_ms, effects)
        self._since_ms = waiting
        if room <= 0:
            effects.append(self._alarm.set(now_ms, 1))
        return effects

    def _unread(self) -> Sequence[tuple[ConsumerGroup, Sequence[str]]]:
        """Groups whose retry topics may have no readers, with the names of these."""
        if self._version != self._registry.members_version:
            self._version = self._registry.members_version
            named = ((group, group.unread_retry_topics()) for group in self._registry.consumer_groups())
            self._sources = [(group, names) for group, names in named if names]
        return self._sources

    def _filled(self, group: str, names: Sequence[str], now_ms: int) -> Iterator[Topic]:
        for name in names:
            topic = self._tables.topic(name)
            if topic is None or not any(self._rest(group, queue) for queue in topic.queues):
                continue
            if not self._is_popped(group, name.removeprefix(retry_topic_of(group, "")), now_ms):
                yield topic

    def _rest(self, group: str, queue: int) -> int:
        index = self._tables.group(group)
        slot = self._tables.offset_slot(index, queue) if index is not None else None
        committed = self._tables.committed(slot) if slot is not None else -1
        low, high = self._tables.queue_bounds(queue)
        return max(0, high - max(low, committed))

    def _move(self, group: ConsumerGroup, source: Topic, room: int, now_ms: int, effects: list[Effect]) -> int:
        """Move at most `room` retries of a topic; return how many."""
        moved = 0
        targets: dict[int, None] = {}
        index = self._tables.group_put(group.name)
        try:
            for queue in source.queues:
                slot = self._tables.offset_put(index, queue)
                if not self._tables.offset_lock(slot, _HOLDER, now_ms, _HOLD_MS):
                    continue
                try:
                    moved += self._move_queue(group, source.name, (queue, slot), room - moved, targets, effects)
                finally:
                    self._tables.offset_unlock(slot, _HOLDER)
            self._reported.discard(source.name)
        except ShmqError as error:
            if source.name not in self._reported:
                self._reported.add(source.name)
                effects.append(Report(f"retries in {source.name} do not come again yet: {error}"))
            effects.append(self._alarm.set(now_ms, retry_ms(error)))
        if targets:
            effects += self._arrived(tuple(targets), now_ms)
        return moved

    def _move_queue(
        self,
        group: ConsumerGroup,
        source: str,
        place: tuple[int, int],
        room: int,
        targets: dict[int, None],
        effects: list[Effect],
    ) -> int:
        queue, slot = place
        moved = 0
        offset = max(self._tables.committed(slot), self._tables.queue_bounds(queue).offset_min)
        while moved < room:
            pulled = self._log.read(queue, offset, count_max=min(32, room - moved), bytes_max=_READ_BYTES)
            if pulled.next_offset <= offset:
                break
            for record in records_of(pulled.body):
                home = group.retry_home(property_of(record.properties, RETRY_TOPIC) or "")
                if home == source:
                    return moved
                targets[self._store(group.name, home, queue, record, effects)] = None
                self._tables.set_committed(slot, record.queue_offset + 1)
                moved += 1
            offset = pulled.next_offset
            self._tables.set_committed(slot, offset)
        return moved

    def _store(self, group: str, home: str, queue: int, record: StoredRecord, effects: list[Effect]) -> int:
        """Store a retry where it has readers; return the queue (by index)."""
        is_new = self._tables.topic(home) is None
        topic = ensure_topic(self._tables, home, queues=max(1, self._groups.of(group).retryQueueNums))
        if is_new:
            effects += self._changed([group])
        queue_id = record.queue_id % len(topic.queues)
        target = topic.queues[queue_id]
        is_first = queue not in self._seen
        self._seen.add(queue)
        if not is_first or not self._is_there(target, record):
            self._log.append(
                topic, queue_id, copy_of(record, with_properties(record.properties, {}), names=name_of(record))
            )
        return target

    def _is_there(self, target: int, record: StoredRecord) -> bool:
        low, high = self._tables.queue_bounds(target)
        for pulled in kept_portions(self._tables, self._log, target, max(low, high - _SEARCHED)):
            if any(copy.prepared_position == name_of(record) for copy in records_of(pulled.body)):
                return True
        return False
