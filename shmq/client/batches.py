"""A topic as Arrow record batches, straight from the segments of this host.

    planned   (topic, columns, start, end) ─▶ ranges of queues, fixed once; a lease keeps retention from them
    read      queue by queue, in the order of offsets; each batch is made when it is asked for

Invariants:
    1. What was visible at the call is read, what comes meanwhile is not waited for. No group's offset moves.
    2. A reader maps the segments for itself: it goes on after the connection was closed, and after a restart of the
       broker as long as retention leaves the log files. Batches own their memory and outlive reader and store.
    3. The lease is renewed while batches are asked for, and given back behind the last one. A reader that is not asked
       for LEASE_SECONDS may find messages gone; it says so, and hands out no batch with a gap before it.
    4. A batch holds at most `batch_rows` messages and 2 MiB of records, or one record that is longer.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from shmq.client.kinds import whole_in
from shmq.client.position import BEGIN, END, Kind, Position, PositionLike, parse_position
from shmq.client.spec import parse_tags
from shmq.client.wire import LOG
from shmq.columns.names import check_columns
from shmq.errors import OffsetOutOfRange, ShmqError, UsageError
from shmq.message import check_topic
from shmq.shm.core import COLUMN_ROWS_MAX, Store
from shmq.shm.instance import Instance
from shmq.shm.lease import release_lease, renew_lease, take_lease
from shmq.shm.segment import open_store
from shmq.shm.unit import units_of

if TYPE_CHECKING:
    import pyarrow

    from shmq.client.local_session import LocalSession
    from shmq.columns.queue_batches import QueueRange

Positions: TypeAlias = "PositionLike | Mapping[int, PositionLike]"

LEASE_SECONDS: Final = 600.0
_BATCH_BYTES: Final = 2 << 20  # still in the cache of a processor when it is looked at
_MS_MAX: Final = (1 << 64) - 1


class Wish(NamedTuple):
    """A checked request for batches, the same for every broker."""

    topic: str
    start: Position | dict[int, Position]
    end: Position | dict[int, Position]
    tags: tuple[str, ...]
    batch_rows: int


class Part(NamedTuple):
    """A range of one queue, and the store times that bound it: [0] <= t < [1], in ms."""

    range: QueueRange
    times: tuple[int, int]


def wish_of(
    topic: str, *, start: Positions, end: Positions, tags: str | Sequence[str] | None = None, batch_rows: int = 8192
) -> Wish:
    """Check what is asked for.

    Raises:
        UsageError: a position, a tag or a number of rows that means nothing.
        InvalidName: no topic can have this name.
    """
    check_topic(topic)
    rows = whole_in(batch_rows, 1, COLUMN_ROWS_MAX)
    if rows is None:
        raise UsageError(f"batch_rows={batch_rows!r:.80} is not possible", hint=f"1 to {COLUMN_ROWS_MAX}")
    return Wish(topic, _positions("start", start), _positions("end", end), parse_tags(tags), rows)


def _positions(name: str, given: Positions) -> Position | dict[int, Position]:
    if not isinstance(given, Mapping):
        position = parse_position(given)
        if position.kind is Kind.OFFSET:
            raise UsageError(
                f"{name}={given!r}: an offset counts messages of one queue", hint=f"{name}={{0: {given}}} for queue 0"
            )
        return position
    for queue_id in given:
        if type(queue_id) is not int or queue_id < 0:
            raise UsageError(f"{name}: {queue_id!r:.80} is no queue id", hint=f"{name}={{0: 17, 1: 20}}")
    return {queue_id: parse_position(position) for queue_id, position in given.items()}


class TopicPlan:
    """The ranges that are read of a topic, fixed when this is made; `reader` may be called again and again."""

    def __init__(self, instance: Instance, store: Store, index: int, wish: Wish, *, uid: int | None = None) -> None:
        """Plan what a wish means in the topic that has this index in the tables of a store, which is only looked at.

        Args:
            uid: whose the segments must be when a reader maps them; None takes the instance's word.

        Raises:
            OffsetOutOfRange, UsageError: see `shmq.Connection.arrow`.
        """
        self.wish = wish
        self._instance = instance
        self._uid = uid
        queues = dict(enumerate(store.topic(index)["queues"]))
        for name, given in (("start", wish.start), ("end", wish.end)):
            if isinstance(given, dict) and (strange := set(given) - set(queues)):
                raise UsageError(
                    f"{name}: topic {wish.topic} has no queue {min(strange)}", hint=f"its queues are {list(queues)}"
                )
        found = (self._part(store, queue_id, place) for queue_id, place in queues.items())
        self.parts = [part for part in found if part.range.end > part.range.start]

    def _part(self, store: Store, queue_id: int, queue_index: int) -> Part:
        from shmq.columns.queue_batches import QueueRange

        wish, bounds = self.wish, (store.queue(queue_index).offset_min, store.queue_visible(queue_index))
        start = wish.start.get(queue_id, BEGIN) if isinstance(wish.start, dict) else wish.start
        end = wish.end.get(queue_id, END) if isinstance(wish.end, dict) else wish.end
        offsets = []
        for name, position in (("start", start), ("end", end)):
            if position.kind is Kind.OFFSET and not bounds[0] <= position.value <= bounds[1]:
                raise OffsetOutOfRange(
                    f"{name}: queue {queue_id} of topic {wish.topic} holds offsets {bounds[0]} to {bounds[1]} "
                    f"(exclusive), not {position.value}",
                    hint=f'{name}={{{queue_id}: {min(max(position.value, bounds[0]), bounds[1])}}}, or "earliest" '
                    'and "latest"',
                )
            offsets.append(position.resolve(*bounds, lambda time_ms: store.search_time(queue_index, time_ms)))
        # The search by time is only as good as the clock was; each record's own time decides.
        times = tuple(each.value if each.kind is Kind.TIME_MS else far for each, far in ((start, 0), (end, _MS_MAX)))
        place = QueueRange(wish.topic, self._instance.broker_name, queue_index, queue_id, offsets[0], offsets[1])
        return Part(place, (times[0], times[1]))

    def schema(self, columns: Sequence[str]) -> pyarrow.Schema:
        """Return the Arrow schema of these columns."""
        from shmq.columns.record_batches import column_numbers, schema_of

        return schema_of(column_numbers(columns))

    def reader(self, columns: tuple[str, ...]) -> pyarrow.RecordBatchReader:
        """Return a reader of these columns; nothing is read before it is asked for a batch."""
        import pyarrow

        store = open_store(self._instance, writable=False, uid=self._uid)
        batches = TopicBatches(self._instance, store, self.parts, columns, self.wish)
        return pyarrow.RecordBatchReader.from_batches(self.schema(columns), batches)


class TopicBatches(Iterator[Any]):
    """The batches of a plan: a mapping of the segments and a lease of its own, let go behind the last batch."""

    def __init__(
        self, instance: Instance, store: Store, parts: Sequence[Part], columns: tuple[str, ...], wish: Wish
    ) -> None:
        self._store = store
        self._lease = _leased(instance, store, parts)
        self._renewed = time.monotonic()
        self._batches = _read(store, parts, columns, wish)  # not a method: a circle would keep the lease
        self._release = weakref.finalize(self, _released, self._lease, os.getpid())

    def __next__(self) -> Any:
        now = time.monotonic()
        if self._lease is not None and now - self._renewed > LEASE_SECONDS / 4:
            renew_lease(self._lease, LEASE_SECONDS)
            self._renewed = now
        try:
            return next(self._batches)
        except BaseException:
            self._release()
            self._store.close()
            raise


def _read(store: Store, parts: Sequence[Part], columns: tuple[str, ...], wish: Wish) -> Iterator[Any]:
    from shmq.columns.queue_batches import queue_batches

    for part in parts:
        selection = {
            "rows_max": wish.batch_rows,
            "bytes_max": _BATCH_BYTES,
            "tags": wish.tags or None,
            "ms_begin": part.times[0],
            "ms_end": part.times[1],
        }
        yield from queue_batches(store, part.range, columns, selection, _lost(part.range))


def _lost(wanted: QueueRange) -> Any:
    def lost(error: ShmqError, count: int) -> None:
        hint = "keep messages longer (retention), or read again from what is left"
        raise OffsetOutOfRange(f"topic {wanted.topic}, {error}: {count} messages are missing", hint=hint) from error

    return lost


def _leased(instance: Instance, store: Store, parts: Sequence[Part]) -> Path | None:
    """Keep retention from what is going to be read."""
    starts = [
        unit[0] for part in parts for unit in units_of(store.units_stored(part.range.queue_index, part.range.start, 1))
    ]
    if not starts:
        return None
    lease = take_lease(instance.store_path, min(starts), LEASE_SECONDS)
    if lease is None:
        LOG.warning("no lease at broker %s: retention may pass this read", instance.broker_name)
    return lease


def _released(lease: Path | None, pid: int) -> None:
    if lease is not None and os.getpid() == pid:  # a forked child has not taken it
        release_lease(lease)


def topic_reader(session: LocalSession, wish: Wish, columns: Sequence[str] | None) -> pyarrow.RecordBatchReader:
    """Return what `shmq.Connection.arrow` returns.

    Raises:
        UsageError: pyarrow is not installed, or there is no such column.
    """
    names = check_columns(columns)
    need_pyarrow()
    wire = session.wire
    index = session.queues.find(wish.topic)
    if index < 0:
        raise session.queues.topic_not_found(wish.topic, may_be_made=False)
    uid = wire.control.attachment.broker_uid
    return TopicPlan(wire.instance, wire.store, index, wish, uid=uid).reader(names)


def need_pyarrow() -> None:
    """Raises: UsageError: pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError("Arrow batches need pyarrow", hint="pip install 'shmq[arrow]'") from error
