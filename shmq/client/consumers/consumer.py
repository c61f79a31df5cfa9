"""One reader of one topic for one group: its life and its part of the queues. Public consumers derive from `Consumer`;
`Subscription`, which iterates, is the plainest of them.

    open ──▶ reading ──close──▶ closed
     ▲          │ fork: the child forgets everything, and opens anew on first use
     └──────────┘ new generation of segments: the same, in the background

Invariants:
    (1) the core's Reader is the iterator; a new Reader after a fork or a new generation continues the same iteration;
    (2) what a replaced reader delivered can still be settled, which then has no effect;
    (3) what was nacked when a queue is left is delivered again by the queue's next reader.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

from shmq.client import options
from shmq.client.consumers.assignment_watch import AssignmentWatch
from shmq.client.consumers.kept_offsets import OffsetKeeper, keeper_of
from shmq.client.observers.observer import Observer, iterated, polled
from shmq.client.queue_share import QueueShare
from shmq.client.redelivery.redelivery import Redelivery
from shmq.client.redelivery.send_back import SendBack
from shmq.client.refusals import AWAY
from shmq.client.session import Session
from shmq.client.spec import ConsumerSpec, check_poll
from shmq.client.timetable import Timetable, loosely
from shmq.client.wire import LOG, Hider, MessageSource, QueueReader, QueueSlot, ignore
from shmq.errors import PermissionDenied, TopicNotFound, UsageError
from shmq.shm.core import RETRY_QUEUE_BASE, Message, messages_keep
from shmq.shm.pickling import stays_here
from shmq.waits import give_turn, slice_seconds


class ConsumerContext(NamedTuple):
    """Made by a connection for each consumer; it keeps the connection alive."""

    url: str
    timetable: Timetable
    live: Callable[[], Session]
    """Returns the session, opened if there is none."""
    requeue: Callable[[str | None, Message], bool]
    """Lets the consumer of the same connection that reads the message's topic for a group deliver it; False: none."""
    left: Callable[[Any], None]
    """Called once, by a consumer that is closed."""
    observer: Observer | None
    """Records messages handed out and listeners' calls; None without tracing."""


