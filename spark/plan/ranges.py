"""Resolves the offsets that a load reads of each queue: once, on the driver, against the store.

A start that retention has passed is data loss; so is an explicit end behind the newest message, because then the log is
shorter than it was when that end was read.

    offset_min ……… start ═════════ end ……… visible        start <= end <= visible, always
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from shmq.errors import TopicNotFound
from shmq.spark.access.broker import Access, Key, Queue, Range
from shmq.spark.access.loss import data_loss
from shmq.spark.options import EARLIEST, LATEST, Offsets, Options
from shmq.spark.schema import refused

_log = logging.getLogger("shmq.spark")


def chosen_queues(access: Access, options: Options, *, may_miss: Collection[str] = ()) -> list[Queue]:
    """Return the queues an options object asks for, by topic and queue id.

    Args:
        may_miss: topics that were there once; what is gone of them is left out.

    Raises:
        TopicNotFound: a topic that does not exist.
        UsageError: a queue that does not exist, or a pattern that no topic matches.
    """
    names = list(options.topics)
    if options.topic_pattern is not None or not names:
        names = [name for name in access.topics() if options.matches(name)]
    if not names and options.topic_pattern is not None and not may_miss:
        raise refused(
            f"option topicPattern={options.topic_pattern!r} matches no topic of broker {access.broker}",
            "see shmq topic list",
        )
    found: list[Queue] = []
    for name in names:
        try:
            queues = access.queues(name)
        except TopicNotFound:
            if name in options.topics and name not in may_miss:
                raise
            continue  # deleted since it was listed, or on another broker
        wanted = options.wanted_queues(name)
        missing = set(wanted) - {queue.queue_id for queue in queues}
        if missing and name not in may_miss:
            option = "assign" if options.assigned else "queueIds"
            raise refused(
                f"option {option}: topic {name} has no queue {min(missing)}", f"it has 0 to {len(queues) - 1}"
            )
        found += [queue for queue in queues if not wanted or queue.queue_id in wanted]
    return found


def resolve(access: Access, options: Options) -> list[Range]:
    """Return what is to be read; queues with nothing in it are left out.

    Raises:
        OffsetOutOfRange: messages between start and end are gone, and that may not be.
        UsageError: offsets for a topic or queue that is not read.
    """
    queues = chosen_queues(access, options)
    for place in (options.start, options.end, options.start_times, options.end_times):
        if isinstance(place, dict):
            check_named(place, queues)
    committed = _committed(access, options.group, queues) if options.start == "committed" else {}
    found = []
    for queue in queues:
        if options.queue_filter is not None and queue.queue_id not in options.queue_filter:
            continue
        bounds = access.bounds(queue)
        end = min(_end(access, options, queue, bounds), bounds[1])
        start = min(_start(access, options, queue, bounds, committed), end)
        if end > start:
            found.append(Range(queue.topic, queue.queue_id, queue.born_position, start, end))
    return found


def start_of(access: Access, options: Options, queue: Queue) -> int:
    """Return where options say that a queue begins.

    Raises:
        OffsetOutOfRange: that is gone, and may not be.
        UsageError: offsets for a topic or queue that is not read, or an unknown group.
    """
    committed = _committed(access, options.group, [queue]) if options.start == "committed" else {}
    return _start(access, options, queue, access.bounds(queue), committed)


def _start(access: Access, options: Options, queue: Queue, bounds: tuple[int, int], committed: dict[Key, int]) -> int:
    low, high = bounds
    if options.start_ms is not None:
        return _at_time(access, options, queue, options.start_ms, bounds, "startingTimestamp")
    if options.start_times is not None:
        time_ms = options.start_times.get(queue.topic, {}).get(queue.queue_id)
        return (
            low if time_ms is None else _at_time(access, options, queue, time_ms, bounds, "startingOffsetsByTimestamp")
        )
    if options.start == "latest":
        return high
    wanted = committed.get((queue.topic, queue.queue_id), EARLIEST)
    if isinstance(options.start, dict):
        wanted = options.start.get(queue.topic, {}).get(queue.queue_id, EARLIEST)
    if wanted == LATEST:
        return high
    if wanted == EARLIEST:
        return low
    place = f"topic {queue.topic}, queue {queue.queue_id}"
    if wanted > high:
        data_loss(options, f"{place} ends at offset {high}, the start is {wanted}", wanted - high)
        return high
    if wanted < low:
        data_loss(options, f"{place} begins at offset {low} now, the start is {wanted}", low - wanted)
        return low
    return wanted


def _end(access: Access, options: Options, queue: Queue, bounds: tuple[int, int]) -> int:
    low, high = bounds
    if options.end_ms is not None:
        return _at_time(access, options, queue, options.end_ms, bounds)
    if options.end_times is not None:
        time_ms = options.end_times.get(queue.topic, {}).get(queue.queue_id)
        return high if time_ms is None else _at_time(access, options, queue, time_ms, bounds)
    wanted = LATEST
    if isinstance(options.end, dict):
        wanted = options.end.get(queue.topic, {}).get(queue.queue_id, LATEST)
    if wanted == EARLIEST:
        return low
    if wanted > high:
        place = f"topic {queue.topic}, queue {queue.queue_id}"
        data_loss(options, f"{place} ends at offset {high}, endingOffsets says {wanted}", wanted - high)
    return high if wanted == LATEST else wanted


def _at_time(
    access: Access, options: Options, queue: Queue, time_ms: int, bounds: tuple[int, int], start: str | None = None
) -> int:
    """The first offset stored at or after a time; `start` is the option that begins there."""
    offset = access.search_time(queue, time_ms) if bounds[0] < bounds[1] else bounds[1]
    if offset >= bounds[1] and start is not None and options.start_strategy == "error":
        raise refused(
            f"option {start}: queue {queue.queue_id} of topic {queue.topic} stored nothing since {time_ms}",
            "take an earlier time, or startingOffsetsByTimestampStrategy=latest",
        )
    return min(max(offset, bounds[0]), bounds[1])


def check_named(place: Offsets, queues: list[Queue]) -> None:
    known = {(queue.topic, queue.queue_id) for queue in queues}
    for topic, offsets in place.items():
        for queue_id in offsets:
            if (topic, queue_id) not in known:
                raise refused(f"offsets for queue {queue_id} of topic {topic}, which is not read", "leave them out")


def _committed(access: Access, group: str | None, queues: list[Queue]) -> dict[Key, int]:
    """Committed offsets of a group.

    Raises:
        UsageError: the broker knows nothing of such a group.
    """
    rows = access.progress(group or "", lambda: queues).get(group or "", ())
    found = {(row.topic, row.queue_id): row.committed for row in rows if row.committed >= 0}
    if not found and not access.has_group(group or ""):
        raise refused(f"option group={group!r}: broker {access.broker} does not know it", "see shmq group list")
    return found
