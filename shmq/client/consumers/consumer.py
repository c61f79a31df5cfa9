"""Owns one reader of one topic for one group: its life and its part of the queues.

It does not know how messages reach the application (subscription, push and simple do), what is delivered again
(returns does), nor the heartbeat of the connection. Public consumers derive from `Consumer`.

    open ──▶ reading ──close──▶ closed
     ▲          │ fork: the child forgets everything, and opens anew on first use
     └──────────┘ new generation of segments: the same, in the background

Rules:
    (1) the core's Reader is the iterator; a new Reader after a fork or a new generation continues the same iteration;
    (2) what a replaced reader delivered can still be settled, which then has no effect;
    (3) what was given back when a queue is left is delivered again by whoever reads the queue next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Self

from shmq.client import options
from shmq.client.consumers.assignment import AssignmentWatch
from shmq.client.consumers.keeping import Keeping, keeping_of
from shmq.client.consumers.reader_owner import ReaderOwner
from shmq.client.observers.observer import iterated, polled
from shmq.client.redelivery.returns import Returns
from shmq.client.wire import HidingReader
from shmq.errors import UsageError
from shmq.shm.core import RETRY_QUEUE_BASE

if TYPE_CHECKING:
    from shmq.client.link import Link
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire import MessageReader, QueueShare, Session
    from shmq.shm.core import Message

class Consumer:
    """Reads one topic; see the classes derived from it. Any thread may use it."""

    _traces_what_it_hands = True

    def __init__(self, connection: Link, spec: ConsumerSpec) -> None:
        self._connection = connection
        self._spec = spec
        self._closed = False
        self._stopped = False
        self._start_over()

    def _start_over(self) -> None:
        self._lock = threading.RLock()
        self._renewed = threading.Condition(self._lock)
        self._owner: ReaderOwner | None = None
        self._reader: MessageReader | None = None
        self._share: QueueShare | None = None
        self._step_scheduled = False
        self._watch = AssignmentWatch(self)
        self._keeping: Keeping | None = None
        self._returns = Returns(
            self._connection._coordinator,
            attempts_max=self._spec.attempts_max or options.ATTEMPTS_MAX,
            deliver=self._deliver_again,
            bury=self._bury,
            hand_back=self._hand_back,
        )

    # -- what users see
    @property
    def topic(self) -> str:
        """The topic it reads."""
        return self._spec.topic

    @property
    def group(self) -> str | None:
        """The consumer group; None for a broadcast consumer without one."""
        return self._spec.group

    @property
    def queues(self) -> list[int]:
        """Queue ids this member reads now; they change as members come and go."""
        with self._lock:
            held = self._share.held.values() if self._share else ()
            return sorted(slot.queue_id for slot in held if slot.queue_id < RETRY_QUEUE_BASE)

    def lag(self) -> int:
        """Return how many messages of the queues read here are not acknowledged yet."""
        return self._live_reader().lag()

    def reject(self, message: Message, reason: str = "") -> None:
        """Move the message to the dead-letter topic of the group, then acknowledge it.

        If the topic cannot be written now, a warning is logged and the message is delivered again.

        Raises:
            UsageError: the consumer has no group, so no dead-letter topic.
        """
        if self.group is None:
            raise UsageError("a consumer without a group has no dead-letter topic", hint="subscribe with group=…")
        self._returns.reject(message, reason or "rejected")

    def stop(self) -> None:
        """End every iteration over this consumer, from any thread; `close()` still has to follow."""
        with self._lock:
            self._stopped = True
            reader = self._reader
            self._renewed.notify_all()
        if reader is not None:
            reader.stop()

    def close(self) -> None:
        """Leave the group; unacknowledged messages are delivered again, to whoever reads next. Twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.stop()
        with self._lock:
            self._leave()
        self._connection._forget_consumer(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<shmq.{type(self).__name__} {self.topic!r} group={self.group!r} queues={self.queues}{state}>"

    # -- receiving, for the classes derived
    def _messages(self) -> Iterator[Message]:
        # `chain` is C: between the application and the core's __next__ there is no Python frame.
        return iterated(self, chain.from_iterable(self._readers()))

    def _readers(self) -> Iterator[MessageReader]:
        """Every reader this consumer will have; the next one is asked for when the core ended the one before."""
        done: MessageReader | None = None
        while not self._stopped:
            reader = self._live_reader()
            if reader is done:
                self._wait_renewed(options.ITERATION_SLICE)
                continue
            yield reader
            done = reader

    def _poll(self, count_max: int, wait: float) -> list[Message]:
        if count_max < 1:
            raise UsageError(f"max={count_max} asks for no message", hint="max is at least 1")
        deadline = time.monotonic() + wait
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            messages = self._poll_once(count_max, min(remaining, options.ITERATION_SLICE))
            if messages or not remaining or self._stopped:
                return messages

    def _poll_once(self, count_max: int, wait: float) -> list[Message]:
        """As `_poll`, but `_wake()` ends the wait."""
        reader = self._live_reader()
        try:
            return polled(self, reader, count_max, wait)
        except UsageError:
            if reader is self._reader:
                raise
            return []  # closed under us: stopped, or replaced by the reader of the next generation

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.wake()

    def _wait_renewed(self, seconds: float) -> None:
        with self._lock:
            if not self._stopped:
                self._renewed.wait(seconds)

    def _live_reader(self) -> MessageReader:
        reader = self._reader
        if reader is not None:
            return reader
        if self._closed:
            raise UsageError("the consumer is closed", hint="subscribe again")
        session = self._connection._live()
        with self._lock:
            if self._reader is None:
                self._open(session)
            assert self._reader is not None
            return self._reader

    # -- life
    def _open(self, session: Session) -> None:
        """Begin to read; the caller holds the lock, and the connection has registered us with the broker."""
        spec = self._spec
        session.resolve(spec.topic)
        self._owner = ReaderOwner(self)
        self._reader = session.reader(self._owner, spec)
        self._share = session.share(self._reader, spec, self._queue_left)
        self._keeping = keeping_of(self)
        self._rebalance()

    def _leave(self) -> None:
        """Give everything back; the caller holds the lock."""
        self._returns.close()
        if self._keeping is not None:
            self._keeping.close()
        if self._share is not None:
            self._share.leave_all()
        if self._owner is not None:
            self._owner.consumer = None
        if self._reader is not None:
            self._reader.stop()
            self._reader.close()
        self._owner = self._reader = self._share = self._keeping = None

    def _renew(self) -> None:
        """Start over on the next generation of segments."""
        if isinstance(self._reader, HidingReader):
            return self._rebalance()  # the broker forgets no receipt: what is in hand stays there
        with self._lock:
            if self._closed:
                return
            self._leave()
            self._start_over_locked()
            self._open(self._connection._live())
            self._renewed.notify_all()

    def _start_over_locked(self) -> None:
        # As `_start_over`, but keeping the lock that the caller and waiting iterators hold.
        lock, renewed = self._lock, self._renewed
        self._start_over()
        self._lock, self._renewed = lock, renewed

    def _after_fork(self) -> None:
        """In the child: everything so far is the parent's; settling its messages here has no effect."""
        owner, reader = self._owner, self._reader
        self._start_over()
        _cut_off(owner, reader)

    def _vanish(self) -> None:
        """End without leaving the queues."""
        self._closed = self._stopped = True
        self._returns.close()
        _cut_off(self._owner, self._reader)

    # -- queues
    def _rebalance(self) -> None:
        """Find out which queues are ours, and begin to take and leave them."""
        share = self._share
        if share is None or self._closed:
            return
        # Asked before the lock is taken: `close()` must not have to wait for a broker that does not answer.
        connection = self._connection
        wanted, slots = connection._live().assignment(self._spec, connection.client_id)
        with self._lock:
            if self._share is not share or self._closed:
                return
            if self._keeping is not None:
                self._keeping.place(share, slots)
            share.want(wanted, slots, self._connection._coordinator.clock.now())
        self._step()

    def _step(self) -> None:
        with self._lock:
            share = self._share
            self._step_scheduled = False
            if share is None or self._closed:
                return
            pending = share.step(self._connection._coordinator.clock.now())
            self._watch.look(share)
            if not pending:
                return
            self._step_scheduled = True
        self._connection._coordinator.call_after(share.step_interval, self._scheduled_step)

    def _scheduled_step(self) -> None:
        with self._lock:
            if not self._step_scheduled:
                return
        self._step()

    def _retake(self) -> None:
        """Own our queues under the new client slot."""
        with self._lock:
            if self._share is not None and not self._closed:
                self._share.retake()

    def _queue_left(self, queue_id: int) -> None:
        self._returns.forget(queue_id)

    def _pause(self, queue_id: int, *, paused: bool) -> None:
        """Stop or go on delivering one queue; it stays ours, and messages given back still come."""
        with self._lock:
            if self._share is not None:
                self._share.pause(queue_id, paused=paused)

    # -- delivering again
    def _deliver_again(self, message: Message) -> None:
        with self._lock:
            reader, share = self._reader, self._share
            if reader is None or share is None:
                return
            if not any(slot.queue_id == message.queue_id for slot in share.held.values()):
                return
            if message.topic == self.topic:
                reader.requeue(message)
                reader.wake()
                return
        self._pass_on(message)

    def _pass_on(self, message: Message) -> None:
        """Give a message of the retry topic to the consumer of this connection that reads the topic it was sent to.

        Nobody else reads our part of the retry topic; without such a consumer it waits, unsettled, for one to come.
        """
        for other in list(self._connection._consumers):
            if isinstance(other, Consumer) and (other.group, other.topic) == (self.group, message.topic):
                reader = other._reader
                if reader is not None:
                    reader.requeue(message)
                    reader.wake()
                    return
        self._returns.hold(message)

    def _bury(self, message: Message, reason: str) -> bool:
        """Let the broker bury a message; True when it settles it, too, once that is done."""
        return self._connection._live().bury(self._spec, message, reason, failed=self._returns.keep)

    def _hand_back(self, message: Message, after: float | None, failed: Callable[[Message], None]) -> bool:
        """Let the broker deliver a message again, where that is its work."""
        return self._connection._live().hand_back(self._spec, message, after, failed=failed)


def _cut_off(owner: ReaderOwner | None, reader: MessageReader | None) -> None:
    """Let a reader deliver nothing and move no offset any more, without telling anybody.

    Not `stop()`, which wakes waiting threads through a lock: in a forked child another thread may hold it for ever. An
    iteration over the reader ends when it asks `_idle()` next.
    """
    if owner is not None:
        owner.consumer = None
    if reader is not None:
        for entry in reader.assigned():
            reader.revoke(entry[1])
