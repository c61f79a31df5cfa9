"""Owns messages on their way back: nack, extend, invisible times, attempts, and the step into the dead-letter topic.

It does not know queues or readers: it is given a way to deliver a message again and a way to bury one, and a timetable
to run on. `Redelivery` decides who is due; this class adds the lock, the thread and the counting.

    nack(after) / Retry / failed listener ──▶ the broker takes it back (hand_back); else it waits here: `after` s, or
                                              RocketMQ's growing delay ──▶ delivered, attempt + 1
    invisible time over, nobody acked     ──▶ delivered at once, attempt + 1
    Reject, or the last attempt failed    ──▶ dead-letter topic, then acknowledged

Rules:
    (1) a message that waits here is not acknowledged, so whoever takes its queue over delivers it again;
    (2) the dead-letter copy is stored before the original is acknowledged: never lost;
    (3) a message that cannot be buried now is delivered again soon, and then buried again: it is not dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.coordinator import Coordinator
from shmq.client.redelivery.schedule import Redelivery
from shmq.errors import ShmqError, UsageError

if TYPE_CHECKING:
    from shmq.shm.core import Message


class Returns:
    """What one consumer has to deliver again."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        attempts_max: int,
        deliver: Callable[[Message], None],
        bury: Callable[[Message, str], bool],
        hand_back: Callable[[Message, float | None, Callable[[Message], None]], bool],
    ) -> None:
        self._coordinator = coordinator
        self._attempts_max = attempts_max
        self._deliver = deliver
        self._bury = bury
        self._hand_back = hand_back
        self._lock = threading.Lock()
        self._redelivery = Redelivery()
        self._scheduled: float | None = None
        self._closed = False

    def give_back(self, message: Message, after: float | None) -> bool:
        """Deliver the message again in `after` seconds; None takes RocketMQ's next delay. False: it was buried instead.

        Raises:
            UsageError: `after` is negative.
        """
        due = self._due(options.retry_delay(message.attempt) if after is None else after)
        refused_due = 0.0 if after is None else due
        if self._hand_back(message, after, lambda refused: self.keep(refused, refused_due)):
            return True
        if message.attempt >= self._attempts_max:
            return self.reject(message, f"not consumed in {message.attempt} attempts")
        with self._lock:
            self._redelivery.give_back(message, due)
        self._schedule()
        return True

    def keep(self, message: Message, due: float = 0.0) -> None:
        """Deliver a message again that the broker did not take back after all: when it is due, and not at once."""
        with self._lock:
            self._redelivery.give_back(message, max(due, self._due(options.HAND_BACK_RETRY)))
        self._schedule()

    def hold(self, message: Message) -> None:
        """Look at a message again later that nobody here reads now; that is no delivery."""
        message.attempt = max(1, message.attempt - 1)  # `_run` counts one
        self.keep(message)

    def extend(self, message: Message, seconds: float) -> None:
        """Keep the message hidden for `seconds` from now.

        Raises:
            UsageError: `seconds` is negative.
        """
        due = self._due(seconds)
        with self._lock:
            self._redelivery.extend(message, due)
        self._schedule()

    def reject(self, message: Message, reason: str) -> bool:
        """Bury the message and acknowledge it; if that fails, deliver it again soon. True: it comes again."""
        # The core takes no acknowledgement of a message once its nack() has returned, so this cannot be put off.
        try:
            if not self._bury(message, reason):
                message.ack()
            return False
        except ShmqError as error:
            import logging

            logging.getLogger("shmq").warning(
                "message %s could not be moved to the dead-letter topic, and is delivered again: %s",
                message.message_id,
                error,
            )
            with self._lock:
                self._redelivery.give_back(message, self._due(options.DEAD_LETTER_RETRY))
            self._schedule()
            return True

    def lease(self, messages: Sequence[Message], seconds: float) -> None:
        """Hide delivered messages for `seconds`; those not acknowledged by then come again."""
        with self._lock:
            self._redelivery.lease(messages, self._due(seconds))
        self._schedule()

    def forget(self, queue_id: int) -> None:
        """Drop what belongs to a queue that is read by somebody else now."""
        with self._lock:
            self._redelivery.forget(queue_id)

    def close(self) -> None:
        """Deliver nothing any more."""
        with self._lock:
            self._closed = True

    def _due(self, seconds: float) -> float:
        if not seconds >= 0:
            raise UsageError(f"a message cannot come again in {seconds} s", hint="give seconds >= 0, or None")
        return self._coordinator.clock.now() + seconds

    def _schedule(self) -> None:
        """Have `_run` called when the next message is due, but look after acknowledged ones every second."""
        with self._lock:
            due = self._redelivery.next_due
            if due is None or self._closed:
                return
            due = min(due, self._coordinator.clock.now() + options.PRUNE_INTERVAL)
            if self._scheduled is not None and self._scheduled <= due:
                return
            self._scheduled = due
        self._coordinator.call_at(due, self._run)

    def _run(self) -> None:
        with self._lock:
            self._scheduled = None
            if self._closed:
                return
            taken = self._redelivery.take_due(self._coordinator.clock.now())
            self._redelivery.prune()
        for message in taken:
            if message.attempt >= self._attempts_max and not message.settled:
                self.reject(message, f"not consumed in {message.attempt} attempts")
                continue
            message.attempt = min(message.attempt + 1, self._attempts_max)
            self._deliver(message)
        self._schedule()
