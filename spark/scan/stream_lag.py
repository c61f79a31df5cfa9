"""Lag of a streaming query, read from the progress that Spark reports.

    endOffset      what the last micro-batch read to         lag of a queue = latest - end, never below 0
    latestOffset   what was visible when it was reported

A progress is taken as JSON, as a dictionary, or as Spark's object that has it. Where a store is named, the age of the
oldest message that is not read yet is looked up there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shmq.spark.access.broker import Key
from shmq.spark.plan.progress import Progress, parsed_progress


@dataclass(frozen=True)
class StreamLag:
    """One source of a query: messages that are not read yet, queue by queue and together."""

    broker: str
    queues: Mapping[Key, int]
    oldest_age_ms: int | None = None

    @property
    def total(self) -> int:
        """Messages in all queues."""
        return sum(self.queues.values())

    @property
    def least(self) -> int:
        """Messages in the queue that is least behind."""
        return min(self.queues.values(), default=0)

    @property
    def most(self) -> int:
        """Messages in the queue that is most behind."""
        return max(self.queues.values(), default=0)

    @property
    def average(self) -> float:
        """Messages a queue."""
        return self.total / max(1, len(self.queues))


def lag_from_progress(progress: Any, *, store: str | None = None, now_ms: int | None = None) -> list[StreamLag]:
    """Return the lag of each source of a progress that is shmq; none before the first batch.

    Args:
        progress: a progress of PySpark, its dictionary or its JSON.
        store: as option `store`, for the age of the oldest message.
        now_ms: by default the time of this host.

    Raises:
        UsageError: offsets of another version.
        ShmqError: the broker cannot be asked.
    """
    found = []
    for source in _object(progress).get("sources", ()):
        end, latest = (_offset(source.get(name)) for name in ("endOffset", "latestOffset"))
        if end is None or latest is None:
            continue
        queues = {key: max(0, offset - end[1].end.get(key, 0)) for key, offset in latest[1].end.items()}
        age = None
        if store is not None:
            oldest = _oldest_ms(store, end[1], queues)
            age = None if oldest is None else max(0, (now_ms or int(time.time() * 1000)) - oldest)
        found.append(StreamLag(latest[0], queues, age))
    return found


def _object(progress: Any) -> Mapping[str, Any]:
    if isinstance(progress, Mapping):
        return progress
    text = progress if isinstance(progress, str) else progress.json
    found: Mapping[str, Any] = json.loads(text)
    return found


def _offset(value: Any) -> tuple[str, Progress] | None:
    """An offset of ours with its broker; None for those of other sources."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return parsed_progress(value) if isinstance(value, dict) and {"v", "end", "from"} <= value.keys() else None


def _oldest_ms(store: str, done: Progress, queues: Mapping[Key, int]) -> int | None:
    """The store time of the first message that is not read yet."""
    from shmq.spark.access.way import open_access
    from shmq.spark.options import parse_options
    from shmq.spark.scan.tables import stored_at

    behind = [key for key, lag in queues.items() if lag]
    if not behind:
        return None
    topics = sorted({topic for topic, _ in behind})
    access = open_access(parse_options({"store": store, "topics": ",".join(topics)}))
    known = {(queue.topic, queue.queue_id): queue for topic in topics for queue in access.queues(topic)}
    moments = [stored_at(access, known[key], done.end.get(key, 0)) for key in behind if key in known]
    return min((int(moment.timestamp() * 1000) for moment in moments if moment is not None), default=None)
