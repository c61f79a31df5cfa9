"""The queues one consumer over TCP reads: taking them, reading them from the right place, leaving them.

Brokers are asked on the I/O thread, and `step()` looks at what has come back.

    wanted ──▶ opening: lock (ordered), offset ──▶ held ──not wanted──▶ leaving ──▶ offset committed, lock given up
                  │ failed: again after a second

Invariants:
    (1) reading starts at the group's committed offset; a group that never committed anything on a queue starts where
        `start` says, and that is written down before a message is read;
    (2) an ordered consumer reads a queue only while it holds the broker's lock, renewed every 20 s, good for 30 s;
    (3) nothing is lost by a reconnection but locks, and those are renewed;
    (4) a queue is left after the broker has answered for what it takes over, or after `LEAVE_TIMEOUT`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from shmq.client import options
from shmq.client.position import BEGIN
from shmq.client.queue_share import ReaderShare
from shmq.client.remote.progress import MemberReader, QueueProgress
from shmq.client.remote.questions import QueueQuestions
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import MessageSource, QueueSlot
from shmq.client.wire_tcp.wire import LEAVE_TIMEOUT, TcpWire
from shmq.errors import ConsumeError, ShmqError
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import RETRY_QUEUE_BASE

OPEN_AGAIN: Final = 1.0
LOCK_RENEWAL: Final = 20.0
LOCK_GOOD_FOR: Final = 30.0


class TcpShare(ReaderShare):
    """The part of a topic, and of the group's retry topic, that this consumer reads."""

    def __init__(
        self,
        wire: TcpWire,
        questions: QueueQuestions,
        reader: MemberReader,
        spec: ConsumerSpec,
        on_left: Callable[[int], None],
        release: Callable[[ConsumerSpec, Sequence[QueueProgress]], None],
    ) -> None:
        """`release` commits the offsets of queues that were left, and gives up their locks, without waiting."""
        super().__init__(reader, on_left)
        self._reader: MemberReader = reader
        self._wire = wire
        self._questions = questions
        self._release = release
        self._spec = spec
        self._opening: dict[int, Future[QueueProgress]] = {}
        self._again_at: dict[int, float] = {}
        self.last_error: ShmqError | None = None

    @property
    def reader(self) -> MemberReader:
        """Reads its queues."""
        return self._reader

    @property
    def ended(self) -> bool:
        """Whether its consumer reads no more."""
        return self._reader.stopped

    def lag(self, source: MessageSource) -> int:
        return self._reader.lag()

    def name_of(self, slot: QueueSlot) -> str:
        queue = self._queue_of(slot.queue_index)
        return f"{queue.brokerName}/{queue.queueId}"

    def _queue_of(self, number: int) -> MessageQueue:
        return self._wire.numbers.queue(self._spec.topic, number, group=self._spec.group)

    def _prepare(self, all_slots: list[QueueSlot]) -> None:
        for number in self._reader.lost():
            self._forget(number)
            self._offsets.pop(number, None)

    def _in_flight(self) -> dict[int, int]:
        return {queue.number: queue.delivered_count for queue in self._reader.queues}

    def _take_missing(self, now: float) -> bool:
        for number, opening in list(self._opening.items()):
            if opening.done():
                del self._opening[number]
                self._opened(number, opening, now)
        for slot in self.missing:
            number = slot.queue_index
            if number not in self._opening and self._again_at.get(number, now) <= now:
                self._again_at.pop(number, None)
                self._opening[number] = self._wire.network.submit(self._open(slot))
        if self._opening or self._leaving:
            self.step_interval = options.TAKE_INTERVAL
            return True
        self.step_interval = OPEN_AGAIN / 4
        return bool(self.missing)

    def _opened(self, number: int, opening: Future[QueueProgress], now: float) -> None:
        try:
            queue = opening.result()
        except ShmqError as error:
            self.last_error = error
            self._again_at[number] = now + OPEN_AGAIN
            return
        slot = self._wanted.get(number)
        if slot is None:  # not ours any more
            self._let_go(queue)
            return
        queue.paused = number in self._paused
        self.held[number] = slot
        self._reader.open(queue)

    async def _open(self, slot: QueueSlot) -> QueueProgress:
        """On the I/O thread: find out where to begin, and lock the queue if its order matters."""
        wire, spec = self._wire, self._spec
        queue = self._queue_of(slot.queue_index)
        locked_at: float | None = None
        if spec.ordered and spec.group is not None:
            if queue not in await self._questions.lock(spec.group, wire.client_id, [queue]):
                raise ConsumeError(f"queue {queue.queueId} of {queue.topic} is locked by another member")
            locked_at = wire.network.loop.time()
        offset = await self._start_offset(slot.queue_index, queue)
        made: QueueProgress = await self._reader.made(queue, slot.queue_index, offset)
        made.locked_at = locked_at
        return made

    async def _start_offset(self, number: int, queue: MessageQueue) -> int:
        spec, questions = self._spec, self._questions
        if not self._reader.commits:
            known = self._offsets.get(number)
            return known if known is not None else await questions.place_in(queue, spec.start)
        assert spec.group is not None
        offset = await questions.committed(spec.group, queue)
        begin = BEGIN if number >= RETRY_QUEUE_BASE else spec.start
        if offset == 0 and begin != BEGIN:
            # A young queue answers 0 whether the group committed that or nothing.
            offset = (await questions.committed_exactly(spec.group, [queue])).get(queue, -1)
        if offset >= 0:
            return offset
        offset = await questions.place_in(queue, begin)
        await questions.commit(spec.group, queue, offset)
        return offset

    def finish(self) -> None:
        """Wait for the broker's answer about what it is just taking over.

        That comes again from the retry topic. The offset that is committed has to have passed it, or it comes twice.
        """
        if not self._wire.network.is_own_thread:
            self._reader.wait_handed_over(LEAVE_TIMEOUT)

    def leave_all(self) -> None:
        for opening in self._opening.values():
            opening.cancel()
        self._opening.clear()
        super().leave_all()

    def _leave(self, number: int) -> None:
        queue = self._reader.find(number)
        self._forget(number)
        if queue is not None:
            self._offsets[number] = queue.committed
            self._let_go(queue)

    def _let_go(self, queue: QueueProgress) -> None:
        if self._reader.commits:
            self._release(self._spec, [queue])

    # -- on the I/O thread
    async def keep_locks(self) -> None:
        """Renew the locks of an ordered consumer; a queue whose lock is gone is read no further."""
        wire, group = self._wire, self._spec.group
        held = {queue.queue: queue for queue in self._reader.queues}
        if not self._spec.ordered or group is None or not held:
            return
        now = wire.network.loop.time()
        try:
            locked = await self._questions.lock(group, wire.client_id, held)
        except ShmqError:
            locked = set()
        for queue, process in held.items():
            if queue in locked:
                process.locked_at = now
            good = process.locked_at is not None and now - process.locked_at < LOCK_GOOD_FOR
            self._reader.pause(process.number, not good or process.number in self._paused | self._leaving.keys())
