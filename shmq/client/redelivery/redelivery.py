"""The messages one consumer has to see again: nacks, invisible times, attempts, and the step to the dead letters.

    nack(after) / Retry / failed listener ──▶ `SendBack`: the broker stores a retry copy; where that is not its work,
                                              requeued here: `after` s, or RocketMQ's growing delay
                                              ──▶ delivered, attempt + 1
    invisible time over, not acknowledged ──▶ delivered at once, attempt + 1
    Reject, or the last attempt failed    ──▶ `SendBack`: dead letter, then acknowledged

`Schedule` decides which messages are due; `Redelivery` adds the lock, the background thread and the counting. A
listener's result has one meaning, for threads and for the asyncio twin's tasks (`settle`, `settle_failed`):

    returned anything else                  consumed
    Retry(after=…)                          again after that time, at once if it is over; what is no time is a failure
    RECONSUME_LATER                         again after the next delay
    Reject("why")                           dead-letter topic
    KeyboardInterrupt, SystemExit           again at once, and raised again
    anything else, CancelledError too       logged once with traceback and message id, again after the next delay

Rules:
    (1) a message that waits here is not acknowledged, so the next owner of its queue delivers it again;
    (2) the dead letter is stored before the original is acknowledged: never lost;
    (3) a message whose dead letter cannot be stored now is delivered again soon, and tried once more: never dropped.
"""

from __future__ import annotations

import enum
import heapq
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shmq.client import options
from shmq.client.kinds import check_after, check_hiding
from shmq.client.redelivery.send_back import SendBack
from shmq.client.timetable import Timetable
from shmq.client.wire import LOG
from shmq.errors import ConsumeError, Reject, Retry, ShmqError, UsageError
from shmq.functions import ENDING
from shmq.shm.core import Message
from shmq.words import reason_text


class Redelivery:
    """Delivers messages of one consumer again."""

    def __init__(self, timetable: Timetable, *, attempts_max: int, deliver: Callable[[Message], None]) -> None:
        """
        Args:
            deliver: puts a message in front of what its reader delivers next.
        """
        self._timetable = timetable
        self._attempts_max = attempts_max
        self._deliver = deliver
        self._send_back: SendBack | None = None
        self._lock = threading.RLock()  # a handler of a signal may close what its thread is using
        self._schedule = Schedule()
        self._scheduled: float | None = None
        self._closed = False

    def open(self, send_back: SendBack) -> None:
        """Send messages back to their broker from now on."""
        self._send_back = send_back

    def nack(self, message: Message, after: float | None) -> bool:
        """Let the message come again in `after` seconds; None takes RocketMQ's next delay. False: a dead letter now.

        Raises:
            UsageError: `after` is no such time.
        """
        after = check_after(after)
        due = self._due(options.retry_delay(message.attempt) if after is None else after)
        refused_due = 0.0 if after is None else due
        if self._send_back is not None and self._send_back.retry(
            message, after, refused=lambda refused: self.requeue(refused, refused_due)
        ):
            return True
        if message.attempt >= self._attempts_max:
            return self.dead_letter(message, f"not consumed in {message.attempt} attempts")
        self._requeue_at(message, due)
        return True

    def dead_letter(self, message: Message, reason: str) -> bool:
        """Store the message's dead letter and acknowledge it; if that fails, requeue it. True: it comes again."""
        # The core takes no acknowledgement of a message once its nack() has returned, so this cannot be put off.
        try:
            if self._send_back is None:
                raise ConsumeError("the consumer is not open")
            self._send_back.dead_letter(message, reason, refused=self.requeue)
            return False
        except ShmqError as error:
            LOG.warning(
                "message %s could not be moved to the dead-letter topic, and is delivered again: %s",
                message.message_id,
                error,
            )
            self._requeue_at(message, self._due(options.DEAD_LETTER_RETRY))
            return True

    def requeue(self, message: Message, due: float = 0.0) -> None:
        """Deliver a message again that the broker did not take: when it is due, and not at once."""
        self._requeue_at(message, max(due, self._due(options.SEND_BACK_RETRY)))

    def requeue_stray(self, message: Message) -> None:
        """Retry a message later that no consumer here reads now; that counts as no delivery."""
        message.attempt = max(1, message.attempt - 1)  # `_run` counts one
        self.requeue(message)

    def _requeue_at(self, message: Message, due: float) -> None:
        with self._lock:
            self._schedule.requeue(message, due)
        self._plan()

    def extend(self, message: Message, seconds: float) -> None:
        """Keep the message hidden for `seconds` from now.

        Raises:
            UsageError: `seconds` is no such time.
        """
        due = self._due(check_hiding(seconds))
        with self._lock:
            self._schedule.extend(message, due)
        self._plan()

    def hide(self, messages: Sequence[Message], seconds: float) -> None:
        """Hide delivered messages for `seconds`; those not acknowledged by then come again."""
        with self._lock:
            self._schedule.lease(messages, self._due(seconds))
        self._plan()

    def forget(self, queue_id: int) -> None:
        """Drop what belongs to a queue that another member reads now."""
        with self._lock:
            self._schedule.forget(queue_id)

    def close(self) -> None:
        """Deliver nothing any more."""
        with self._lock:
            self._closed = True

    def _due(self, seconds: float) -> float:
        return self._timetable.clock.now() + seconds

    def _plan(self) -> None:
        """Have `_run` called when the next message is due, but look after acknowledged ones every second."""
        with self._lock:
            due = self._schedule.next_due
            if due is None or self._closed:
                return
            due = min(due, self._timetable.clock.now() + options.PRUNE_INTERVAL)
            if self._scheduled is not None and self._scheduled <= due:
                return
            self._scheduled = due
        self._timetable.call_at(due, self._run)

    def _run(self) -> None:
        with self._lock:
            self._scheduled = None
            if self._closed:
                return
            taken = self._schedule.take_due(self._timetable.clock.now())
            self._schedule.prune()
        for message in taken:
            if message.attempt >= self._attempts_max and not message.settled:
                self.dead_letter(message, f"not consumed in {message.attempt} attempts")
                continue
            message.attempt = min(message.attempt + 1, self._attempts_max)
            self._deliver(message)
        self._plan()


