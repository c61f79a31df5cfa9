"""Owns the simple consumer: take, work, settle, with an invisible time per message.

It does not know timers (returns does, or a broker) nor queues (consumer does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.consumer import Consumer, ConsumerSpec
from shmq.client.transport import HidingReader
from shmq.errors import UsageError

if TYPE_CHECKING:
    from shmq.client.link import Link
    from shmq.shm.core import Message


def check_invisible(seconds: float) -> float:
    """Return the invisible time unchanged.

    Raises:
        UsageError: it is not above 0 and at most 12 hours.
    """
    if not 0 < seconds <= options.INVISIBLE_MAX:
        raise UsageError(
            f"an invisible time of {seconds} s is not possible", hint=f"above 0, at most {options.INVISIBLE_MAX:g} s"
        )
    return seconds


class SimpleConsumer(Consumer):
    """Takes messages in batches and hides each for `invisible` seconds. Made by `Connection.simple_consumer()`.

    A message neither acknowledged nor extended in that time is delivered again, with a higher `attempt`; after 16
    attempts it goes to the dead-letter topic. On this host the process hides them: when it dies, its messages are
    delivered to the others at once. Over TCP the brokers do (POP of RocketMQ 5 and shmq), and deliver them when their
    time is over; brokers of RocketMQ 4 leave it to the process.
    """

    def __init__(self, connection: Link, spec: ConsumerSpec, *, invisible: float) -> None:
        super().__init__(connection, spec)
        self.invisible = check_invisible(invisible)

    def receive(
        self, max: int = options.RECEIVE_MAX, wait: float = 0.0, *, invisible: float | None = None
    ) -> list[Message]:
        """Return at most `max` messages; [] when none came within `wait` seconds.

        Args:
            invisible: seconds, instead of the consumer's own.
        """
        if invisible is not None:
            check_invisible(invisible)
        return self._hide(self._poll(max, wait), invisible)

    def _poll(self, count_max: int, wait: float) -> list[Message]:
        if count_max >= 1 and isinstance(self._live_reader(), HidingReader):
            return self._poll_once(count_max, wait)  # a broker should know how long somebody waits
        return super()._poll(count_max, wait)

    def _hide(self, messages: list[Message], invisible: float | None) -> list[Message]:
        if isinstance(self._reader, HidingReader):
            for message in messages if invisible not in (None, self.invisible) else ():
                message.extend(invisible)
            return messages
        self._returns.lease(messages, self.invisible if invisible is None else invisible)
        return messages
