"""The messages one consumer has to see again: nacks, invisible times, attempts, and the step to the dead letters.

    nack(after) / Retry / failed listener ──▶ `SendBack`: the broker stores a retry copy; where that is not its work,
                                              requeued here: `after` s, or RocketMQ's growing delay
                                              ──▶ delivered, attempt + 1
    invisible time over, nobody acked     ──▶ delivered at once, attempt + 1
    Reject, or the last attempt failed    ──▶ `SendBack`: dead letter, then acknowledged

`Schedule` decides who is due; this class adds the lock, the background thread and the counting.

Rules:
    (1) a message that waits here is not acknowledged, so whoever takes its queue over delivers it again;
    (2) the dead letter is stored before the original is acknowledged: never lost;
    (3) a message whose dead letter cannot be stored now is delivered again soon, and tried once more: never dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.redelivery.schedule import Schedule
from shmq.errors import ConsumeError, ShmqError, UsageError

if TYPE_CHECKING:
    from shmq.client.coordinator import Coordinator
    from shmq.client.redelivery.send_back import SendBack
    from shmq.shm.core import Message


class Redelivery:
    """What one consumer has to deliver again."""

    def __init__(self, coordinator: Coordinator, *, attempts_max: int, deliver: Callable[[Message], None]) -> None:
        """
        Args:
            deliver: puts a message in front of what its reader delivers next.
        """
        self._coordinator = coordinator
        self._attempts_max = attempts_max
        self._deliver = deliver
        self._send_back: SendBack | None = None
        self._lock = threading.Lock()
        self._schedule = Schedule()
        self._scheduled: float | None = None
        self._closed = False

    def open(self, send_back: SendBack) -> None:
        """Send messages back to their broker from now on."""
        self._send_back = send_back

    def nack(self, message: Message, after: float | None) -> bool:
        """Let the message come again in `after` seconds; None takes RocketMQ's next delay. False: a dead letter now.

        Raises:
            UsageError: `after` is negative.
        """
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
            import logging

            logging.getLogger("shmq").warning(
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
        """Look at a message again later that nobody here reads now; that is no delivery."""
        message.attempt = max(1, message.attempt - 1)  # `_run` counts one
        self.requeue(message)

    def _requeue_at(self, message: Message, due: float) -> None:
        with self._lock:
            self._schedule.requeue(message, due)
        self._plan()

    def extend(self, message: Message, seconds: float) -> None:
        """Keep the message hidden for `seconds` from now.

        Raises:
            UsageError: `seconds` is negative.
        """
        due = self._due(seconds)
        with self._lock:
            self._schedule.extend(message, due)
        self._plan()

    def lease(self, messages: Sequence[Message], seconds: float) -> None:
        """Hide delivered messages for `seconds`; those not acknowledged by then come again."""
        with self._lock:
            self._schedule.lease(messages, self._due(seconds))
        self._plan()

    def forget(self, queue_id: int) -> None:
        """Drop what belongs to a queue that is read by somebody else now."""
        with self._lock:
            self._schedule.forget(queue_id)

    def close(self) -> None:
        """Deliver nothing any more."""
        with self._lock:
            self._closed = True

    def _due(self, seconds: float) -> float:
        if not seconds >= 0:
            raise UsageError(f"a message cannot come again in {seconds} s", hint="give seconds >= 0, or None")
        return self._coordinator.clock.now() + seconds

    def _plan(self) -> None:
        """Have `_run` called when the next message is due, but look after acknowledged ones every second."""
        with self._lock:
            due = self._schedule.next_due
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
            taken = self._schedule.take_due(self._coordinator.clock.now())
            self._schedule.prune()
        for message in taken:
            if message.attempt >= self._attempts_max and not message.settled:
                self.dead_letter(message, f"not consumed in {message.attempt} attempts")
                continue
            message.attempt = min(message.attempt + 1, self._attempts_max)
            self._deliver(message)
        self._plan()
