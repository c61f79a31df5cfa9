"""The reader of a consumer over TCP: hands out the messages of its queues, in turn, to any thread.

Pullers put messages in, under the reader's lock; `GroupReader` and `PullReader` say when to pull.

    arrive (I/O thread) ──▶ queues, each with its waiting messages ──take, queue by queue in turn──▶ poll · for … in
    requeue (any thread) ─▶ again, before anything new ──────────────▶

A `ProcessQueue` is what one reader has of one queue: where to pull next, what was delivered, what is settled.

    next_offset ──pull──▶ arrived: waiting ──take──▶ in flight ──settle──▶ gone
                                                       │                    committed = lowest offset not settled,
                                                       └─again (local)──▶ in flight        else next_offset

Invariants:
    (1) a message given back is delivered again only while its queue is still ours and the message not settled;
    (2) nothing here waits for the network but `wait_handed_over`;
    (3) in a forked child no lock is taken: the thread that held it does not exist there;
    (4) `committed` never passes a message that was delivered and not settled;
    (5) what arrives for an older generation (before a seek, a reset, a loss of the queue) is dropped;
    (6) pulling pauses while too much is held (`options.is_full`);
    (7) a message of a topic's former life settles none that has its offset in the next one: it lies before all of them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from shmq.client import options
from shmq.client.remote.progress import QueueProgress
from shmq.client.wire import Handed, ReaderOwner, WaitingReader
from shmq.client.wire_tcp.wire import TcpWire
from shmq.errors import UsageError
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import RETRY_QUEUE_BASE, Assignment, Message, message_reopen, messages_keep, records_read


class ProcessQueue(QueueProgress):
    """One queue of one reader, which holds its lock around every call."""

    def __init__(self, queue: MessageQueue, number: int, offset: int, *, settles: bool, ordered: bool = False) -> None:
        super().__init__(queue, number, offset)
        self.next_offset = offset
        self.settles = settles  # False: without a group, delivering counts as settling
        self.ordered = ordered
        self.dropped = False
        self.generation = 0
        self.offset_max = offset
        self.broker_id = 0
        self.waiting: deque[Message] = deque()
        self.handed: set[int] = set()  # offsets the broker is taking over
        self.last_pull_ms = 0
        self.last_consumed_ms = 0
        self._window: dict[int, int] = {}  # offset -> bytes, ascending
        self._least_position: int | None = 0  # of its messages in the log; None: of the next one that arrives
        self._bytes = 0

    @property
    def committed(self) -> int:
        """The offset to be written down for the group."""
        return next(iter(self._window)) if self._window else self.next_offset

    @property
    def delivered_count(self) -> int:
        """Messages in the hands of the application."""
        return len(self._window) - len(self.waiting)

    @property
    def cached_count(self) -> int:
        """Messages held here: waiting or delivered."""
        return len(self._window)

    @property
    def cached_bytes(self) -> int:
        """Bytes of the records held here."""
        return self._bytes

    @property
    def span(self) -> int:
        """Distance between the last pulled message and the oldest one not settled, which holds the offset up."""
        return max(0, self.next_offset - 1 - self.committed)

    def is_full(self) -> bool:
        """Whether pulling has to pause."""
        return options.is_full(len(self._window), self._bytes, 0 if self.ordered else self.span)

    def arrive(self, messages: Iterable[Message], next_offset: int, offset_max: int, generation: int) -> bool:
        """Take what a pull returned; False when it is out of date."""
        if self.dropped or generation != self.generation:
            return False
        for message in messages:
            if message.offset >= self.next_offset:
                if self._least_position is None:
                    self._least_position = message.log_position
                self._window[message.offset] = message.record_bytes
                self._bytes += message.record_bytes
                self.waiting.append(message)
        self.next_offset = max(next_offset, self.next_offset)
        self.offset_max = max(offset_max, self.next_offset)
        return True

    def take(self) -> Message | None:
        """Return the next message to be delivered; None when there is none, or the queue is paused."""
        if not self.waiting or self.paused or self.dropped:
            return None
        message = self.waiting.popleft()
        if not self.settles:
            self.settle(message.offset)
        return message

    def settle(self, offset: int) -> bool:
        """Let go of a message; False when it was not held any more."""
        size = self._window.pop(offset, None)
        self.handed.discard(offset)
        self._bytes -= size or 0
        return size is not None

    def holds(self, message: Message) -> bool:
        """Whether this message is not settled."""
        least = self._least_position
        return message.offset in self._window and (not least or message.log_position >= least)

    def restart(self, offset: int) -> None:
        """Forget everything and go on at an offset."""
        self.next_offset = self.offset_max = offset
        self.waiting.clear()
        self.handed.clear()
        self._window.clear()
        self._bytes = 0
        self.generation += 1  # last: a puller that reads it, and then where to pull, never pulls from before

    def begin_anew(self, offset: int, *, keeps_waiting: bool = False) -> None:
        """Go on where the broker says: maybe in another topic of the name, of which it knows no offset of ours.

        Args:
            keeps_waiting: what is held here from before that offset stays: the broker knows of no other progress.
        """
        window = {at: size for at, size in self._window.items() if at < offset} if keeps_waiting else {}
        waiting = [message for message in self.waiting if message.offset in window]
        handed = self.handed & window.keys()
        self.restart(offset)
        self.start_offset, self.stored_offset = offset, None
        self._least_position = 0 if window else None
        self._window, self._bytes = window, sum(window.values())
        self.waiting.extend(waiting)
        self.handed |= handed

    def drop(self) -> None:
        """Forget everything; nothing arrives or is delivered any more."""
        final = self.committed
        self.dropped = True
        self.restart(final)

    def info(self) -> dict[str, Any]:
        """Return RocketMQ's ProcessQueueInfo."""
        offsets = (next(iter(self._window)), next(reversed(self._window))) if self._window else (0, 0)
        return {
            "cachedMsgCount": len(self._window),
            "cachedMsgMaxOffset": offsets[1],
            "cachedMsgMinOffset": offsets[0],
            "cachedMsgSizeInMiB": self._bytes >> 20,
            "commitOffset": self.committed,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consumed_ms,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": self.last_pull_ms,
            "locked": self.locked_at is not None,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


class _Settler:
    """Settles the messages of one queue."""

    __slots__ = ("queue", "reader")

    def __init__(self, reader: TcpReader, queue: ProcessQueue) -> None:
        self.reader = reader
        self.queue = queue

    def _ack(self, message: Message) -> None:
        self.reader.settle(self.queue, message)

    def _nack(self, message: Message, after: float | None) -> None:
        owner = self.reader.owner
        if owner is None:
            raise UsageError("this message was read without a group; there is no group to give it back to")
        owner._nack(message, after)

    def _extend(self, message: Message, seconds: float) -> None:
        if self.reader.owner is not None:
            self.reader.owner._extend(message, seconds)


class TcpReader(WaitingReader):
    """Messages of the queues one consumer reads; as the core's Reader."""

    def __init__(
        self,
        wire: TcpWire,
        *,
        owner: ReaderOwner | None,
        tags: Sequence[str],
        codec: Callable[[bytes], Any] | None,
        auto_ack: bool = False,
        settles: bool = True,
    ) -> None:
        super().__init__(owner)
        self._wire = wire
        self.tags = frozenset(tags)
        self.codec = codec
        self._settles = settles
        self._auto_ack = auto_ack
        self._queues: dict[int, ProcessQueue] = {}
        self._lent: dict[int, ProcessQueue] = {}
        self._settlers: dict[int, _Settler] = {}
        self._again: deque[Message] = deque()
        self._turn: deque[ProcessQueue] = deque()
        self._last: list[Message] = []

    # -- what the consumer calls
    def poll(self, max: int = options.RECEIVE_MAX, timeout: float = 0.0) -> list[Message]:
        deadline = time.monotonic() + timeout
        with self.changed:
            self._settle_last()
            while not self.stopped:
                messages = self._take(max)
                if messages:
                    if self._auto_ack:
                        self._last = messages
                    elif self.owner is not None:
                        self.owner.keep_for(messages)
                    return messages
                remaining = deadline - time.monotonic()
                if remaining <= 0 or self._woken:
                    self._woken = False
                    break
                self.changed.wait(remaining)
        return []

    def requeue(self, message: Message) -> None:
        messages_keep([message], None)  # it waits here, and we must not keep our consumer
        with self.changed:
            self._again.append(message)
            self.changed.notify_all()

    def doubts(self) -> bool:
        """Whether a broker has more than it can hand out now: it may be mending a queue."""
        with self.changed:
            return any(queue.next_offset < queue.offset_max and not queue.waiting for queue in self._queues.values())

    def lag(self) -> int:
        """Return how many messages are not settled, as far as the brokers' last answers tell."""
        with self.changed:
            return sum(max(0, queue.offset_max - queue.committed) for queue in self._queues.values())

    def close(self) -> None:
        """Stop, and forget the queues; with auto_ack, settle what was delivered last."""
        with self.changed:
            self._settle_last()
            self.stop()
            for number in list(self._queues):
                self.revoke(number)

    # -- queues
    def assign(self, topic: str, queue: int, queue_id: int, offset: int, slot: int = -1, /) -> None:
        """Read a queue from an offset; `queue` and `queue_id` are its number."""
        self.open(ProcessQueue(self._wire.numbers.queue(topic, queue), queue, offset, settles=self._settles))

    def open(self, queue: ProcessQueue) -> None:
        with self.changed:
            self._queues[queue.number] = queue
            self._settlers[queue.number] = _Settler(self, queue)
            self._turn.append(queue)

    def revoke(self, number: int, /) -> None:
        if self._pid != os.getpid():
            self._queues[number].dropped = True
            return
        with self.changed:
            queue = self._queues.pop(number, None)
            if queue is not None:
                self._settlers.pop(number, None)
                self._turn.remove(queue)
                queue.drop()

    def assigned(self) -> list[Assignment]:
        with self._lock():
            return [
                Assignment((queue.queue.topic, number, number, self._position(queue), queue.committed))
                for number, queue in self._queues.items()
            ]

    def progress(self) -> list[tuple[ProcessQueue, int]]:
        """Return each queue with its lowest offset not settled."""
        with self.changed:
            return [(queue, queue.committed) for queue in self._queues.values()]

    def infos(self) -> list[tuple[MessageQueue, dict[str, Any]]]:
        """Return RocketMQ's ProcessQueueInfo of each queue."""
        with self.changed:
            return [(queue.queue, queue.info()) for queue in self._queues.values()]

    def _lock(self) -> AbstractContextManager[Any]:
        return self.changed if self._pid == os.getpid() else nullcontext()

    def _position(self, queue: ProcessQueue) -> int:
        return queue.waiting[0].offset if queue.waiting else queue.next_offset

    def seek(self, number: int, offset: int, /) -> None:
        with self.changed:
            self._queues[number].restart(offset)

    def pause(self, number: int, paused: bool, /) -> None:
        with self.changed:
            if number in self._queues:
                self._queues[number].paused = paused
                self.changed.notify_all()

    def find(self, number: int) -> ProcessQueue | None:
        """Return the queue a message came from; None when it is not ours any more."""
        return self._queues.get(number) or self._lent.get(number)

    @property
    def queues(self) -> list[ProcessQueue]:
        """All queues that are read."""
        with self.changed:
            return list(self._queues.values())

    def settle(self, queue: ProcessQueue, message: Message) -> None:
        """Let go of a message, unless the broker is just taking it over."""
        with self.changed:
            if message.offset not in queue.handed and queue.holds(message):
                queue.settle(message.offset)
                queue.last_consumed_ms = self._wire.now_ms()

    def hand_over(self, message: Message) -> Handed | None:
        """Say that a broker is about to take a message over; None when its queue is not ours any more."""
        with self.changed:
            queue = self.find(message.queue_id)
            if queue is None or not queue.holds(message):
                return None
            queue.handed.add(message.offset)
            message.ack()  # not before the queue knows, so that only the object counts as settled
        ended = partial(self._handed_over, queue, message)
        return Handed(queue.queue.brokerName, partial(ended, is_settled=True), partial(ended, is_settled=False))

    def _handed_over(self, queue: ProcessQueue, message: Message, *, is_settled: bool) -> None:
        with self.changed:
            if queue.holds(message):
                queue.handed.discard(message.offset)
                if is_settled:
                    queue.settle(message.offset)
            self.changed.notify_all()

    def wait_handed_over(self, timeout: float) -> bool:
        """Wait until the broker has answered for every message it is taking over; False: it has not, in that time."""
        if self._pid != os.getpid():
            return True
        with self.changed:
            return self.changed.wait_for(lambda: not any(queue.handed for queue in self._queues.values()), timeout)

    # -- what pullers call
    def messages_of(self, queue: ProcessQueue, body: bytes) -> list[Message]:
        """Return the messages in a pull reply that this consumer wants.

        Raises:
            CorruptionError: the broker sent no whole records.
        """
        settler = self._settlers.get(queue.number)
        base, are_retries = queue.number - queue.queue.queueId, queue.number >= RETRY_QUEUE_BASE
        messages = records_read(body, owner=settler, codec=self.codec, queue_base=base, are_retries=are_retries)
        if not self.tags or are_retries:
            return messages
        return [message for message in messages if message.tag in self.tags]

    def lend(self, queue: ProcessQueue, messages: Iterable[Message]) -> None:
        """Deliver messages that another reader of the group received for us."""
        with self.changed:
            self._lent[queue.number] = queue
            self._again.extend(messages)
            self.changed.notify_all()

    # -- under the lock
    def _take(self, count_max: int) -> list[Message]:
        taken: list[Message] = []
        while self._again and len(taken) < count_max:
            message = self._again.popleft()
            queue = self.find(message.queue_id)
            if queue is not None and not queue.dropped and queue.holds(message):
                message_reopen(message)
                taken.append(message)
        idle = 0
        while self._turn and idle < len(self._turn) and len(taken) < count_max:
            found = self._turn[0].take()
            self._turn.rotate(-1)
            if found is None:
                idle += 1
                continue
            idle = 0
            taken.append(found)
        return taken

    def _settle_last(self) -> None:
        last, self._last = self._last, []
        for message in last:
            message.ack()
