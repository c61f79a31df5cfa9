"""What a member of a group knows of its queues, whichever way their messages come to it.

    GroupReader     pulls them (pulls.py)                            ProcessQueue
    MappedReader    reads them in this host's copy of the log        MappedQueue   (shmq/client/following/reader.py)

Shares, upkeep and duties know no other difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from shmq.client.queue_share import Reading
from shmq.client.spec import ConsumerSpec
from shmq.protocol.dialect import MessageQueue


class QueueProgress:
    """One queue of one member: where its reading began, and what the broker knows of how far it is."""

    def __init__(self, queue: MessageQueue, number: int, offset: int) -> None:
        self.queue = queue
        self.number = number
        self.start_offset = offset
        self.stored_offset: int | None = None  # the last one reported to the broker
        self.paused = False
        self.locked_at: float | None = None
        self.locked_under = 0  # which master of its broker gave the lock, as its share counts them

    @property
    def known_offset(self) -> int:
        """The offset the broker has for the group, as far as we know."""
        return self.start_offset if self.stored_offset is None else self.stored_offset

    @property
    def committed(self) -> int:
        """The offset to be written down for the group."""
        raise NotImplementedError

    @property
    def delivered_count(self) -> int:
        """Messages in the hands of the application."""
        raise NotImplementedError


class MemberReader(Reading, Protocol):
    """The reader of one member, as its share and the periodic work know it."""

    spec: ConsumerSpec

    @property
    def commits(self) -> bool:
        """Whether its offsets are the group's, kept by the brokers."""

    @property
    def stopped(self) -> bool:
        """Whether it reads no more."""

    @property
    def queues(self) -> Sequence[Any]:
        """All queues that are read."""

    async def made(self, queue: MessageQueue, number: int, offset: int) -> Any:
        """Return a queue that `open` reads from an offset.

        Raises:
            ShmqError: it cannot be read yet.
        """

    def open(self, queue: Any, /) -> None:
        """Read a queue."""

    def lag(self) -> int:
        """Return how many messages of its queues are not settled."""

    def find(self, number: int) -> Any:
        """Return a queue; None when it is not ours any more."""

    def lost(self) -> list[int]:
        """Return the numbers of queues that are not what they were when they were opened."""

    def seek(self, number: int, offset: int, /) -> None:
        """Deliver a queue from another offset."""

    def progress(self) -> Sequence[tuple[Any, int]]:
        """Return each queue with its lowest offset not settled."""

    def infos(self) -> Sequence[tuple[MessageQueue, dict[str, Any]]]:
        """Return RocketMQ's ProcessQueueInfo of each queue."""

    def wait_handed_over(self, timeout: float) -> bool:
        """Wait until the broker has answered for every message it is taking over; False: it has not, in that time."""
