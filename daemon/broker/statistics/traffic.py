"""Derives traffic from the tables, because local clients send and receive without a request.

RocketMQ's statistics are derived from how the ends and bytes of queues and the committed offsets of groups have moved
since the last look.

    a queue's end grew by n, its bytes by b     TOPIC_PUT_NUMS[topic] n, TOPIC_PUT_SIZE[topic] b, BROKER_PUT_NUMS n
    a group's offset grew by n                  GROUP_GET_NUMS[topic@group] n, GROUP_GET_SIZE b', BROKER_GET_NUMS n

b' is exact for up to `_UNITS_READ` messages of a look, and their average times n beyond that. What a group reads twice,
or reads without committing (broadcast, pull at will), is not seen.

The first offset a group ever has on a queue says nothing of where it began. A client over TCP began where its first
pull did that found something, if that was served here; a local member has read no more than its process received since
the last look. Where neither is known (the first commit of a client of another bridge, or of a member that has left
already), nothing is counted.

A look compares whole blocks of words first, so a broker where little happens looks for next to nothing; where more than
`_BUSY_WORDS` moved, the next look comes after ten seconds instead of one.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime

from shmq.daemon.broker.statistics.queue_index import QueueIndex
from shmq.daemon.broker.statistics.statistics import Rates, Statistics
from shmq.daemon.broker.tables import Tables

_BLOCK_BYTES = 4096
_PAIR_BYTES = 16
_LOOK_MS = 1000
_BUSY_LOOK_MS = 10_000
_BUSY_WORDS = 2000
_UNITS_READ = 32
_STARTS_MAX = 10_000


class DayTotals:
    """A total that only grows: its value now, at midnight today and at midnight the day before."""

    def __init__(self) -> None:
        self.now = 0
        self.today_morning = 0
        self.yesterday_morning = 0
        self._day = 0

    def see(self, total: int, day: int) -> None:
        """Take note of the total on a day (a number that grows by one at midnight)."""
        if self._day and day > self._day:
            self.yesterday_morning, self.today_morning = self.today_morning, self.now
        self._day = max(self._day, day)
        self.now = total


class Traffic:
    """Puts and gets of topics and groups."""

    def __init__(self, tables: Tables, queues: QueueIndex, statistics: Statistics, *, cluster: str) -> None:
        self._tables = tables
        self.queues = queues
        self.statistics = statistics
        self._cluster = cluster
        self._queue_counts: bytes | None = None
        self._queue_numbers = memoryview(b"")
        self._offset_counts: bytes | None = None
        self._look_ms = 0
        self._seen_ms: int | None = None
        self._group_names: dict[int, str] = {}
        self.put_rates, self.get_rates = Rates(), Rates()
        self.put_totals, self.get_totals = DayTotals(), DayTotals()
        self._got = 0
        self._starts: dict[tuple[int, int], int] = {}
        self._received: Mapping[int, tuple[int, int]] = {}

    def started(self, group: int, queue: int, queue_offset: int) -> None:
        """Take note of where a group (by number) that never committed reads a queue (by index)."""
        if self._starts.setdefault((group, queue), queue_offset) == queue_offset and len(self._starts) > _STARTS_MAX:
            del self._starts[next(iter(self._starts))]  # of one that never commits, most probably

    def tick(self, now_ms: int) -> None:
        """Look, if it is time; the first look only remembers."""
        if now_ms < self._look_ms:
            return
        # What moved, moved since the last look: a counter that begins now begins there.
        since_ms, self._seen_ms = now_ms if self._seen_ms is None else self._seen_ms, now_ms
        moved = self._look_at_queues(since_ms) + self._look_at_offsets(since_ms)
        self._look_ms = now_ms + (_BUSY_LOOK_MS if moved > _BUSY_WORDS else _LOOK_MS)
        put = self._tables.facts().appended
        self.put_rates.sample(now_ms, put)
        self.get_rates.sample(now_ms, self._got)
        day = datetime.fromtimestamp(self._tables.clock_ms / 1000).toordinal()
        self.put_totals.see(put, day)
        self.get_totals.see(self._got, day)

    def _look_at_queues(self, since_ms: int) -> int:
        # The counts first: where an entry changes hands in between, the counts of the old queue are of no queue.
        counts = self._tables.queue_counts()
        numbers = memoryview(self._tables.queue_numbers()).cast("I")
        before, self._queue_counts = self._queue_counts, counts
        numbers_before, self._queue_numbers = self._queue_numbers, numbers
        moved = 0
        for entry, was, now in _moved_pairs(before if before is not None else counts, counts):
            moved += 1
            name = self.queues.names().get(numbers[entry])
            is_new = entry >= len(numbers_before) or numbers_before[entry] != numbers[entry]
            sent, size = (now[0], now[1]) if is_new else (now[0] - was[0], now[1] - was[1])
            if name is not None and sent > 0:
                self.statistics.add("TOPIC_PUT_NUMS", name.topic, sent, since_ms, times=sent)
                self.statistics.add("TOPIC_PUT_SIZE", name.topic, max(0, size), since_ms, times=sent)
                self.statistics.add("BROKER_PUT_NUMS", self._cluster, sent, since_ms, times=sent)
        return moved

    def _look_at_offsets(self, since_ms: int) -> int:
        counts = self._tables.offset_counts()
        before, self._offset_counts = self._offset_counts, counts
        received_before, self._received = self._received, self._tables.received()
        # A slot of another process now begins at zero again.
        unclaimed = {
            slot: count - (before_it[1] if (before_it := received_before.get(slot, (0, 0)))[0] == generation else 0)
            for slot, (generation, count) in self._received.items()
        }
        moved = 0
        for _, was, now in _moved_pairs(before if before is not None else counts, counts):
            moved += 1
            group, queue = divmod(now[1], 1 << 32)
            bounds = self._tables.queue_bounds(queue)
            # A client may commit any number; what is not there was not read.
            # A slot that was another queue's before had no offset of this one.
            end, start = min(now[0] - 1, bounds.offset_max), was[0] - 1 if was[1] == now[1] else -1
            if start < 0:
                start = self._start(group, queue, end, unclaimed)
            start = max(start, bounds.offset_min)
            got = end - start
            if got <= 0:
                continue
            name, group_name = self.queues.names().get(queue), self._group_name(group)
            if name is None or not group_name:
                continue
            key = f"{name.topic}@{group_name}"
            size = self._bytes_of(queue, start, got)
            self.statistics.add("GROUP_GET_NUMS", key, got, since_ms, times=got)
            self.statistics.add("GROUP_GET_SIZE", key, size, since_ms, times=got)
            self.statistics.add("BROKER_GET_NUMS", self._cluster, got, since_ms, times=got)
            self._got += got
        return moved

    def _start(self, group: int, queue: int, end: int, unclaimed: dict[int, int]) -> int:
        """Where a group began that has its first offset on a queue; the end where that is not known."""
        start = self._starts.pop((group, queue), None)
        if start is not None:
            return start
        slot = self._tables.offset_slot(group, queue)
        owner = self._tables.offset_owner(slot) if slot is not None else -1
        got = min(unclaimed.get(owner, 0), end - self._tables.queue_bounds(queue).offset_min)
        if owner in unclaimed:
            unclaimed[owner] -= got
        return end - got

    def _group_name(self, group: int) -> str:
        name = self._group_names.get(group, "")
        if not name or self._tables.group(name) != group:
            self._group_names = {
                index: name for name in self._tables.groups() if (index := self._tables.group(name)) is not None
            }
            name = self._group_names.get(group, "")
        return name

    def _bytes_of(self, queue: int, first: int, count: int) -> int:
        units = self._tables.units(queue, first, min(count, _UNITS_READ))
        return sum(unit.record_bytes for unit in units) * count // len(units) if units else 0


_Pair = tuple[int, int]


def _moved_pairs(before: bytes, now: bytes) -> Iterator[tuple[int, _Pair, _Pair]]:
    """Yield (index, old pair, new pair) of every pair of words that is not what it was; new ones were zero."""
    before += bytes(max(0, len(now) - len(before)))
    for start in range(0, len(now), _BLOCK_BYTES):
        old, new = before[start : start + _BLOCK_BYTES], now[start : start + _BLOCK_BYTES]
        if old == new:
            continue
        old_words, new_words = memoryview(old).cast("Q"), memoryview(new).cast("Q")
        for at in range(0, len(new_words), 2):
            was, is_now = (old_words[at], old_words[at + 1]), (new_words[at], new_words[at + 1])
            if was != is_now:
                yield start // _PAIR_BYTES + at // 2, was, is_now
