"""Handles a planned message that is not there any more.

Between planning and reading retention may pass, or a topic may be deleted or made anew. With failOnDataLoss=true, the
default, that is an error which names the place; with false the number of missing messages is logged as a warning and
reading goes on behind them. A topic is recognised by the log position at which it was made (`born_position`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from shmq.errors import OffsetOutOfRange, TopicNotFound
from shmq.spark.access.broker import Access, Key, Queue, Range
from shmq.spark.options import Options

_log = logging.getLogger("shmq.spark")


def data_loss(options: Options, what: str, count: int | None = None) -> None:
    """Say that messages are missing: an error, or with failOnDataLoss=false a warning with their number.

    Args:
        count: None when it cannot be known.

    Raises:
        OffsetOutOfRange: failOnDataLoss is true.
    """
    missing = "messages may be missing" if count is None else f"{count} messages are missing"
    if options.fail_on_data_loss:
        hint = "start later, keep messages longer (retention), or set failOnDataLoss=false to go on without them"
        raise OffsetOutOfRange(f"{what}: {missing}; {hint}", hint=hint)
    _log.warning("%s: %s and passed over", what, missing)


def present(access: Access, options: Options, ranges: Sequence[Range]) -> Iterator[tuple[Queue, Range]]:
    """Yield ranges with their queues as this process finds them; with failOnDataLoss=false less what is gone.

    Raises:
        OffsetOutOfRange: a topic was deleted or made anew since the range was planned, and that may not be.
    """
    for topic, group in groupby(ranges, key=attrgetter("topic")):
        mine = list(group)
        try:
            yield from zip(still_there(access, mine), mine, strict=True)
        except TopicNotFound as error:
            data_loss(options, f"topic {topic}: {error}", sum(each.count for each in mine))


def still_there(access: Access, ranges: Sequence[Range]) -> list[Queue]:
    """Return the queue of each range as this process finds it.

    Raises:
        TopicNotFound: a topic was deleted or made anew since the range was planned.
    """
    known: dict[Key, Queue] = {}
    for topic in dict.fromkeys(each.topic for each in ranges):
        try:
            known |= {(topic, queue.queue_id): queue for queue in access.queues(topic)}
        except TopicNotFound as error:
            raise TopicNotFound("it was deleted after the read was planned", hint="load it again") from error
    found = []
    for each in ranges:
        queue = known.get((each.topic, each.queue_id))
        if queue is None or queue.born_position != each.born_position:
            raise TopicNotFound(
                f"it was deleted and made anew, or lost queue {each.queue_id}, after the read was planned",
                hint="load it again",
            )
        found.append(queue)
    return found
