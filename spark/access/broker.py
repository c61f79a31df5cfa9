"""The interface of a broker for planning and reading, over mapped memory or TCP.

    driver     open_access(options) ─▶ Access ─▶ Queues ─▶ Ranges          `plan/`
    executor   reopen(where) ─▶ Access.read(Reading, Range) ─▶ batches     `scan/`

`Access` has two implementations: `segments` over mapped memory, `remote` over TCP; `way` chooses between them. Rows are
the same to the byte on both, because one decoder of the core makes them. `Where`, `Range` and `Reading` are plain data:
they travel from the driver to the executors.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shmq.errors import UsageError
from shmq.figures.model import QueueLag
from shmq.spark.options import Options
from shmq.spark.schema import refused

Key = tuple[str, int]  # topic, queue id


@dataclass(frozen=True)
class Queue:
    """One queue: where it is in the tables, and which topic of that name it belongs to.

    `index` is the row in the tables, -1 without them; `born_position` is -1 where unknown; `seen` is what the queue
    held when it was asked for, where asking again costs a journey.
    """

    topic: str
    queue_id: int
    index: int
    born_position: int
    seen: tuple[int, int] | None = None


class Kept(NamedTuple):
    """What the broker's host knows of a queue; None over TCP."""

    persisted: int | None = None
    """Queue offset up to which its units are in files."""
    bytes: int | None = None


@dataclass(frozen=True)
class Where:
    """The facts an executor needs to find the broker of a plan; plain data."""

    access: str
    store: str | None
    remote: str | None
    broker: str | None
    identity: str


@dataclass(frozen=True)
class Range:
    """Queue offsets [start, end) of one queue of one broker."""

    topic: str
    queue_id: int
    born_position: int
    start: int
    end: int

    @property
    def count(self) -> int:
        """The number of messages, before any selection."""
        return self.end - self.start


@dataclass(frozen=True)
class Reading:
    """The options of a load and its columns, in the order they are wanted."""

    options: Options
    columns: tuple[str, ...]

    def selection(self) -> dict[str, Any]:
        """Return the arguments of the core's decoders, wherever the records come from."""
        options = self.options
        limits: dict[str, Any] = {} if options.end_ms is None else {"ms_end": options.end_ms}
        return limits | {
            "rows_max": options.batch_rows,
            "bytes_max": options.batch_bytes,
            "tags": options.tags or None,
            "ms_begin": options.start_ms or 0,
            "verify": options.verify_crc,
        }


class Access(Protocol):
    """A broker as planning and reading see it."""

    @property
    def where(self) -> Where:
        """The facts another process needs to find the same broker."""

    @property
    def broker(self) -> str:
        """The broker's name, as rows show it."""

    def topics(self) -> list[str]:
        """Return the names of all topics."""

    def queues(self, topic: str) -> list[Queue]:
        """Return the queues of a topic."""

    def bounds(self, queue: Queue) -> tuple[int, int]:
        """Return the first offset a queue still has, and the first that is not visible yet."""

    def search_time(self, queue: Queue, time_ms: int) -> int:
        """Return the first offset of a queue stored at or after a time."""

    def kept(self, queue: Queue) -> Kept:
        """Return what only the broker's host knows of a queue."""

    def progress(self, group: str | None, queues: Callable[[], Sequence[Queue]]) -> dict[str, list[QueueLag]]:
        """Return how far groups are, by topic and queue.

        Args:
            group: only this one; None takes every group.
            queues: returns the queues that matter, for a broker that is asked queue by queue.

        Raises:
            UsageError: every group is meant, and the broker is reached over TCP.
        """

    def has_group(self, group: str) -> bool:
        """Say whether a group that committed nothing here exists, as far as that can be known."""

    def publish(self, group: str, offsets: Mapping[Key, int]) -> None:
        """Commit offsets for a group."""

    def units(self, queue: Queue, begin: int, end: int) -> list[tuple[int, int]]:
        """Return log position and bytes of records [begin, end); may be cut short behind the first."""

    def sizes(self, queue: Queue, begin: int, end: int) -> Sequence[int]:
        """Return the bytes of records [begin, end), as an array; may be cut short behind the first."""

    def sample(self, queue: Queue, begin: int, end: int, count: int) -> list[tuple[int, int]]:
        """Return log position and bytes of about `count` records between two offsets."""

    @property
    def may_lease(self) -> bool:
        """Say whether retention can be kept from what is planned."""

    def lease(self, log_position: int, seconds: float) -> str | None:
        """Keep retention from what is planned, if this way can."""

    def read(self, reading: Reading, wanted: Range) -> Iterator[Any]:
        """Yield record batches of a range."""


def not_on_this_host(view: str) -> UsageError:
    """Return the error for a view of what only the segments and files have, where the broker is reached over TCP."""
    return refused(
        f"view {view} reads the broker's files, and host {socket.gethostname()} does not have them",
        "run Spark's workers on the broker's host, or read view messages",
    )