class Action(enum.Enum):
    """The result of a listener, instead of an exception; None means COMMIT_MESSAGE."""

    COMMIT_MESSAGE = "commit"
    RECONSUME_LATER = "later"


def settle(redelivery: Redelivery, message: Message, outcome: object) -> bool:
    """Settle a message whose listener returned; True when it will not come again."""
    if outcome is Action.RECONSUME_LATER:
        return not redelivery.nack(message, None)
    message.ack()
    return True


def settle_failed(redelivery: Redelivery, group: str | None, message: Message, error: BaseException) -> bool:
    """Settle a message whose listener raised; True when it will not come again. Raises one of `ENDING`."""
    if isinstance(error, Retry):
        try:
            return not redelivery.nack(message, check_after(error.after, late_is_now=True))
        except UsageError as wrong:  # a failure of the function like any other
            wrong.__context__ = error  # the function may have run in another thread
            error = wrong
    if isinstance(error, Reject):
        return not redelivery.dead_letter(message, reason_text(error) or "rejected")
    if isinstance(error, ENDING):
        redelivery.nack(message, 0.0)
        raise error
    LOG.error(
        'listener of topic "%s", group "%s" failed for message %s (queue %d, offset %d, attempt %d)',
        message.topic,
        group,
        message.message_id,
        message.queue_id,
        message.offset,
        message.attempt,
        exc_info=error,
    )
    return not redelivery.nack(message, None)


Key = tuple[int, int]  # queue id, queue offset


class _Appointment(NamedTuple):
    due: float
    is_nacked: bool


_TAKEN = _Appointment(float("-inf"), False)


class Schedule:
    """The messages of one topic that come again from local memory, by time.

    No thread, clock or reader: messages and times go in, messages that are due come out.

        lease(messages, due)     simple consumer: delivered, hidden until `due`
        extend(message, due)     the same message is hidden until another time
        requeue(message, due)    nack: to be delivered again at `due`; the core calls such a message settled
        take_due(now)            what must be delivered again now
        forget(queue_id)         the queue went to another member

    Rules:
        (1) a message that was acknowledged meanwhile never comes out;
        (2) a message comes out once for each time it was delivered, at the time that was said last;
        (3) acknowledged messages of a lease are let go at the next `prune()`, so a busy consumer does not hold them for
            the whole invisible time.
    """

    __slots__ = ("_entries", "_sequence", "_single")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, list[Message]]] = []
        self._single: dict[Key, _Appointment] = {}  # what was said of one message alone; outweighs its lease
        self._sequence = 0

    def __len__(self) -> int:
        return sum(len(messages) for _, _, messages in self._entries)

    @property
    def next_due(self) -> float | None:
        """The time of the earliest entry; None when nothing waits."""
        return self._entries[0][0] if self._entries else None

    def lease(self, messages: Sequence[Message], due: float) -> None:
        """Hide delivered messages until `due`."""
        for message in messages:
            if (key := key_of(message)) in self._single:
                self._single[key] = _Appointment(due, False)
        self._push(due, list(messages))

    def extend(self, message: Message, due: float) -> None:
        """Hide a delivered message until `due`."""
        self._single[key_of(message)] = _Appointment(due, False)
        self._push(due, [message])

    def requeue(self, message: Message, due: float) -> None:
        """Deliver the message again at `due`."""
        self._single[key_of(message)] = _Appointment(due, True)
        self._push(due, [message])

    def take_due(self, now: float) -> list[Message]:
        """Take the messages whose time has come, oldest first."""
        taken: list[Message] = []
        while self._entries and self._entries[0][0] <= now:
            due, _, messages = heapq.heappop(self._entries)
            for message in messages:
                if self._waits(message, due):
                    self._single[key_of(message)] = _TAKEN  # older entries with it count no more
                    taken.append(message)
        return taken

    def prune(self) -> None:
        """Let acknowledged messages go, and what was remembered of messages that are not here any more."""
        self._keep(self._waits)

    def forget(self, queue_id: int) -> None:
        """Drop the messages of one queue."""
        self._keep(lambda message, _: message.queue_id != queue_id)
        self._single = {key: said for key, said in self._single.items() if key[0] != queue_id}

    def _waits(self, message: Message, due: float) -> bool:
        said = self._single.get(key_of(message))
        if said is not None and said.due != due:
            return False
        return not message.settled or (said is not None and said.is_nacked)

    def _keep(self, wanted: Callable[[Message, float], bool]) -> None:
        kept = []
        for due, sequence, messages in self._entries:
            rest = [message for message in messages if wanted(message, due)]
            if rest:
                kept.append((due, sequence, rest))
        heapq.heapify(kept)
        self._entries = kept
        alive = {key_of(message) for _, _, messages in kept for message in messages}
        self._single = {key: said for key, said in self._single.items() if key in alive}

    def _push(self, due: float, messages: list[Message]) -> None:
        if messages:
            self._sequence += 1
            heapq.heappush(self._entries, (due, self._sequence, messages))


def key_of(message: Message) -> Key:
    """Return what identifies a message within its topic."""
    return message.queue_id, message.offset
