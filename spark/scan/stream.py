"""A streaming query: what a micro-batch holds, and telling a group how far the query is.

    initialOffset ─▶ latestOffset(start, limit) ─▶ partitions(start, end) ─▶ read(partition) … in executors
                          │ start is done: publish it to commitGroup
                          └ end = what is visible now, or what the limits admit; it carries its own start

Rules: (1) a batch is `end.start` to `end.end`; the start Spark gives is not
looked at, it is not the same after a crash in batch 0;
(2) nothing new is the start itself, returned as it came;
(3) publishing never fails a query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from shmq.shm.lease import release_lease
from shmq.spark.access.broker import Access, Key, Queue, Range, Reading
from shmq.spark.access.loss import data_loss
from shmq.spark.access.memory_limit import explained
from shmq.spark.access.way import open_access
from shmq.spark.options import Options
from shmq.spark.plan.admission import Sizes, admit_bytes, admit_rows
from shmq.spark.plan.progress import Progress, progress_of
from shmq.spark.plan.ranges import check_named, chosen_queues, start_of
from shmq.spark.scan.messages import read_ranges
from shmq.spark.scan.reader import RangesPartition, planned

_log = logging.getLogger("shmq.spark")


class ShmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's source, in the driver's process for it; a copy reads in executors."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._reading = Reading(options, columns)
        self._initial: dict[str, Any] | None = None
        self._target: dict[Key, int] | None = None
        self._waiting_since: float | None = None
        self._published: dict[Key, int] = {}
        self._seen: dict[Key, int] = {}
        self._gone: set[Key] = set()
        self._lease: str | None = None

    # -- what Spark asks, in this order
    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins; the same however often it is asked for.

        Raises:
            ShmqError: no broker, no such topic, offsets that are gone.
        """
        if self._initial is None:
            access = open_access(self._options)
            queues = self._queues(access)
            if isinstance(self._options.start, dict):
                check_named(self._options.start, list(queues.values()))
            end = {key: start_of(access, self._options, queue) for key, queue in queues.items()}
            born = {queue.topic: queue.born_position for queue in queues.values()}
            self._initial = Progress(end, {}, born).to_json(access.broker)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a token: with it, latestOffset applies the options' limits."""
        limited = self._options.offsets_per_trigger or self._options.bytes_per_trigger or self._options.offsets_min
        return ReadMaxRows(self._options.offsets_per_trigger or 1) if limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what the run reads: what is visible now."""
        access = open_access(self._options)
        self._target = self._visible(access, self._queues(access, self._named))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or the start itself when there is nothing new.

        Raises:
            ShmqError: messages the query has not read are gone, or a topic was made anew.
        """
        access = open_access(self._options)
        before = progress_of(start, access.broker)
        queues = self._queues(access, {topic for topic, _ in before.end})
        self._publish(access, before.end)
        begin = self._begin(access, before, queues)
        visible = self._visible(access, queues)
        top = visible if self._target is None else {key: self._target.get(key, begin[key]) for key in queues}
        top = {key: max(begin[key], min(visible[key], offset)) for key, offset in top.items()}
        if not isinstance(limit, ReadAllAvailable):
            top = self._limited(access, queues, begin, top)
        self._seen.update(visible)
        moved = any(top[key] > begin[key] for key in top) or any(begin[key] != before.end.get(key) for key in begin)
        if not moved:
            return start
        born = {**before.born, **{queue.topic: queue.born_position for queue in queues.values()}}
        return Progress({**before.end, **top}, begin, born).to_json(access.broker)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return what is visible now, for the progress report."""
        access = open_access(self._options)
        return Progress(self._visible(access, self._queues(access, self._named))).to_json(access.broker)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Divide a batch.

        Raises:
            ShmqError: the batch cannot be read any more.
        """
        access = open_access(self._options)
        batch = progress_of(end, access.broker)
        ranges = [
            Range(*key, batch.born.get(key[0], 0), first, batch.end[key])
            for key, first in sorted(batch.start.items())
            if batch.end.get(key, first) > first
        ]
        if start == end or not ranges:
            return []
        parts = list(planned(access, self._options, ranges))
        done, self._lease = self._lease, parts[0].lease if parts else None
        if done is not None:
            release_lease(done)  # its batch was read before this one is planned
        return list(parts)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield record batches of one partition.

        Raises:
            ShmqError: what was planned cannot be read any more.
        """
        if not isinstance(partition, RangesPartition):
            return iter(())
        return explained(read_ranges(self._reading, partition.ranges, partition.lease, partition.where))

    def commit(self, end: dict[str, Any]) -> None:
        """Publish a batch that is done."""
        access = open_access(self._options)
        self._publish(access, progress_of(end, access.broker).end)

    def stop(self) -> None:
        """Give the lease back."""
        if self._lease is not None:
            release_lease(self._lease)

    # -- the parts of it
    @property
    def _options(self) -> Options:
        return self._reading.options

    @property
    def _named(self) -> tuple[str, ...]:
        return (*self._options.topics, self._options.topic_pattern or "")

    def _queues(self, access: Access, known: Collection[str] = ()) -> dict[Key, Queue]:
        """The queues that are read, less what is gone of known topics; the caller judges whether that may be."""
        chosen = chosen_queues(access, self._options, may_miss=known)
        return {(queue.topic, queue.queue_id): queue for queue in chosen}

    def _visible(self, access: Access, queues: dict[Key, Queue]) -> dict[Key, int]:
        return {key: access.bounds(queue)[1] for key, queue in queues.items()}

    def _begin(self, access: Access, before: Progress, queues: dict[Key, Queue]) -> dict[Key, int]:
        """The begin of the next batch: the end of the last one, or the first message of a queue that is new."""
        begin = {}
        for key, queue in queues.items():
            low, high = access.bounds(queue)
            place = f"topic {queue.topic}, queue {queue.queue_id}"
            wanted = before.end.get(key, low)
            if before.born.get(queue.topic, queue.born_position) != queue.born_position:
                if key not in self._gone:  # that was counted when it went
                    what = f"{place}: the topic was deleted and made anew since offset {wanted}"
                    data_loss(self._options, what, self._unread(key, wanted))
                self._gone.discard(key)
                wanted = low
            elif wanted > high:
                data_loss(self._options, f"{place} ends at offset {high}, the query was at {wanted}", wanted - high)
            elif wanted < low:
                data_loss(self._options, f"{place} begins at offset {low} now, the query is at {wanted}", low - wanted)
                wanted = low
            begin[key] = wanted
        for key in sorted(before.end.keys() - queues.keys() - self._gone):
            what = f"topic {key[0]}, queue {key[1]} is not there any more"
            data_loss(self._options, what, self._unread(key, before.end[key]))
            self._gone.add(key)
        return begin

    def _unread(self, key: Key, wanted: int) -> int | None:
        """The number of messages behind an offset in a queue that is gone, as far as this process saw."""
        return max(0, self._seen[key] - wanted) if key in self._seen else None

    def _limited(
        self, access: Access, queues: dict[Key, Queue], begin: dict[Key, int], top: dict[Key, int]
    ) -> dict[Key, int]:
        options = self._options
        if options.offsets_min and self._target is None and self._waits(sum(top[key] - begin[key] for key in top)):
            return begin
        if options.offsets_per_trigger:
            top = admit_rows(begin, top, options.offsets_per_trigger)
        if options.bytes_per_trigger:
            top = admit_bytes(begin, top, options.bytes_per_trigger, _sizes(access, queues))
        return top

    def _waits(self, count: int) -> bool:
        """Whether so few messages are to wait for others."""
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if count >= self._options.offsets_min or now - self._waiting_since >= self._options.trigger_delay_seconds:
            self._waiting_since = None
            return False
        return True

    def _publish(self, access: Access, done: Mapping[Key, int]) -> None:
        group = self._options.commit_group
        fresh = {key: offset for key, offset in done.items() if self._published.get(key) != offset}
        if group is None or not fresh:
            return
        try:
            access.publish(group, fresh)
            self._published.update(fresh)
        except Exception as error:  # whatever it is, the query goes on; the next batch tries again
            _log.warning("the offsets of group %s could not be published: %s", group, error)


def _sizes(access: Access, queues: dict[Key, Queue]) -> Sizes:
    """Record sizes out of ConsumeQueue units."""
    return lambda key, first, end: access.sizes(queues[key], first, end)
