"""The queues one consumer over TCP reads: taking them, reading them from the right place, leaving them.

Brokers are asked on the I/O thread, and `step()` looks at what has come back.

    wanted ──▶ opening: lock (ordered), offset ──▶ held ──not wanted──▶ leaving ──▶ offset committed, lock given up
                  │ failed: again after a second

Invariants:
    (1) reading starts at the group's committed offset; a group that never committed anything on a queue starts where
        `start` says, and that is written down before a message is read;
    (2) an ordered consumer reads a queue only while it holds the lock of the master of now, renewed every 20 s, good
        for 30 s; a queue whose lock is refused is another member's, and is opened anew where that one lets it go;
    (3) nothing is lost by a reconnection or a switch but locks: each queue stands still until the master has confirmed
        its own, and no other is taken before the holders had time for that;
    (4) a queue is left after the broker has answered for what it takes over, or after `LEAVE_TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
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
HOLDERS_FIRST: Final = 10.0
"""Seconds before an ordered consumer locks more queues at a new master, which gives free ones to the first that asks:
members look each 5 s who leads, and an answer may take the timeout of 3 s, then each asks for what it holds."""


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
        self._masters: dict[str, int] = {}  # by broker: how many other masters it had, or the same that was away
        self._refused: deque[int] = deque()  # queues that are revoked, as another member has the lock
        self.refused_count = 0
        self._has_switched = False
        self._take_from = 0.0
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
        refused = [self._refused.popleft() for _ in range(len(self._refused))]
        for number in {*self._reader.lost(), *refused} & self.held.keys():
            self._forget(number)
            self._offsets.pop(number, None)

    def _in_flight(self) -> dict[int, int]:
        return {queue.number: queue.delivered_count for queue in self._reader.queues}

    def _take_missing(self, now: float) -> bool:
        for number, opening in list(self._opening.items()):
            if opening.done():
                del self._opening[number]
                self._opened(number, opening, now)
        if self._has_switched:
            self._has_switched, self._take_from = False, now + HOLDERS_FIRST
        for slot in self.missing if now >= self._take_from else ():
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
        queue.paused = number in self._paused or not self._is_locked(queue)
        self.held[number] = slot
        self._reader.open(queue)

    async def _open(self, slot: QueueSlot) -> QueueProgress:
        """On the I/O thread: find out where to begin, and lock the queue if its order matters."""
        wire, spec = self._wire, self._spec
        queue = self._queue_of(slot.queue_index)
        locked_at: float | None = None
        master = self._masters.get(queue.brokerName, 0)
        if self._locks and spec.group is not None:
            locked_at = wire.network.loop.time()
            if queue not in await self._questions.lock(spec.group, wire.client_id, [queue]):
                raise ConsumeError(f"queue {queue.queueId} of {queue.topic} is locked by another member")
        offset = await self._start_offset(slot.queue_index, queue)
        made: QueueProgress = await self._reader.made(queue, slot.queue_index, offset)
        made.locked_at, made.locked_under = locked_at, master
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

    # -- locks of an ordered consumer
    @property
    def _locks(self) -> bool:
        return self._spec.ordered and self._spec.group is not None

    def _is_locked(self, queue: QueueProgress) -> bool:
        """Whether the master of now has said that a queue is ours, if its order matters."""
        if not self._locks:
            return True
        if queue.locked_at is None or queue.locked_under != self._masters.get(queue.queue.brokerName, 0):
            return False
        return self._wire.network.loop.time() - queue.locked_at < LOCK_GOOD_FOR

    def _is_paused(self, index: int) -> bool:
        queue = self._reader.find(index)
        return super()._is_paused(index) or (queue is not None and not self._is_locked(queue))

    @property
    def doubts_locks(self) -> bool:
        """Whether a queue stands still as its lock is not confirmed."""
        return self._locks and not all(map(self._is_locked, self._reader.queues))

    # -- on the I/O thread
    def doubt_locks(self, brokers: Collection[str], *, holders_first: bool) -> None:
        """Let the queues of some brokers stand still until their masters of now have confirmed the locks.

        Args:
            holders_first: take no other queue before their holders had the time to lock them.
        """
        if not self._locks:
            return
        self._has_switched = self._has_switched or holders_first
        for name in brokers:
            self._masters[name] = self._masters.get(name, 0) + 1
        for queue in self._reader.queues:
            if queue.queue.brokerName in brokers:
                self._reader.pause(queue.number, True)

    async def keep_locks(self) -> None:
        """Renew the locks of an ordered consumer; a queue whose lock is gone is read no further."""
        if not self._locks:
            return
        held: dict[str, list[QueueProgress]] = {}
        for queue in self._reader.queues:
            held.setdefault(queue.queue.brokerName, []).append(queue)
        await asyncio.gather(*(self._keep_locks_of(mine) for mine in held.values()))

    async def _keep_locks_of(self, queues: Sequence[QueueProgress]) -> None:
        wire, group = self._wire, self._spec.group
        assert group is not None
        asked_at, broker = wire.network.loop.time(), queues[0].queue.brokerName
        master = self._masters.get(broker, 0)
        locked: set[MessageQueue] | None = None
        with contextlib.suppress(ShmqError):
            locked = await self._questions.lock(group, wire.client_id, [queue.queue for queue in queues])
        if master != self._masters.get(broker, 0):
            return  # another one leads meanwhile, and is asked
        for queue in queues:
            if self._reader.find(queue.number) is not queue:
                continue
            if locked is not None and queue.queue not in locked:
                # Where another member has read on, our place in it is an old one, and nothing of ours may be committed.
                self._reader.revoke(queue.number)
                self._refused.append(queue.number)
                self.refused_count += 1
                continue
            if locked is not None:
                queue.locked_at, queue.locked_under = asked_at, master
            self._reader.pause(queue.number, self._is_paused(queue.number) or queue.number in self._leaving)
