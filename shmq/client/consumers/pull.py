"""The pull consumer: the application decides where it reads, and says what it has done.

It reads every queue, whatever other consumers read, and is no member of a group.

    seek · poll · commit     the position of a queue is the offset of the next message `poll` will return;
                             `commit(group=…)` writes the positions down as that group's offsets

Invariants:
    (1) nothing is acknowledged or committed by reading;
    (2) positions outlive a fork and a new generation of segments;
    (3) a topic that is deleted and made again is read from its first message.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Self

from shmq.client import options
from shmq.client.consumers.consumer import ConsumerContext
from shmq.client.kinds import whole_in
from shmq.client.observers.observer import polled
from shmq.client.position import Kind, Position, PositionLike, parse_moment, parse_position
from shmq.client.session import Session
from shmq.client.spec import Wanted, check_poll
from shmq.client.wire import QueueReader, QueueSlot
from shmq.errors import OffsetOutOfRange, TopicNotFound, UsageError
from shmq.shm.core import Message
from shmq.shm.pickling import stays_here
from shmq.waits import give_turn, slice_seconds


class PullConsumer:
    """Reads all queues of a topic from the offsets you set. Made by `Connection.pull_consumer()`; one thread at a time.

    Example:
        >>> with mq.pull_consumer("orders") as c:      # doctest: +SKIP
        ...     for queue in c.queues():
        ...         c.seek(queue, time="2026-11-20T08:00:00Z")
        ...     batch = c.poll(max=1000, wait=1.0)
        ...     c.commit(group="audit")
    """

    _traces_what_it_hands = False
    __reduce_ex__ = stays_here("hand over the connection and positions(), and make a consumer of its own there")

    def __init__(
        self,
        context: ConsumerContext,
        topic: str,
        *,
        group: str | None,
        start: Position,
        wanted: Wanted,
        codec: Callable[[bytes], Any] | None,
        verify: bool | None = None,
    ) -> None:
        self.topic = topic
        self.group = group
        self._context = context
        self._start = start
        self._wanted = wanted
        self._codec = codec
        self._verify = verify
        self._closed = False
        self._slice_seconds = slice_seconds(options.ITERATION_SLICE)
        self._positions: dict[int, int] = {}
        self._lock = threading.RLock()  # a signal handler may close what its thread is using
        self._reader: QueueReader | None = None
        self._queues: dict[int, QueueSlot] = {}
        self._version: int | None = None  # of the queues
        self._born: int | None = None  # of the topic; None: it was never read

    def queues(self) -> list[int]:
        """Return the queue ids of the topic; new ones are read from their first message."""
        reader = self._live_reader()
        known = set(self._queues)
        self._assign(self._context.live(), reader, new_from_start=False)
        if set(self._queues) != known:
            reader.wake()
        return sorted(self._queues)

    def seek(
        self,
        queue: int,
        position: PositionLike | None = None,
        *,
        offset: int | None = None,
        time: str | date | None = None,
    ) -> int:
        """Read `queue` from there on, and return the offset meant.

        Args:
            position: "begin", "end", an offset, "-2h" or a time.
            offset: a queue offset; must be stored, or be the next one.
            time: ISO 8601 text, "-2h", datetime or date; the first message stored at or after it.

        Raises:
            OffsetOutOfRange: `offset` is not stored any more, or not yet.
        """
        given = [argument for argument in (position, offset, time) if argument is not None]
        if len(given) != 1:
            raise UsageError(
                f"seek needs one place, not {len(given)}", hint='seek(q, "begin"), seek(q, offset=…), seek(q, time=…)'
            )
        reader = self._live_reader()
        slot = self._slot_of(queue)
        queues = self._context.live().queues
        wanted = Position(Kind.TIME_MS, parse_moment(time)) if time is not None else parse_position(given[0])
        target = queues.place_in(self.topic, slot, wanted)
        if offset is not None and target != wanted.value:
            raise self._out_of_range(queue, wanted.value, *queues.bounds(self.topic, slot))
        reader.seek(slot.queue_index, target)
        return target

    def _out_of_range(self, queue_id: int, offset: int, offset_min: int, offset_max: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"queue {queue_id} of {self.topic} holds offsets {offset_min} to {offset_max - 1}, not {offset}",
            hint=f"{offset_min} … {offset_max}",
        )

    def poll(self, max: int = options.RECEIVE_MAX, wait: float = 0.0) -> list[Message]:
        """Return at most `max` messages and move the positions behind them; [] when none came in `wait` seconds."""
        max, wait = check_poll(max, wait)
        deadline = time.monotonic() + wait
        while True:
            remaining = deadline - time.monotonic()
            messages = self._poll_once(max, min(remaining, self._slice_seconds) if remaining > 0 else 0.0)
            if messages or remaining <= 0 or self._closed:
                return messages
            give_turn(self._slice_seconds)

    def positions(self) -> dict[int, int]:
        """Return {queue: offset of the next message}."""
        reader = self._live_reader()
        return dict(sorted((entry.queue_id, entry.next_offset) for entry in reader.assigned()))

    def committed(self, group: str | None = None) -> dict[int, int]:
        """Return {queue: the group's committed offset}, without queues it never committed."""
        offsets = self._context.live().queues.committed(self._group(group), self.topic)
        return dict(sorted(offsets.items()))

    def commit(self, group: str | None = None, *, offsets: dict[int, int] | None = None) -> dict[int, int]:
        """Write positions down as the offsets of a group, and return them.

        Args:
            group: None takes the consumer's own.
            offsets: {queue: offset} instead of the positions.

        Raises:
            OffsetOutOfRange: an offset is behind the end of its queue; nothing is written then.
        """
        given = self.positions() if offsets is None else offsets
        self._live_reader()
        queues = self._context.live().queues
        wanted: dict[int, int] = {}
        for queue, place in given.items():
            queue_id, offset = whole_in(queue), whole_in(place, 0)
            if offset is None or queue_id is None or queue_id not in self._queues:
                raise UsageError(
                    f"queue {queue!r:.80} of {self.topic} cannot have offset {place!r:.80}", hint="see queues()"
                )
            wanted[queue_id] = offset
            offset_min, offset_max = queues.bounds(self.topic, self._slot_of(queue_id))
            if offset > offset_max:  # the group would miss what comes next
                raise self._out_of_range(queue_id, offset, offset_min, offset_max)
        queues.commit(self._group(group), self.topic, wanted)
        return dict(wanted)

    def lag(self) -> dict[int, int]:
        """Return {queue: messages behind the newest one}."""
        reader = self._live_reader()
        queues = self._context.live().queues
        return {
            entry.queue_id: max(0, queues.bounds(self.topic, self._slot_of(entry.queue_id))[1] - entry.next_offset)
            for entry in sorted(reader.assigned(), key=lambda entry: entry.queue_id)
        }

    def close(self) -> None:
        """Stop reading; commits nothing. Twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()
            reader.close()
        self._context.left(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<shmq.PullConsumer {self.topic!r} group={self.group!r}{' closed' if self._closed else ''}>"

    def _group(self, group: str | None) -> str:
        wanted = group or self.group
        if wanted is None:
            raise UsageError("offsets belong to a group, and none is given", hint='commit(group="audit")')
        return wanted

    def _slot_of(self, queue: int) -> QueueSlot:
        queue_id = whole_in(queue)
        slot = None if queue_id is None else self._queues.get(queue_id)
        if slot is None:
            hint = f"its queues are {sorted(self._queues)}"
            raise UsageError(f"topic {self.topic} has no queue {queue!r:.80}", hint=hint)
        return slot

    def _live_reader(self) -> QueueReader:
        reader = self._reader
        if reader is not None:
            return reader
        if self._closed:
            raise UsageError("the consumer is closed", hint="make a new one with mq.pull_consumer(…)")
        session = self._context.live()
        with self._lock:
            if self._reader is None:
                reader = session.members.pull_reader(self._wanted.tags, self._codec, self._wanted.where, self._verify)
                self._queues, self._version = {}, None
                is_first = self._born is None
                with contextlib.suppress(*() if is_first else (TopicNotFound,)):  # it was deleted since, and may come
                    self._assign(session, reader, new_from_start=is_first, must_exist=not is_first)
                self._reader = reader
                if self._closed:  # meanwhile, by a signal handler of this thread
                    reader.stop()
            return self._reader

    def _assign(self, session: Session, reader: QueueReader, *, new_from_start: bool, must_exist: bool = False) -> None:
        queues = session.queues
        version = queues.version(self.topic)  # read first: a change in between is looked at again
        # Before the offsets are asked for: this may create the topic.
        readable = queues.read_queues(self.topic, must_exist=must_exist)
        born = queues.born(self.topic)
        if born != self._born:  # what was read was another topic's
            self._positions.clear()
            self._born = born
        committed = self.committed() if self.group is not None and new_from_start else {}
        for slot in readable:
            before = self._queues.get(slot.queue_id)
            if before == slot:
                continue
            offset_min, offset_max = queues.bounds(self.topic, slot)
            known = committed.get(slot.queue_id)
            if (reached := self._positions.get(slot.queue_id)) is not None:
                known = reached if queues.is_to_come(self.topic) else min(reached, offset_max)  # the log lost its end
            if before is not None:
                reader.revoke(before.queue_index)
                known = offset_min
            if known is None:
                known = queues.place_in(self.topic, slot, self._start) if new_from_start else offset_min
            is_there = offset_min <= known and (known <= offset_max or queues.is_copy)
            offset = known if is_there else offset_min
            reader.assign(self.topic, slot.queue_index, slot.queue_id, offset)
            self._queues[slot.queue_id] = slot
        self._version = version

    def _look_again(self) -> None:
        """Read on in the topic that has the name now, if that is another one; it is not made here."""
        session, reader = self._context.live(), self._reader
        if reader is not None and session.queues.version(self.topic) not in (None, self._version):
            with contextlib.suppress(TopicNotFound), self._lock:
                self._assign(session, reader, new_from_start=False, must_exist=True)

    def _poll_once(self, count_max: int, wait: float) -> list[Message]:
        """As `poll`, but `_wake()` ends the wait."""
        reader = self._live_reader()
        try:
            messages = polled(self._context.observer, self, reader, count_max, wait)
            if not messages:
                self._look_again()
            return messages
        except UsageError:
            if reader is self._reader:
                raise
            return []  # closed under us, or replaced by the reader of the next generation

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.wake()

    def _rewind(self, messages: Sequence[Message]) -> None:
        """Move the positions back before messages that `poll` did not return."""
        first: dict[int, int] = {}
        for message in messages:
            first[message.queue_id] = min(message.offset, first.get(message.queue_id, message.offset))
        reader = self._live_reader()
        for queue_id, offset in first.items():
            reader.seek(self._slot_of(queue_id).queue_index, offset)

    # -- what the connection calls, as it does for other consumers
    def _retake(self) -> None:
        return  # it owns no queue

    def _rebalance(self) -> None:
        return  # it reads all queues

    def _remember(self, reader: QueueReader) -> None:
        self._positions.update((entry.queue_id, entry.next_offset) for entry in reader.assigned())

    def _renew(self) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.stop()  # what another thread took from it behind the look at its places would come twice
                self._remember(reader)

    def _vanish(self) -> None:
        self._closed = True
        if self._reader is not None:
            self._reader.stop()

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        reader, self._reader = self._reader, None
        if reader is not None:
            self._remember(reader)
