"""Owns messages on their way back: nack, extend, invisible times, attempts, and the step into the dead-letter topic.

It does not know queues or readers: it is given a way to deliver a message again and a way to bury one, and a timetable
to run on. `Redelivery` decides who is due; this class adds the lock, the thread and the counting.

    nack(after) / Retry / failed listener ──▶ waits `after` s, or RocketMQ's growing delay ──▶ delivered, attempt + 1
    invisible time over, nobody acked     ──▶ delivered at once, attempt + 1
    Reject, or the last attempt failed    ──▶ dead-letter topic, then acknowledged

Rules:
    (1) a message that waits is not acknowledged, so whoever takes its queue over delivers it again;
    (2) the dead-letter copy is stored before the original is acknowledged: never lost, at worst there twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.coordinator import Coordinator
from shmq.client.redelivery import Key, Redelivery, key_of
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
        bury: Callable[[Message, str], None],
    ) -> None:
        self._coordinator = coordinator
        self._attempts_max = attempts_max
        self._deliver = deliver
        self._bury = bury
        self._lock = threading.Lock()
        self._redelivery = Redelivery()
        self._rejected: dict[Key, str] = {}
        self._scheduled: float | None = None
        self._closed = False

    def give_back(self, message: Message, after: float | None) -> None:
        """Deliver the message again in `after` seconds; None takes RocketMQ's next delay.

        Raises:
            UsageError: `after` is negative.
        """
        if message.attempt >= self._attempts_max:
            self.reject(message, f"not consumed in {message.attempt} attempts")
            return
        self._move(message, options.retry_delay(message.attempt) if after is None else after)

    def extend(self, message: Message, seconds: float) -> None:
        """Keep the message hidden for `seconds` from now."""
        self._move(message, seconds)

    def reject(self, message: Message, reason: str) -> None:
        """Bury the message as soon as the background thread comes to it."""
        with self._lock:
            self._rejected[key_of(message)] = reason
            self._redelivery.move(message, self._coordinator.clock.now())
        self._schedule()

    def lease(self, messages: Sequence[Message], seconds: float) -> None:
        """Hide delivered messages for `seconds`; those not acknowledged by then come again."""
        with self._lock:
            self._redelivery.lease(messages, self._coordinator.clock.now() + seconds)
        self._schedule()

    def forget(self, queue_id: int) -> None:
        """Drop what belongs to a queue that is read by somebody else now."""
        with self._lock:
            self._redelivery.forget(lambda other: other == queue_id)
            self._rejected = {key: reason for key, reason in self._rejected.items() if key[0] != queue_id}

    def close(self) -> None:
        """Deliver nothing any more."""
        with self._lock:
            self._closed = True

    def _move(self, message: Message, seconds: float) -> None:
        if not seconds >= 0:
            raise UsageError(f"a message cannot come again in {seconds} s", hint="give seconds >= 0, or None")
        with self._lock:
            self._redelivery.move(message, self._coordinator.clock.now() + seconds)
        self._schedule()

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
            reasons = [self._rejected.pop(key_of(message), None) for message in taken]
        for message, reason in zip(taken, reasons, strict=True):
            if reason is None and message.attempt >= self._attempts_max:
                reason = f"not consumed in {message.attempt} attempts"
            if reason is None:
                message.attempt += 1
                self._deliver(message)
            else:
                self._try_to_bury(message, reason)
        self._schedule()

    def _try_to_bury(self, message: Message, reason: str) -> None:
        try:
            self._bury(message, reason)
        except ShmqError as error:
            import logging

            logging.getLogger("shmq").warning(
                "message %s could not be moved to the dead-letter topic, which is tried again: %s",
                message.message_id,
                error,
            )
            with self._lock:
                self._rejected[key_of(message)] = reason
                self._redelivery.move(message, self._coordinator.clock.now() + options.DEAD_LETTER_RETRY)
