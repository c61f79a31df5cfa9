"""The interface of the CommitLog for the broker's logic.

The bridge implements it over the store (`bridge/store/log.py`), tests over lists.

Invariants every implementation keeps:
 1. No call waits for a client, the disk or room in the log; for the append lock one waits some milliseconds, if at all.
 2. What `read` and `record_at` return are records as they are in the log, byte for byte.
 3. A refused append has stored nothing, unless its error says `maybe_stored`: the log was fenced meanwhile.
 4. What is not visible yet is not damaged: `visible` says how far a queue may be read. A part that reads a queue for
    itself, and moves a progress over what it read, goes no farther than that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from shmq.daemon.broker.tables import Tables, Topic
from shmq.daemon.logic.effects import Effect
from shmq.daemon.logic.parking import Congestion
from shmq.errors import BrokerBusy, ShmqError
from shmq.protocol.codes import Response
from shmq.shm.core import Filter

LOCAL_HOST = bytes((127, 0, 0, 1, 0, 0, 0, 0))

_BUSY_RETRY_MS, _RETRY_MS = 20, 1000


@dataclass(slots=True)
class NewRecord:
    """One message to be stored.

    Attributes:
        properties: RocketMQ property text.
        born_ms: 0 takes the time of storing.
        born_host: IPv4 (8 bytes) or IPv6 (20 bytes) address and port; the sysFlag bit for IPv6 is set by the log.
        tag_code: what the ConsumeQueue unit says instead of the hash of the tag (RocketMQ writes due times there).
            `shmq.shm.core.UNIT_DELAY_BASE` + n becomes the store time + n milliseconds.
    """

    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: bytes = LOCAL_HOST
    reconsume_times: int = 0
    prepared_position: int = 0
    tag_code: int | None = None


class Entry(NamedTuple):
    """A record and the queue it is for."""

    topic: Topic
    queue_id: int
    record: NewRecord


class Stored(NamedTuple):
    """Where a record went; `end` is the log position behind it: durable once the durable end has reached it."""

    queue_offset: int
    log_position: int
    store_ms: int
    end: int


class Pulled(NamedTuple):
    """Records of one queue: `body` holds `record_count` of them, concatenated; `next_offset` is where to go on.

    `next_offset` passes over records that are not selected; it is the given offset when nothing was looked at.
    """

    next_offset: int
    record_count: int
    body: bytes


class Ranged(NamedTuple):
    """A piece of a range: `body` holds whole records, `next_offset` is where to go on.

    `offset_min` is the first offset left; where it is behind the one that was asked for, there is nothing else.
    """

    next_offset: int
    offset_min: int
    body: bytes


class Wanted(NamedTuple):
    """What requests wait for: queue index -> queue offset, and a log position to be durable."""

    queues: Mapping[int, int] = MappingProxyType({})
    durable_end: int | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether no request waits."""
        return not self.queues and self.durable_end is None


class Found(NamedTuple):
    """What the key index knows of a key: log positions of records that may have it, and how far the index goes."""

    positions: Sequence[int]
    last_ms: int
    last_position: int


class KeyIndex(Protocol):
    """The index of messages by their keys."""

    def search(
        self, topic: str, key: str, *, begin_ms: int, end_ms: int, count: int, oldest_from: int | None = None
    ) -> Iterator[Found | None]:
        """Yield in the end the newest records of a topic that may have a key, stored within a time (whole seconds).

        With `oldest_from` the oldest ones from that log position on.

        None before it is a place to pause at, every tenth of a millisecond or so. Keys are found by a hash: the records
        have to be looked at.
        """

    @property
    def wanted_end(self) -> int:
        """The log position behind all that a search has to find now."""

    def has_reached(self, log_position: int) -> bool:
        """Whether everything below a log position can be found; if not, the keeper is asked to fill the index now."""


def retry_ms(error: ShmqError) -> int:
    """Return when to repeat an append that no request waits for: a lock is soon free, room on the disk is not."""
    return _BUSY_RETRY_MS if isinstance(error, BrokerBusy) else _RETRY_MS


