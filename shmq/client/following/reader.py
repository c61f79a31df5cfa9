"""The queues that a leader shares out to one consumer, read in this host's copy of the log by the core's reader.

The core's reader has no offset slots for them: their progress goes to the leader over TCP, as that of any TCP member.

    made ──▶ open ──▶ read ──▶ revoked: `committed` stays what it was then

Invariants:
    (1) reading begins at the leader's committed offset; where this host's copy is not that far yet, the reader waits;
    (2) an offset behind the leader's own end is none: reading begins at that end;
    (3) a queue whose topic was made again is another queue here, and is opened anew (`lost`);
    (4) once its session with the leader is over nothing is committed there;
    (5) a queue is read while its copy is a part of the leader's: one that goes on otherwise is opened once it was cut.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from shmq.client.following.agreement import ends_otherwise
from shmq.client.remote.progress import QueueProgress
from shmq.client.spec import ConsumerSpec
from shmq.errors import ConsumeError
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import Assignment, Reader


class Copy(NamedTuple):
    """This host's copy of the queues: what a reader asks of it."""

    place: Callable[[MessageQueue], int]
    """Returns the number of a queue here, -1 where there is none."""
    end: Callable[[int], int]
    """Returns the offset behind the last message of a queue here."""


class MappedQueue(QueueProgress):
    """One queue that is read here."""

    def __init__(self, queue: MessageQueue, number: int, offset: int, *, index: int, reader: Reader) -> None:
        super().__init__(queue, number, offset)
        self.index = index
        self._reader = reader
        self._left: int | None = None

    def _assigned(self) -> Assignment | None:
        return next((entry for entry in self._reader.assigned() if entry.queue == self.index), None)

    @property
    def committed(self) -> int:
        entry = self._assigned()
        if self._left is not None:  # looked at last: another thread may leave it meanwhile
            return self._left
        return self.known_offset if entry is None else entry.committed

    @property
    def delivered_count(self) -> int:
        entry = self._assigned()
        return 0 if entry is None else entry.next_offset - entry.committed

    def leave(self) -> None:
        """Remember how far it is, before it is read no more."""
        self._left = self.committed

    def info(self) -> dict[str, Any]:
        """Return RocketMQ's ProcessQueueInfo."""
        delivered, committed = self.delivered_count, self.committed
        return {
            "cachedMsgCount": delivered,
            "cachedMsgMaxOffset": committed + delivered - 1 if delivered else 0,
            "cachedMsgMinOffset": committed if delivered else 0,
            "cachedMsgSizeInMiB": 0,
            "commitOffset": committed,
            "droped": self._left is not None,
            "lastConsumeTimestamp": 0,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": 0,
            "locked": self.locked_at is not None,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


class MappedReader:
    """The queues of one consumer; see `MemberReader`.

    Args:
        copy: this host's copy of them.
        offset_max: asks the leader for the offset behind the last message of a queue.
        is_part: asks it whether the copy of a queue, by its number here, is a part of the queue.
        is_current: says whether its session with the leader is the one of now.
        keep: takes over how far a queue is.
        kept: returns what was kept of a queue in another place; None: nothing.
    """

    stopped = False  # its share ends with its consumer, and this with the share

    def __init__(
        self,
        reader: Reader,
        spec: ConsumerSpec,
        copy: Copy,
        *,
        offset_max: Callable[[MessageQueue], Awaitable[int]],
        is_part: Callable[[int, MessageQueue], Awaitable[bool]],
        is_current: Callable[[], bool],
        keep: Callable[[int, int, int], None],
        kept: Callable[[int, int], int | None],
    ) -> None:
        self.spec = spec
        self._reader = reader
        self._copy = copy
        self._offset_max = offset_max
        self._is_part = is_part
        self._is_current = is_current
        self._keep = keep
        self._kept = kept
        self._queues: dict[int, MappedQueue] = {}

    @property
    def commits(self) -> bool:
        """Whether progress goes to the leader of now."""
        return self._is_current()

    @property
    def queues(self) -> list[MappedQueue]:
        """All queues that are read."""
        return list(self._queues.values())

    async def made(self, queue: MessageQueue, number: int, offset: int) -> MappedQueue:
        index = self._copy.place(queue)
        if index < 0:
            raise ConsumeError(f"queue {queue.queueId} of {queue.topic} is not in this host's copy of the log yet")
        if not await self._is_part(index, queue):
            raise ends_otherwise(queue)
        begin = max(offset, self._kept(number, index) or 0)
        if begin > self._copy.end(index):
            begin = min(offset, await self._offset_max(queue))
        made = MappedQueue(queue, number, begin, index=index, reader=self._reader)
        made.stored_offset = offset
        return made

    def open(self, queue: MappedQueue) -> None:
        self._queues[queue.number] = queue
        self._reader.assign(self.spec.topic, queue.index, queue.number, queue.start_offset)
        if queue.paused:
            self._reader.pause(queue.index, True)
        self._reader.wake()

    def lag(self) -> int:
        return sum(max(0, self._copy.end(queue.index) - offset) for queue, offset in self.progress())

    def find(self, number: int) -> MappedQueue | None:
        return self._queues.get(number)

    def lost(self) -> list[int]:
        return [queue.number for queue in self.queues if self._copy.place(queue.queue) != queue.index]

    def revoke(self, number: int, /) -> None:
        queue = self._queues.pop(number, None)
        if queue is None:
            return
        queue.leave()
        self._reader.revoke(queue.index)

    def pause(self, number: int, paused: bool, /) -> None:
        queue = self._queues.get(number)
        if queue is not None:
            queue.paused = paused
            self._reader.pause(queue.index, paused)

    def seek(self, number: int, offset: int, /) -> None:
        queue = self._queues.get(number)
        if queue is not None:
            self._reader.seek(queue.index, offset)
            self._reader.wake()

    def progress(self) -> Sequence[tuple[MappedQueue, int]]:
        return [(queue, queue.committed) for queue in self.queues]

    def infos(self) -> Sequence[tuple[MessageQueue, dict[str, Any]]]:
        return [(queue.queue, queue.info()) for queue in self.queues]

    def keep(self) -> None:
        """Let what opens these queues next know how far they are: they are about to be left for another place."""
        for queue, offset in self.progress():
            self._keep(queue.number, queue.index, offset)

    def wait_handed_over(self, timeout: float) -> bool:
        """Return True: what is sent back from this host is settled when the leader has answered."""
        del timeout
        return True
