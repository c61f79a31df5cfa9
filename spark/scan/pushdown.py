"""The reader of option pushdown=true: it uses a part of the filter to read less, for one filtered scan of one `load()`.

Spark applies every filter again, so what is understood here only keeps messages from being read.

    queue_id = 1, queue_id in (1, 2)         only these queues
    tags = 'a', tags in ('a', 'b')           only these tags
    store_timestamp >, >=, <, <= moment      only what was stored then
    anything else                            left to Spark

Rule: Spark 4.3 keeps what was pushed with the `load()` and gives it to every query over it, also to one with another
filter. That is why selection belongs into options, and why this is asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from shmq.client.position import ms_of
from shmq.spark.access.broker import Reading
from shmq.spark.options import Options
from shmq.spark.scan.reader import ShmqReader


class PushingReader(ShmqReader):
    """A batch reader that prunes by filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take note of filters; all are returned, for Spark to apply."""
        options = self._reading.options
        for each in filters:
            options = _narrowed(options, each)
        self._reading = Reading(options, self._reading.columns)
        return filters


def _narrowed(options: Options, one: Filter) -> Options:
    """Return options that read less, and still all that passes a filter."""
    if isinstance(one, EqualTo | In) and len(one.attribute) == 1:
        values = list(one.value) if isinstance(one, In) else [one.value]
        if one.attribute[0] == "queue_id":
            return _queues(options, values)
        if one.attribute[0] == "tags" and all(isinstance(value, str) and value for value in values):
            return _tags(options, values)
    if not isinstance(one, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return options
    is_time = one.attribute == ("store_timestamp",) and isinstance(one.value, datetime)
    return _times(options, one) if is_time else options


def _queues(options: Options, values: list[Any]) -> Options:
    wanted = {value for value in values if type(value) is int and value >= 0}
    kept = wanted & set(options.queue_ids) if options.queue_ids else wanted
    # A queue that does not exist would be an error of the option; as a filter it matches nothing.
    return replace(
        options, queue_filter=tuple(sorted(kept if options.queue_filter is None else kept & set(options.queue_filter)))
    )


def _tags(options: Options, values: list[str]) -> Options:
    kept = [tag for tag in values if not options.tags or tag in options.tags]
    return replace(options, tags=tuple(dict.fromkeys(kept))) if kept else options


def _times(options: Options, one: Any) -> Options:
    """Stored times have milliseconds; rounding may only widen."""
    ms = ms_of(one.value)
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        begin = ms if options.start_ms is None else max(ms, options.start_ms)
        return replace(options, start_ms=begin, start_strategy="latest")
    return replace(options, end_ms=ms + 1 if options.end_ms is None else min(ms + 1, options.end_ms))
