"""The iterating consumer: `for msg in mq.subscribe(…)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.consumers.consumer import Consumer

if TYPE_CHECKING:
    from shmq.shm.core import Message


class Subscription(Consumer):
    """Messages of a topic, as they come. Made by `Connection.subscribe()`.

    Iterating waits for the next message without using a processor, and ends after `stop()` or `close()` only.
    A message that was not acknowledged when the subscription ends is delivered again, to whoever reads next.

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