class Consumer:
    """Reads one topic; see the classes derived from it. Any thread may use it."""

    _traces_what_it_hands = True
    __reduce_ex__ = stays_here("hand over the connection, and make a consumer of its own there")

    def __init__(self, context: ConsumerContext, spec: ConsumerSpec) -> None:
        self._context = context
        self._spec = spec
        self._closed = False
        self._stopped = False
        self._make_lock()
        self._start_over()

    def _make_lock(self) -> None:
        self._lock = threading.RLock()
        self._renewed = threading.Condition(self._lock)

    def _start_over(self) -> None:
        self._slice_seconds = slice_seconds(options.ITERATION_SLICE)
        self._owner: ReaderOwner | None = None
        self._source: MessageSource | None = None
        self._reader: QueueReader | None = None  # the source, but where brokers hide what it hands out
        self._share: QueueShare | None = None
        self._step_scheduled = False
        self._watch = AssignmentWatch(self._context.timetable, self._warn_unassigned)
        self._keeper: OffsetKeeper | None = None
        self._places: dict[str, int] = {}  # of a broadcasting member, by queue: where its reader before was
        self._redelivery = Redelivery(
            self._context.timetable,
            attempts_max=self._spec.attempts_max or options.ATTEMPTS_MAX,
            deliver=loosely(self._deliver_again),
        )
        self._hider: Hider = self._redelivery

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
        source, share = self._live_source(), self._share
        return source.lag() if share is None else share.lag(source)

    def reject(self, message: Message, reason: str = "") -> None:
        """Move the message to the dead-letter topic of the group, then acknowledge it.

        If the topic cannot be written now, a warning is logged and the message is delivered again.

        Raises:
            UsageError: the consumer has no group, so no dead-letter topic.
        """
        if self.group is None:
            raise UsageError("a consumer without a group has no dead-letter topic", hint="subscribe with group=…")
        self._live_source()
        self._hider.dead_letter(message, reason or "rejected")

    def stop(self) -> None:
        """End every iteration over this consumer, from any thread; `close()` still has to follow."""
        with self._lock:
            self._stopped = True
            source = self._source
            self._renewed.notify_all()
        if source is not None:
            source.stop()

    def close(self) -> None:
        """Leave the group; unacknowledged messages are delivered again, to the next reader. Twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.stop()
        if (share := self._share) is not None:
            share.finish()
        with self._lock:
            self._leave()
        self._context.left(self)

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
        return iterated(self._context.observer, self, chain.from_iterable(self._sources()))

    def _sources(self) -> Iterator[MessageSource]:
        """Every source this consumer will have; the next one is asked for when the core ended the one before."""
        done: MessageSource | None = None
        while not self._stopped:
            source = self._live_source()
            if source is done:
                self._wait_renewed(options.ITERATION_SLICE)
                continue
            yield source
            done = source

    def _poll(self, count_max: int, wait: float) -> list[Message]:
        count_max, wait = check_poll(count_max, wait)
        deadline = time.monotonic() + wait
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            messages = self._poll_once(count_max, min(remaining, self._slice_seconds))
            if messages or not remaining or self._stopped:
                return messages
            give_turn(self._slice_seconds)

    def _poll_once(self, count_max: int, wait: float) -> list[Message]:
        """As `_poll`, but `_wake()` ends the wait."""
        source = self._live_source()
        try:
            return polled(self._context.observer, self, source, count_max, wait)
        except UsageError:
            if source is self._source:
                raise
            return []  # closed under us: stopped, or replaced by the reader of the next generation

    def _wake(self) -> None:
        source = self._source
        if source is not None:
            source.wake()

    def _requeue(self, message: Message) -> bool:
        """Deliver a message of this consumer's topic again; False when nothing is read now."""
        reader = self._reader
        if reader is None:
            return False
        reader.requeue(message)
        reader.wake()
        return True

    def _wait_renewed(self, seconds: float) -> None:
        with self._lock:
            if not self._stopped:
                self._renewed.wait(seconds)

    def _live_source(self) -> MessageSource:
        source = self._source
        if source is not None:
            return source
        self._refuse_closed()
        session = self._context.live()
        session.queues.resolve(self.topic)
        with self._lock:
            if (source := self._source) is None:
                self._refuse_closed()  # in this moment, by another thread
                source = self._open(session)
        self._rebalance()
        return source

    def _refuse_closed(self) -> None:
        if self._closed:
            raise UsageError("the consumer is closed", hint="subscribe again")

    # -- life
    def _open(self, session: Session) -> MessageSource:
        """Begin to read; the caller holds the lock, has registered us with the broker, and shares the queues next."""
        spec = self._spec
        self._redelivery.open(SendBack(session.wire, spec, partial(session.members.hand_over, spec)))
        # Messages keep their consumer, and its connection; but a reader that its session keeps must not keep both.
        is_kept = session.members.keeps_readers or spec.invisible is not None
        owner = self._owner = ReaderOwner(
            self._redelivery,
            self._context.timetable,
            stray=loosely(self._requeue_stray) if is_kept else self._requeue_stray,
            is_stopped=loosely(self._is_stopped, gone=True),
            consumer=weakref.ref(self) if is_kept else None,
        )
        self._open_source(session, owner)
        if spec.model == "broadcasting" and spec.group is not None:
            self._keeper = keeper_of(self._context.url, spec, self._context.timetable, self._progress)
        assert self._source is not None
        return self._source

    def _open_source(self, session: Session, owner: ReaderOwner) -> None:
        self._reader, self._share = session.members.open(owner, self._spec, loosely(self._queue_left))
        self._source = self._reader

    def _is_stopped(self) -> bool:
        give_turn(self._slice_seconds)  # the reader asks between two slices of an iteration
        return self._stopped

    def _progress(self) -> dict[str, int]:
        """Return by the name of each queue held where a member that starts again is to go on."""
        with self._lock:
            share, reader = self._share, self._reader
            if share is None or reader is None:
                return {}
            lowest = {entry.queue: entry.committed for entry in reader.assigned()}
            return {share.name_of(slot): lowest[index] for index, slot in share.held.items() if index in lowest}

    def _leave(self) -> None:
        """Give everything back; the caller holds the lock."""
        self._redelivery.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._share is not None:
            self._share.leave_all()
        if self._owner is not None:
            self._owner.cut_off()
        if self._source is not None:
            self._source.stop()
            self._source.close()
        self._owner = self._source = self._reader = self._share = self._keeper = None

    def _renew(self) -> None:
        """Start over on the next generation of segments."""
        session = self._context.live()
        with self._lock:
            if self._closed:
                return
            places = self._places | self._progress() if self._spec.model == "broadcasting" else {}
            self._leave()
            self._start_over()
            self._places = places
            self._open(session)
            self._renewed.notify_all()
        try:
            self._rebalance()
        except PermissionDenied:
            raise
        except (TopicNotFound, *AWAY):
            return  # a reader waits for its queues, which are asked for again

    def _after_fork(self) -> None:
        """In the child: everything so far is the parent's; settling its messages here has no effect."""
        owner, reader = self._owner, self._reader
        self._make_lock()
        self._start_over()
        _cut_off(owner, reader)

    def _vanish(self) -> None:
        """End without leaving the queues."""
        self._closed = self._stopped = True
        self._redelivery.close()
        _cut_off(self._owner, self._reader)

    # -- queues
    def _rebalance(self) -> None:
        """Find out which queues are ours, and begin to take and leave them."""
        share = self._share
        if share is None or self._closed:
            return
        # Asked before the lock is taken: `close()` must not have to wait for a broker that does not answer.
        wanted, slots = self._assignment()
        with self._lock:
            if self._share is not share or self._closed:
                return
            if self._places or self._keeper is not None:
                self._go_on(share, {slot.queue_index: share.name_of(slot) for slot in slots})
            share.want(wanted, slots, self._context.timetable.clock.now())
        self._step()

    def _go_on(self, share: QueueShare, names: dict[int, str]) -> None:
        """Say where a broadcasting member was; a queue that it did not read is read from its first message."""
        if self._places:
            share.go_on({index: self._places.get(name, 0) for index, name in names.items()})
        if self._keeper is not None:
            share.go_on(self._keeper.places(names))

    def _assignment(self) -> tuple[list[QueueSlot], list[QueueSlot]]:
        """Ask which queues are ours, and for all of the topic."""
        return self._context.live().members.assignment(self._spec)

    def _step(self) -> None:
        with self._lock:
            share = self._share
            self._step_scheduled = False
            if share is None or self._closed:
                return
            try:
                pending = share.step(self._context.timetable.clock.now())
            except AWAY:
                return  # the broker took our place back, or its leader changes: the reconnection starts this again
            self._watch.look(has_queue=bool(share.held))
            if not pending:
                return
            self._step_scheduled = True
        self._context.timetable.call_after(share.step_interval, self._scheduled_step)

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

    def _warn_unassigned(self, seconds: float) -> None:
        share = self._share
        if share is not None:
            reason = self._context.live().members.why_unassigned(self._spec, share)
            text = 'consumer of topic "%s", group "%s" has no queue after %g s: %s'
            LOG.warning(text, self.topic, self.group, seconds, reason)

    def _queue_left(self, queue_id: int) -> None:
        self._redelivery.forget(queue_id)

    def _pause(self, queue_id: int, *, paused: bool) -> None:
        """Stop or go on delivering one queue; it stays ours, and messages given back still come."""
        with self._lock:
            if self._share is not None:
                self._share.pause(queue_id, paused=paused)

    # -- delivering again
    def _deliver_again(self, message: Message) -> None:
        """Requeue a message that is due, as long as its queue is ours."""
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
        self._requeue_stray(message)

    def _requeue_stray(self, message: Message) -> None:
        """Requeue a message of the retry topic for the consumer of this connection that reads the topic it was sent to.

        No other process reads our part of the retry topic; without such a consumer the message waits here, unsettled.
        """
        if not self._context.requeue(self.group, message):
            self._redelivery.requeue_stray(message)


