"""Metrics of groups: lag, in flight, ready, and the age of the oldest message of each.

`shmq.progress` says what lag, in flight and ready mean; this module reads its numbers for all groups at once.

    committed   of the group's offset slot
    handed      of the same slot: how far the queue's reader was handed messages. A local member shows it while it
                owns the slot; for clients over TCP the bridge does, and it counts while the group has members
    popped      counted by the bridges for a topic and group, not queue by queue: it is added to the sums of both

The group's members are not asked: that would be late, and silent where one hangs. `handed` costs a member one relaxed
store a delivery, in a cache line that it writes anyway.

Only the oldest message of a topic and group is read, not that of each queue.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from shmq.errors import ShmqError
from shmq.figures.mapped import QueueOf, group_offsets
from shmq.metrics.exposition import Samples
from shmq.progress import Backlog
from shmq.shm.core import Store, StoreFigures
from shmq.shm.unit import units_of

LAG: Final = "rocketmq_consumer_lag_messages"
LAG_AGE: Final = "rocketmq_consumer_lag_latency_milliseconds"
INFLIGHT: Final = "rocketmq_consumer_inflight_messages"
READY: Final = "rocketmq_consumer_ready_messages"
LOST: Final = "shmq_group_lost_messages"
READY_AGE: Final = "rocketmq_consumer_queueing_latency_milliseconds"

_IS_LOCAL: Final = 1 << 63

_Place = tuple[int, int]  # log position, record bytes


class GroupProgress:
    """The progress of every group, at one moment."""

    def __init__(
        self,
        store: Store,
        topic_of: Mapping[int, str],
        groups: Mapping[int, str],
        attended: Collection[str],
        labels_of: Callable[[str, str], str],
    ) -> None:
        """
        Args:
            topic_of: queue index -> topic.
            groups: group number -> name.
            attended: groups that have members.
        """
        self._store = store
        self._topic_of = topic_of
        self._groups = groups
        self._attended = attended
        self._labels_of = labels_of
        self._oldest: dict[str, dict[str, _Place]] = {LAG_AGE: {}, READY_AGE: {}}

    def read(self, samples: Samples) -> None:
        """Add the samples of every topic and group that has an offset."""
        figures = StoreFigures(self._store)
        slots = memoryview(figures.offset_counts()).cast("Q")[1::2]
        takens = memoryview(figures.offsets_taken()).cast("Q")  # of the same entries, or of more
        found: dict[str, list[int]] = {}  # lag, in flight
        queue_of = functools.cache(self._queue_of)  # which many groups may read
        for entry in group_offsets(self._store, self._groups, queue_of, dict):
            number, slot, group, queue, committed, _, _, _, cleaned, _ = entry  # by place: there are many
            labels = self._labels_of(queue.topic, group)
            if cleaned:
                samples.add(LOST, cleaned, labels)
            if committed < 0 and not queue.offset_max:
                continue
            sums = found.setdefault(labels, [0, 0])
            if committed >= queue.offset_max:
                continue  # nothing waits; most queues of most groups
            taken = takens[number] if number < len(slots) and slots[number] == slot else 0
            handed = taken & ~_IS_LOCAL if taken & _IS_LOCAL or group in self._attended else 0
            backlog = Backlog(committed, queue.offset_min, queue.offset_max, handed=handed)
            sums[0] += backlog.lag
            sums[1] += backlog.in_flight
            if backlog.lag:
                self._see(LAG_AGE, labels, queue.queue_index, backlog.next_offset)
            if backlog.ready:
                self._see(READY_AGE, labels, queue.queue_index, queue.offset_max - backlog.ready)
        now_ms = time.time_ns() // 1_000_000
        for labels, (lag, in_flight) in found.items():
            samples.put(LAG, lag + samples.value(INFLIGHT, labels), labels)  # which is what was popped, so far
            samples.add(INFLIGHT, in_flight, labels)
            samples.put(READY, lag - in_flight, labels)
            for family, oldest in self._oldest.items():
                samples.put(family, self._age_ms(oldest.get(labels), now_ms), labels)

    def _queue_of(self, index: int) -> QueueOf | None:
        topic = self._topic_of.get(index)
        if topic is None:
            return None
        queue = self._store.queue(index)
        return QueueOf(topic, queue.queue_id, index, queue.offset_min, queue.offset_max)

    def _see(self, family: str, labels: str, queue: int, offset: int) -> None:
        place, oldest = self._place_of(queue, offset), self._oldest[family]
        if place is not None and (labels not in oldest or place < oldest[labels]):
            oldest[labels] = place

    def _age_ms(self, place: _Place | None, now_ms: int) -> int:
        if place is not None:
            with contextlib.suppress(ShmqError):
                return max(0, now_ms - self._store.message_at(*place).store_ms)
        return 0

    def _place_of(self, queue: int, offset: int) -> _Place | None:
        """Where the record of a queue offset lies; None when retention has just taken it."""
        with contextlib.suppress(ShmqError):
            for unit in units_of(self._store.units_stored(queue, offset, 1)):
                return unit.log_position, unit.record_bytes
        return None
