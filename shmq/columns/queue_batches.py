"""The record batches of a range of one queue, out of the mapped log.

    offset_min …… start ═══ batch ═══ batch ═══ end …… visible

Bodies are copied once, into the buffers that Arrow takes over: a batch stays valid after the store is closed. A log
file that retention removes meanwhile stays mapped as long as the core looks at it. A damaged record is reported to the
keeper and is an error; so is a missing one, unless the caller allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from shmq.columns.memory_limit import OutOfRoom, is_out_of_room
from shmq.columns.record_batches import column_numbers, import_batch, inflated
from shmq.errors import OffsetOutOfRange, ShmqError, TopicNotFound
from shmq.shm.core import ColumnReader, Store
from shmq.shm.unit import units_of


class QueueRange(NamedTuple):
    """Queue offsets [start, end) of one queue of a broker; `queue_index` is its place in the broker's tables."""

    topic: str
    broker: str
    queue_index: int
    queue_id: int
    start: int
    end: int


def queue_batches(
    store: Store,
    wanted: QueueRange,
    columns: Sequence[str],
    selection: dict[str, Any],
    lost: Callable[[ShmqError, int], None],
) -> Iterator[Any]:
    """Yield the record batches of a range.

    Args:
        columns: their names, in the order wanted.
        selection: what `ColumnReader.columns` takes by name; bytes_max also bounds what compressed bodies inflate to.
        lost: called with the reason and the number of messages that are gone; reading goes on when it returns.

    Raises:
        CorruptionError: a record is damaged.
        OutOfRoom: a log file does not fit into what this process may map.
    """
    numbers, at = column_numbers(columns), wanted.start
    reader = ColumnReader(store)
    where = (numbers, wanted.topic, wanted.broker)
    while at < wanted.end:
        try:
            found = reader.columns(wanted.queue_index, wanted.queue_id, at, wanted.end, *where, **selection)
        except (OffsetOutOfRange, TopicNotFound) as error:
            following = _behind_loss(store, wanted, at)
            lost(error, following - at)
            at = following
            continue
        except (MemoryError, OSError, ShmqError) as error:
            if is_out_of_room(error):
                raise OutOfRoom(str(error), at) from error
            raise
        at, rows, _, packed, array = found
        if rows:
            yield from inflated(import_batch(numbers, array), packed, bytes_max=selection["bytes_max"])


def _behind_loss(store: Store, wanted: QueueRange, at: int) -> int:
    """The offset at which reading goes on after messages were lost, if it may."""
    queue = wanted.queue_index
    first = min(max(store.queue(queue).offset_min, _first_kept(store, queue, at, wanted.end)), wanted.end)
    return first if at < first else wanted.end


def _first_kept(store: Store, queue: int, low: int, high: int) -> int:
    """The first of some offsets whose record is in the log; retention moves the log's begin before the queues'."""
    begin = store.log_begin
    while low < high:
        middle = (low + high) // 2
        is_gone = all(unit[0] < begin for unit in units_of(store.units_stored(queue, middle, 1)))
        low, high = (middle + 1, high) if is_gone else (low, middle)
    return low