def _cut_off(owner: ReaderOwner | None, reader: QueueReader | None) -> None:
    """Let a reader deliver nothing and move no offset any more, without waking a thread.

    Not `stop()`, which wakes waiting threads through a lock: in a forked child another thread may hold it for ever. An
    iteration over the reader ends when it asks `_idle()` next.
    """
    if owner is not None:
        owner.cut_off()
    if reader is not None:
        for entry in reader.assigned():
            reader.revoke(entry.queue)


class ReaderOwner:
    """The calls that a reader and its messages make on their consumer; the core knows the methods by these names.

    Rule: nothing happens once it is cut off, be it that the consumer has another reader now, or in a forked child.
    """

    __slots__ = ("_consumer", "_extend", "_idle", "_later", "_nack", "_now", "_stray")

    def __init__(
        self,
        redelivery: Redelivery,
        timetable: Timetable,
        *,
        stray: Callable[[Message], None],
        is_stopped: Callable[[], bool],
        consumer: weakref.ref[Consumer] | None = None,
    ) -> None:
        self._consumer = consumer  # where the reader must not keep it: its messages do, once they are delivered
        self._nack: Callable[[Message, float | None], object] = redelivery.nack
        self._extend: Callable[[Message, float], None] = redelivery.extend
        self._stray: Callable[[Message], None] = stray  # a message of the retry topic that another consumer reads
        self._idle: Callable[[], bool] = is_stopped
        self._now: Callable[[], float] = timetable.clock.now
        self._later: Callable[[float, Callable[[], None]], None] = timetable.call_after

    def keep_for(self, messages: list[Message]) -> None:
        """Let messages that are about to be delivered keep what settles them."""
        if messages and self._consumer is not None:
            messages_keep(messages, self._consumer())

    def cut_off(self) -> None:
        """Let nothing happen any more, and an iteration end."""
        self._nack = self._extend = self._stray = self._later = ignore
        self._idle = lambda: True
        self._now = time.monotonic


class Subscription(Consumer):
    """Messages of a topic, as they come. Made by `Connection.subscribe()`.

    Iterating waits for the next message without using a processor, and ends after `stop()` or `close()` only.
    A message that was not acknowledged when the subscription ends is delivered again, to the next reader.

    Example:
        >>> with mq.subscribe("orders", group="billing") as subscription:      # doctest: +SKIP
        ...     for message in subscription:
        ...         message.ack()
    """

    def __iter__(self) -> Iterator[Message]:
        return self._messages()

    def receive(self, max: int = options.RECEIVE_MAX, wait: float = 0.0) -> list[Message]:
        """Return at most `max` messages; [] when none came within `wait` seconds."""
        return self._poll(max, wait)