class Log(Protocol):
    """The CommitLog and the queues of one broker."""

    @property
    def congestion(self) -> Congestion:
        """Counts of the appends so far."""

    @property
    def durable_end(self) -> int:
        """Log position below which everything is as safe as this broker promises: on disk, or on its replicas', too."""

    def outcome(self, end: int) -> Response:
        """Return RocketMQ's code for a message that ends at a log position and waits to be safe.

        SUCCESS when it is; SERVICE_NOT_AVAILABLE when it is in doubt all the same; SLAVE_NOT_AVAILABLE when it is on
        this disk only, though this broker has slaves confirm; else FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT, which say
        what it waits for.
        """

    def in_doubt(self, end: int) -> bool:
        """Return whether what is stored below a log position may not be acknowledged, however safe it is on this host.

        Another host may have been elected, and lack it: the lease is over, which is looked at now. What slaves have
        confirmed stays. A log that is fenced to be handed over keeps its lease until the successor has begun: till then
        what waits for the disk is acknowledged; what waits longer is in doubt, though the successor has it.
        """

    @property
    def end(self) -> int:
        """Log position where the next record goes, or a little before it."""

    def position_of(self, queue: int, queue_offset: int) -> int:
        """Return the log position of a queue's record; 0 where there is none."""

    @property
    def passed_over(self) -> int:
        """How many damaged records `read` has passed over."""

    def append(self, topic: Topic, queue_id: int, record: NewRecord) -> Stored:
        """Store one message.

        Raises:
            BrokerBusy, LogFull and the other errors of a send.
        """

    def append_batch(self, topic: Topic, queue_id: int, records: Sequence[NewRecord]) -> list[Stored]:
        """Store messages in one queue, in order; neighbours with equal fields as one: all or none."""

    def append_encoded_batch(
        self,
        topic: Topic,
        queue_id: int,
        body: bytes,
        *,
        properties: bytes = b"",
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = LOCAL_HOST,
        reconsume_times: int = 0,
    ) -> list[Stored]:
        """Store the messages in the body of a SEND_BATCH_MESSAGE request, `properties` behind those of each.

        Raises:
            UsageError: a length in the body contradicts another; nothing is stored.
        """

    def read(
        self,
        queue: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        tags: Sequence[int] | None = None,
        where: Filter | None = None,
    ) -> Pulled:
        """Return visible records of a queue (by index), the first even if it exceeds `bytes_max`.

        They are as RocketMQ's clients know them, without the CRC property of the whole record.

        Args:
            tags: hashes of the tags wanted; None for all.
            where: what the properties have to match as well.
        """

    def visible(self, queue: int) -> int:
        """Return the first offset of a queue (by index) that is not visible yet."""

    def read_range(
        self, queue: int, queue_offset: int, queue_end: int, *, bytes_max: int, tags: Sequence[int] | None = None
    ) -> Ranged:
        """Return visible records of queue offsets [queue_offset, queue_end), whole as they are in the log.

        Not all that are there, and the first even if it exceeds `bytes_max`; where nothing is visible the next offset
        is the given one.

        Raises:
            ShmqError: the record is damaged.
        """

    def range_units(self, queue: int, queue_offset: int, queue_end: int) -> bytes:
        """Return ConsumeQueue units of visible records, 20 bytes each; may be shorter."""

    def record_at(self, log_position: int) -> bytes | None:
        """Return the visible record that starts at a log position as `read` does, None if none does."""

    def stored_at(self, log_position: int) -> bytes | None:
        """Return the same, durable or not.

        For records that only lead to other records: those lie behind it in the log, so none of them is ever durable,
        and visible, before it is.
        """

    def append_together(self, entries: Sequence[Entry]) -> list[Stored]:
        """Store records of different queues, in this order and back to back: all or, if a process dies, none."""

    def raise_fence(self, log_position: int) -> None:
        """Let no other process store anything any more on account of a record below a log position.

        What was stored before is in the queues when this returns.
        """

    def settled(self, queue: int, queue_offset: int) -> tuple[int, Sequence[int]]:
        """Return the numbers in the bodies of the records from an offset on, durable or not, and where to go on.

        That is the given offset when nothing is there.
        """

    def committed(self, log_position: int, count: int) -> tuple[int | None, Sequence[int]]:
        """Walk that many records from a log position on, which has to be the start of one.

        Returns where to go on, None at the end, and the halves' log positions that committed messages name.
        """

    def copies(self, log_position: int, end: int, count: int) -> tuple[int | None, Sequence[tuple[int, int]]]:
        """Walk as `committed` does, up to a position.

        Returns where to go on, and the log position of each record that names another, with the name.
        """


class Storage(NamedTuple):
    """What a part needs that stores messages for others to read.

    Attributes:
        arrived: tells those who wait for messages in queues (by index), at a time; returns what follows from it.
    """

    tables: Tables
    log: Log
    arrived: Callable[[Sequence[int], int], Sequence[Effect]]
