"""Types of the C extension `shmq.bindings._core`; `tests/bindings/test_core_types.py` compares them with the binary.

Errors: a status of the core becomes `CoreError(status, message)`; `shmq.shm` translates it into `shmq.errors`.
Positions are bytes in the CommitLog, offsets count messages in a queue, times are milliseconds since the epoch
unless the name says otherwise. Everything here may be called from any thread; calls that may block release the GIL.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self, final

class CoreError(Exception):
    """args = (status, message); `status` is an SHMQ_* number below; errno in args[2] for SHMQ_SYSTEM.

    `maybe_stored` is True where a send was stored and failed while it waited for the disk or for replicas.
    """

OK: Final[int]
BROKER_BUSY: Final[int]
LOG_FULL: Final[int]
UNITS_FULL: Final[int]
READ_ONLY: Final[int]
TOO_LARGE: Final[int]
NO_TOPIC: Final[int]
NO_QUEUE: Final[int]
TABLE_FULL: Final[int]
TIMED_OUT: Final[int]
UNCONFIRMED: Final[int]
EMPTY: Final[int]
CORRUPT: Final[int]
GONE: Final[int]
BAD_ARGUMENT: Final[int]
SYSTEM: Final[int]
FOREIGN_ABI: Final[int]
SOURCES: Final[str]
FOREIGN_NAMESPACE: Final[int]
RETIRED: Final[int]
DETACHED: Final[int]
NOT_MASTER: Final[int]
DOUBTED: Final[int]
FENCED: Final[int]  # another process decides: an older transaction, or a master of an older epoch
ABI: Final[int]
INDEX_DONE: Final[int]
INDEX_NO_FILE: Final[int]
INDEX_NO_ROOM: Final[int]
INDEX_FULL: Final[int]
INDEX_DAMAGE: Final[int]
DAMAGE_UNIT: Final[int]
DAMAGE_RECORD: Final[int]
UNIT_BYTES: Final[int]
RETRY_QUEUE_BASE: Final[int]
"""Queue ids from here on are a retry topic's, as `Reader.assign` takes and messages show them."""
STAMP_AGE_MS: Final[int]
"""How far the clock that stamps an append may be behind `Store.clock_ms` of when it begins, unless it stands."""
UNIT_DELAY_BASE: Final[int]
"""A tag code of UNIT_DELAY_BASE + n becomes store time + n milliseconds in the unit."""
FRAME_UNITS: Final[int]
FRAME_BYTES: Final[int]
TOPIC_BYTES_MAX: Final[int]
BODY_BYTES_MAX: Final[int]
PROPERTIES_BYTES_MAX: Final[int]
BATCH_MAX: Final[int]
COLUMN_ROWS_MAX: Final[int]
COLUMN_BATCH_BYTES_MAX: Final[int]
GROUP_SETTINGS_BYTES_MAX: Final[int]

def set_error_factory(factory: Callable[..., BaseException] | None, /) -> None:
    """Let factory(status, message[, errno[, used, limit, holder_pid]]) make every exception the core raises; None:
    CoreError itself. The numbers come with a full or busy store: bytes of log, frames, percent of disk, ms waited."""

def set_damage_factory(factory: Callable[..., BaseException] | None, /) -> None:
    """Let factory(status, message, topic, queue id, offset, log position, record, body) make the exception for a
    message that a reader left out; None: CoreError."""

def standard_hold() -> None:
    """Occupy what is missing of descriptors 0 to 2, so that what is opened next lies above them."""

def standard_release() -> None:
    """End a standard_hold(); the last one frees those descriptors again."""

def crc32(data: Any, /) -> int: ...
def tag_hash(tag: str, /) -> int: ...
def process_start(pid: int, /) -> int:
    """Field 22 of /proc/pid/stat, or 0 when there is no such process, it is a zombie, or /proc hides it."""

def process_died(pid: int, start: int, /) -> bool:
    """Whether this process has ended: proven, never for want of a look. A start of 0 is any process of that number."""

def layout_bytes(
    *, file_bytes: int, topic_max: int, queue_max: int, frame_max: int, client_max: int, group_max: int, offset_max: int
) -> tuple[int, int, int]:
    """Sizes of the control, units and readers segments."""

def record_encode(
    *,
    body: Any,
    topic: bytes,
    properties: bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    log_position: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int = 0,
    store_ms: int = 0,
    reconsume_times: int = 0,
    prepared_position: int = 0,
    born_host: bytes = b"\x7f\0\0\1\0\0\0\0",
    store_host: bytes = b"\x7f\0\0\1\0\0\0\0",
) -> bytes:
    """One stored record, exactly the bytes the append path writes."""

def record_decode(data: Any, position: int = 0, /) -> dict[str, Any]:
    """Fields of the record at `position`: names of struct shmq_view; raises CoreError CORRUPT/EMPTY."""

def index_hash(topic: str, key: str, /) -> int:
    """Hash of a topic's key, as index files have it."""

def index_bytes(slots: int, entries: int, /) -> int:
    """Size of an index file with so many slots, and entries numbered below `entries`."""

def index_head(data: Any, slots: int, entries: int, /) -> tuple[int, int, int, int, int, int, int]:
    """(begin_ms, end_ms, begin position, end position, slots used, next entry, position of the last entry's record);
    CoreError CORRUPT when that cannot be."""

def index_walk(
    data: Any, slots: int, entries: int, newest: Any, number: int, end: int, until: int, begin: int, reached: int, /
) -> tuple[int, int, int, bytes]:
    """Walk the entries of an index file from `number` on, below `end`, as long as each is as it must be.

    `newest` has a word for each slot, the newest entry of its chain. It stops in front of the first entry of a record
    at or behind log position `until`. Returns (next number; 0, 1: it goes on with a wrong entry, 2: it names an older
    record than the one before it, both not for records below `begin`; highest log position so far; 12 bytes of each).
    """

def index_find(
    data: Any, slots: int, entries: int, hash: int, *, begin_ms: int, end_ms: int, count: int, steps: int, next: int = 0
) -> tuple[list[int], int]:
    """Log positions of at most `count` entries of a hash, the newest first, looking at `steps` entries at most, and the
    entry to go on with when these did not do, 0 otherwise. `next` is such an entry."""

def record_verify(data: Any, position: int = 0, /) -> bool:
    """Whether body CRC and record CRC hold."""

def record_batch(
    data: Any, position: int, count: int, watched: tuple[bytes, ...] | None, keys: bool = False, /
) -> RecordBatch:
    """As `KeeperStore.scan_batch`, of bytes of one log file that begin at a log position.

    It stops "blank" in front of a BLANK, and "corrupt" where the bytes end within a record.
    """

def unit_sizes(units: bytes, bounds: Sequence[int], /) -> list[int]:
    """How many records of these units have at most so many bytes, one number a bound and one above; their bytes."""

def records_read(
    data: bytes,
    *,
    owner: Any = None,
    codec: Callable[[bytes], Any] | None = None,
    queue_base: int = 0,
    are_retries: bool = False,
) -> list[Message]:
    """Messages of a pull reply's body, which they keep alive; CoreError CORRUPT when a record is not whole.

    `owner` is asked to settle: `_ack(message)`, `_nack(message, after)`, `_extend(message, seconds)`. `queue_base` is
    added to every queue id. `are_retries`: these come again to their group, so they show the topic they were sent to.
    """

def columns_names() -> tuple[str, ...]:
    """Names of all columns; a column's number is its place here."""

def columns_schema(columns: bytes, /) -> object:
    """Arrow schema of these columns, by number, as an `arrow_schema` capsule."""

def columns_decode(
    data: Any,
    columns: bytes,
    topic: str | None,
    broker: str,
    *,
    rows_max: int = 8192,
    bytes_max: int = 16777216,
    tags: Sequence[str] | None = None,
    ms_begin: int = 0,
    ms_end: int = ...,
    verify: bool | None = None,
    range: tuple[int, int, int] = ...,
) -> tuple[int, int, int, list[tuple[int, int]], object]:
    """(bytes used, next queue offset, rows, packed bodies, capsule) of records back to back in memory; see
    `Store.columns`. tags_code is the hash of the tag, as units have it; without a topic each row has its record's. The
    BLANK at the end of a log file ends the walk. `range` (queue id, first offset, end) holds records of a topic to it:
    another one is damage, as is one that goes back."""

def body_inflate(data: Any, sys_flag: int, log_position: int = 0, /) -> bytes:
    """A compressed body as it was sent; CoreError CORRUPT or TOO_LARGE when it is not one of ours to have."""

def messages_keep(messages: list[Message], kept: object, /) -> None:
    """Let an object live as long as each of these messages; None lets go of the one before."""

def message_reopen(message: Message, /) -> None:
    """Let a settled message of `records_read` be delivered and settled again."""

def receipt_make(
    topic: str,
    queue_id: int,
    offset: int,
    log_position: int,
    store_ms: int,
    message_id: str,
    recall_handle: str | None = None,
    /,
) -> Receipt:
    """A receipt of what another host has stored."""

def receipt_moved(receipt: Receipt, topic: str, queue_id: int, recall_handle: Any, /) -> Receipt:
    """A receipt of the same record that says another topic and queue; `recall_handle` is a str, something whose
    encode() returns it, or None."""

# Tuples with named places: indexes and unpacking work, too.
@final
class QueueEntry(tuple[int, int, int, int, int, int]):
    """One queue of the queue table."""

    @property
    def offset_min(self) -> int: ...
    @property
    def offset_max(self) -> int: ...
    @property
    def persisted(self) -> int: ...
    @property
    def topic(self) -> int: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def bytes(self) -> int: ...

@final
class UnpersistedQueue(tuple[int, int, int]):
    """A queue whose units are not all in files."""

    @property
    def queue(self) -> int: ...
    @property
    def persisted(self) -> int: ...
    @property
    def offset_max(self) -> int: ...

@final
class OffsetEntry(tuple[int, int, int, int, int, int]):
    """Progress of one group on one queue; `committed` is -1 when never set, `owner` a client slot or -1."""

    @property
    def slot(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def committed(self) -> int: ...
    @property
    def owner(self) -> int: ...
    @property
    def updated_ms(self) -> int: ...

@final
class ClientEntry(tuple[int, int, int, int, int, int, int, int, int]):
    """One attached process."""

    @property
    def slot(self) -> int: ...
    @property
    def state(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def role(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def sent(self) -> int: ...
    @property
    def beat_ns(self) -> int: ...
    @property
    def settled(self) -> int: ...

@final
class Assignment(tuple[str, int, int, int, int]):
    """One queue that a reader reads; `committed` is the lowest unacknowledged offset."""

    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> int: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def committed(self) -> int: ...

@final
class ScannedRecord(tuple[int, int, bytes, int, int, int, int, int, int]):
    """One record found by a walk over the log."""

    @property
    def log_position(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def store_ms(self) -> int: ...
    @property
    def tag_hash(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def prepared_position(self) -> int: ...

@final
class UnitRun(tuple[bytes, int, int, bytes, bytes | None]):
    """Records of one queue whose queue offsets follow each other."""

    @property
    def topic(self) -> bytes: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def queue_offset(self) -> int:
        """Of the first."""
    @property
    def units(self) -> bytes: ...
    @property
    def store_ms(self) -> bytes | None:
        """When each was stored, 8 bytes in the order of the machine, if its topic is watched."""

@final
class RecordBatch(tuple[int, int, int, int, list[UnitRun], list[tuple[int, int]], bytes, str]):
    """What a walk over many records found; runs of one queue are in the order of the log."""

    @property
    def position(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...
    @property
    def store_ms(self) -> int: ...
    @property
    def runs(self) -> list[UnitRun]: ...
    @property
    def watched(self) -> list[tuple[int, int]]: ...
    @property
    def keys(self) -> bytes:
        """Of the index, hash and log position, 12 bytes each as an entry begins; empty when they were not asked for."""
    @property
    def stop(self) -> str: ...

@final
class IndexProgress(tuple[int, int, int, int, int]):
    """How far keys were put into an index file; `stop` is an INDEX_* number."""

    @property
    def position(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def store_ms(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def keyed(self) -> int: ...

@final
class DamageReport(tuple[int, int, int, int, int]):
    """What a reader could not hand out; kind 0 when its writer has not finished it. -1: not known."""

    @property
    def kind(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def log_position(self) -> int: ...
    @property
    def record_bytes(self) -> int: ...

@final
class Store:
    """The segments of one broker, mapped. Segments are file descriptors (posix) or SysV ids (sysv=True)."""

    def __init__(
        self,
        control: int,
        units: int,
        readers: int,
        *,
        writable: bool,
        sysv: bool = False,
        format: Mapping[str, Any] | None = None,
        observing: bool = False,
    ) -> None:
        """Attach; with `format` (keys of struct shmq_format_options and shmq_sizes) initialise first. `observing` maps
        all three read-only; who is not writable otherwise still writes its waiter bits and offsets."""

    head: dict[str, Any]  # copy of struct shmq_head; the fields of its sizes stand beside the others
    writable: bool
    clock_ms: int  # the broker's clock, which stamps records: ms since the epoch
    clock_ahead_ms: int | None  # how far it is ahead of the host's; None where it stands
    client_slot: int  # as it was handed out; -1 before
    log_end: int
    described_end: int  # no record from here to the log's end has properties; read it after the end
    log_begin: int
    epoch: int
    lease_until_ns: int
    standing: int
    durable_end: int
    allocated_end: int
    confirmed_end: int
    in_sync_end: int
    in_sync_count: int
    safe_end: int
    lease_lasts: bool  # the log has none, or it is not over; the clock is looked at
    visible_end: int
    has_sync_topics: bool
    read_only: int  # enum shmq_read_only_reason
    leader: str  # host:port of the master that this log follows, or empty
    retired: bool
    has_log_directory: bool  # whether the commitlog/ of the broker is held, or lies at its path
    keeper_beat_ns: int
    table_version: int

    def close(self) -> None:
        """Detach. Every later call fails with BAD_ARGUMENT; messages and their views stay readable."""
    def forget_pages(self) -> None:
        """Drop our page-table entries of the log more than 32 MiB behind its end; reading finds them again."""
    def units_stored(self, queue: int, first: int, count: int, /) -> bytes:
        """Units in memory, else in their file, 20 bytes each; may be shorter."""
    # -- tables
    def topic_find(self, name: str, /) -> int:
        """Topic index, -1 when there is none."""
    def topic(self, index: int, /) -> dict[str, Any]:
        """state version read_queues write_queues perm flags kind born_position name queues (list of queue indexes)."""
    def topics(self, with_deleted: bool = False, /) -> list[dict[str, Any]]:
        """Every live topic, as `topic()` with `index` added; also deleted ones whose entries are not free yet."""
    def topic_marks(self) -> bytes:
        """Of every live topic its index and, in the low half, its version: 64-bit words. What differs has changed."""
    def queue(self, index: int, /) -> QueueEntry:
        """The queue with that number; of one whose topic was deleted everything is 0, and no topic has its index."""
    def queue_index(self, topic: int, queue_id: int, /) -> int: ...
    def group_find(self, name: str, /) -> int:
        """Number of a group, -1 when there is none. No other name ever has it."""
    def groups(self) -> list[tuple[int, str]]:
        """(number, name) of every group."""
    def group_settings(self, group: int, /) -> bytes:
        """The settings of a group: the text that was set, empty until then."""
    def offset_get(self, slot: int, /) -> int:
        """Committed queue offset, -1 when never set."""
    def offset_set(self, slot: int, offset: int, /) -> None: ...
    def offset_owner(self, slot: int, /) -> int:
        """Client slot of the live owner, -1 without an owner, or when it is dead."""
    def offset_is_own(self, slot: int, /) -> bool:
        """Whether we own the queue; no once our client slot was taken back."""
    def offset_take(self, slot: int, /) -> bool:
        """Become the owner if no live one is and no lock holds; True when it is ours. DETACHED once our client slot was
        taken back."""
    def offset_leave(self, slot: int, /) -> None:
        """Give the queue up if it is ours."""
    def offsets(self) -> list[OffsetEntry]: ...
    def offsets_lost(self) -> list[tuple[int, int, int, int]]:
        """(group, queue, messages lost to cleaning, seconds since the epoch of the last) where there are any."""
    def use_client(self, slot: int, generation: int, /) -> None:
        """This process' own slot, as it was handed out; needed before waiting or owning offsets. Once it was taken
        back, nothing is owned or counted under it, and waiting threads look every 200 ms."""
    # -- reading outside a Reader
    def log_file(self, log_position: int, /) -> int:
        """A descriptor of the log file that holds a position, for reading, wherever its directory lies.

        The caller closes it. CoreError SYSTEM where there is none."""
    def message_at(
        self,
        position: int,
        size: int = 0,
        owner: Any = None,
        codec: Callable[[bytes], Any] | None = None,
        verify: bool | None = None,
        /,
    ) -> Message:
        """The record at a log position; CoreError GONE/CORRUPT. `owner` is asked to settle it: see `records_read`.
        `verify`: whether its checksum is looked at; None as the broker was started."""
    def search_time(self, queue: int, time_ms: int, /) -> int:
        """First queue offset whose record was stored at or after time_ms."""
    def wait_durable(self, position: int, timeout: float, /) -> None: ...
    def queue_visible(self, queue: int, /) -> int:
        """First queue offset that is not visible yet; with sync flush that is what is not on the disk."""

@final
class ReplicaStore:
    """A log that follows a master's on another host, or waits for its replicas; the store is writable."""

    def __init__(self, store: Store) -> None: ...
    def follow(self, leader: str, /) -> None:
        """From now on records come by `replicate` only; before another process is attached."""
    def replicate(
        self,
        data: bytes | memoryview,
        position: int,
        delays_ms: bytes,
        seconds: float,
        judged_end: int = 0,
        epoch: int = 0,
        /,
    ) -> tuple[int, int, int, tuple[bytes, int] | None]:
        """Take the whole records that the master has from `position` on, the end of this log.

        Returns the log end, how many records were taken, why no more were, and then of which topic and queue the next
        one is: OK, NO_TOPIC, NO_QUEUE, LOG_FULL (until the keeper has made a file), BROKER_BUSY, READ_ONLY.
        `delays_ms` are native 64-bit numbers, one for each queue of the schedule topic. From `judged_end` on, if
        it is not 0, the first record of a queue is a NO_QUEUE: its topic may have been deleted and made again.
        CoreError CORRUPT: the bytes are no record, or one that does not follow this log; what came before was taken.
        CoreError FENCED: `epoch` is older than that of a master whose records are here."""
    def lead(self, epoch: int, /) -> None:
        """Take records as the master of an epoch, which is on the disk; a follower is promoted by it."""
    def fence_off(self, leader: str, seconds: float, /) -> bool:
        """Take no record any more, and name who does, or "".

        False: the holder of the append lock has not let it go in time, and may end its append."""
    def lease(self, until_ns: int, /) -> None:
        """Take records until a time on CLOCK_BOOTTIME, 0: without end; then the log is fenced."""
    def confirm(
        self, in_sync_end: int | None, in_sync_count: int, seconds: float, *, lacks_replicas: bool = False
    ) -> int | None:
        """Say what every replica in sync has on its disk, None: none is needed; and how many there are.

        Returns the confirmed end, of which none of them misses a byte; None when a flush takes longer than `seconds`,
        and then none of that was said. `lacks_replicas` refuses records from now on, until it is not said any more."""

@final
class KeeperStore:
    """What the keeper of a store's files and its recovery do to the segments; the store is writable."""

    def __init__(self, store: Store) -> None: ...
    def set_allocated_end(self, position: int, /) -> None: ...
    def give_back(self, position: int, /) -> bool:
        """Let the log's files end at a position; False while a writer is, or may soon be, behind it."""
    def set_log_directory(self, directory: int, /) -> None:
        """Processes open log files in the directory of this descriptor, under whatever path it lies."""
    def set_log_begin(self, position: int, /) -> None: ...
    def set_log_end(self, position: int, /) -> None:
        """Recovery only, before another process is attached: sets end, durable and confirmed end, all three."""
    def set_confirmed_end(self, position: int, /) -> None:
        """Recovery only, behind `set_log_end`: of an elected broker no more than this is known to be confirmed."""
    def flush(self) -> int:
        """fdatasync what is dirty, raise the durable end, wake waiters; returns the durable end. CoreError SYSTEM sets
        read_only."""
    def set_read_only(self, reason: int, /) -> None: ...
    def set_retired(self) -> None: ...
    def damage_take(self) -> DamageReport | None:
        """The oldest report of a reader that is not settled, or None."""
    def damage_settle(self) -> None:
        """The oldest report is dealt with: its reader looks at the unit once more."""
    def keeper_beat(self) -> None: ...
    def keep_flushed(
        self, seconds: float, *, interval: float | None = None, bounds: tuple[int, ...] = ()
    ) -> tuple[bool, int, tuple[int, ...]]:
        """Beat, and flush what a process waits for, back to back, without the GIL; sleep while there is nothing to do.

        Ends after `seconds`, or when an errand is rung for: space runs low, or a reader found damage. What no process
        waits for is flushed every `interval` seconds, with None at once.

        Returns (rung for an errand, wall clock in ms when the last complete flush began or 0, how many flushes took up
        to each of the `bounds` in nanoseconds, one number for those above and their sum; () without a flush).
        CoreError: a flush failed, and the store is read-only.
        """
    def durable_follow(self, position: int, seconds: float, /) -> bool:
        """Sleep until the durable end is above a position (True) or the time passes; wants nothing flushed."""
    def repair(self, timeout: float) -> None:
        """Take and release the append lock; a dead holder's work is finished on the way."""
    def populate(self, position: int, size: int, /) -> None: ...
    def units_read(self, queue: int, first: int, count: int, /) -> bytes:
        """Units still in memory, 20 bytes each; may be shorter."""
    def units_restore(self, queue: int, first: int, units: bytes, /) -> None: ...
    def set_persisted(self, queue: int, offset: int, /) -> None: ...
    def set_queue(self, queue: int, *, offset_min: int, offset_max: int, persisted: int) -> None:
        """Recovery only, before another process is attached."""
    def set_offset_min(self, queue: int, offset: int, /) -> None:
        """Retention: the first queue offset whose record is left; appends may go on meanwhile."""
    def frames_grow(self, count: int, /) -> None: ...
    def frames_release(self, queue: int, ordinal: int, count: int, timeout: float, /) -> int:
        """Give back full, persisted frames of a queue, of a closed one any; returns how many, -1 without the lock."""
    def queues_close(self, timeout: float, /) -> list[tuple[int, int]]:
        """End the lives of queues that no topic has: they are not written to or read from here on.

        Returns (queue, offset_max) of these, and of those that were closed before and are not free yet; 4,096 at most.
        """
    def queue_free(self, queue: int, /) -> None:
        """Let others have the entry of a queue that is closed, and whose frames are given back."""
    def topic_free(self, topic: int, version: int, /) -> bool:
        """Let others have the entry of a topic that was deleted at a version, when nothing of it is left to do.

        Returns False while a queue of it is not free yet; True, and nothing is done, if it was made anew.
        """
    def scan(self, position: int, end: int, count: int, /) -> tuple[int, list[ScannedRecord], str]:
        """Walk records of the log from `position`, verifying CRCs.

        Returns (next position, records, stop) where stop is "" (count reached or end), "blank-end" (no more file),
        "zero", or "corrupt: reason". BLANKs are stepped over.
        """
    def scan_batch(self, position: int, end: int, count: int, watched: tuple[bytes, ...] | None, /) -> RecordBatch:
        """Walk up to `count` records of one log file from `position`, verifying CRCs, and gather their units.

        The stop is as that of `scan`; behind a BLANK the position is that of the next file. Records of the topics
        `watched`, and those of transactions, come one by one too; None: nothing is gathered.
        """
    def index_follow(
        self,
        position: int,
        until: int,
        end: int,
        data: Any = None,
        slots: int = 0,
        entries: int = 0,
        room: int = 0,
    ) -> IndexProgress:
        """Put the keys of records from `position` to `until` into an index file; nothing from `end` on is looked at.

        Args:
            data: writable buffer over the file; None stops at the first record with keys.
            room: entries with a lower number have blocks reserved.
        """
    def offset_lose(self, slot: int, count: int, seconds: int = ..., /) -> None:
        """Count messages that cleaning took before the group had acknowledged them."""
    def stats(self) -> dict[str, int]:
        """As `StoreFigures.stats`."""
    def dirty_queues(self, limit: int, after: int = -1, /) -> list[UnpersistedQueue]:
        """As `StoreFigures.dirty_queues`."""

@final
class BrokerTables:
    """Topics, groups, offset slots and client slots, to be changed; the store is writable."""

    def __init__(self, store: Store) -> None: ...
    def set_store_host(self, host: bytes, /) -> None:
        """Where records say they are stored: IPv4 address and port, 8 bytes. Producers made later say so; set it before
        any client attaches."""
    def clock_advance(self, milliseconds: int, /) -> None:
        """Move the broker's clock ahead, for every process; for tests."""

    def topic_put(
        self, name: str, *, read_queues: int, write_queues: int, perm: int = 6, flags: int = 0, kind: int = 0
    ) -> int: ...
    def topic_set_flush(self, index: int, mode: int, /) -> None:
        """Say when messages of a topic count: 0 as the broker says, 1 once stored, 2 once on disk."""
    def topic_delete(self, name: str, /) -> None: ...
    def set_topic_born(self, index: int, position: int, /) -> None: ...
    def group_put(self, name: str, /) -> int: ...
    def group_delete(self, name: str, /) -> None: ...
    def group_set(self, group: int, text: bytes, /) -> None:
        """Configure a group; at most GROUP_SETTINGS_BYTES_MAX bytes."""
    def offset_put(self, group: int, queue: int, /) -> int:
        """The slot of a group and a queue, made if need be: the group's number << 32 | the queue's. When one of them is
        no more, everything that is done to its slot is without effect."""
    def offset_find(self, group: int, queue: int, /) -> int:
        """The same, -1 when there is none."""
    def offset_lock(self, slot: int, holder: int, now_ms: int, life_ms: int, /) -> bool:
        """Keep the queue for a client over TCP, known by the low 31 bits of `holder`, or renew that.

        `now_ms` is on the monotonic clock. False while a local member owns it or another holder's time is not over.
        """
    def offset_unlock(self, slot: int, holder: int, /) -> None:
        """End the lock of that holder; without one, nothing."""
    def offset_free(self, slot: int, /) -> None:
        """Take the queue away from its owner; its acknowledgements do not move the offset from here on."""
    def offset_show(self, slot: int, taken: int, /) -> None:
        """Show how far a client over TCP was handed messages; a slot that a local member owns stays as it is."""
    def client_put(self, pid: int, start: int, role: int, /) -> int: ...
    def client_generation(self, slot: int, /) -> int:
        """How often the slot was handed out and taken back: it says in which of its lives the slot is."""
    def client_drop(self, slot: int, /) -> None: ...

@final
class BrokerLog:
    """What the broker reads of the log for its clients, and waits for; the store is writable."""

    def __init__(self, store: Store) -> None: ...
    def pull(
        self,
        queue: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        tags: Sequence[int] | None,
        scan_max: int = 800,
        where: Filter | None = None,
        trimmed: bool = False,
        /,
    ) -> tuple[int, int, bytes]:
        """(next offset, count, records): visible records of one queue from `offset` on, back to back, as they are in
        the log, or `trimmed`, without the record's CRC property; the first goes even if it is longer than bytes_max,
        1024 at most. `tags` are hashes, compared with what the units say; `where` is asked about the properties;
        scan_max bounds the units looked at. Below the first offset left the answer is that one and nothing. CoreError
        CORRUPT, with offset and position, when the first one looked at is damaged.
        """
    def record_bytes_at(
        self, position: int, size: int = 0, trimmed: bool = False, stored: bool = False, /
    ) -> bytes | None:
        """The visible record that starts at a log position, as it is in the log, or without its CRC property; None when
        none does, or when `size` is given and it is not of that many bytes. With `stored`, durable or not."""
    def scan(self, position: int, end: int, count: int, /) -> tuple[int, list[ScannedRecord], str]:
        """As `KeeperStore.scan`."""
    def raise_fence(self, position: int, timeout: float, /) -> None:
        """Let no append_together() be done any more because of a record below a log position; it never falls. What
        was done before is in the queues when this returns."""
    def settled(self, queue: int, offset: int, /) -> tuple[int, bytes]:
        """(next offset, native 64-bit words): the numbers in the bodies of a queue's records from `offset` on, those
        behind the durable end too; at most 204 records, none: nothing is there."""
    def wait_queues(
        self, queues: Sequence[int], offsets: Sequence[int], timeout: float, *, safe_end: int | None = None
    ) -> bool:
        """Sleep until queue index queues[i] has a visible message at or behind offsets[i], the safe end has reached
        safe_end (only with sync flush does that wake a waiter), or wake_self(); False after `timeout` seconds. It
        may return True for nothing. Needs a client slot; one thread of a process calls it."""
    def queues_risen(self, queues: Sequence[int], offsets: Sequence[int], /) -> list[int]:
        """Those queue indexes queues[i] whose queue ends behind offsets[i] now; never waits."""
    def wake_self(self) -> None:
        """End wait_queues() from another thread; if no thread is in it, the next one returns at once."""
    def ring_keeper(self) -> None:
        """Have the keeper look at the log now, for a caller that waits for what it writes."""

@final
class StoreFigures:
    """Counters and states of a store, for monitoring."""

    frames_used: int  # frames that hold units of a queue: 16 bytes a frame are read

    def __init__(self, store: Store) -> None: ...
    @property
    def lookup_probes(self) -> int:
        """Entries this process has looked at to find groups and offset slots, since the store was opened."""
    def stats(self) -> dict[str, int]:
        """Counters of struct shmq_log: topics_used, queues_used, lock_tid of the append lock (0 free), table_lock_tid,
        flush_lock_tid, holder_pid, lock_count, deaths, appended, appended_bytes, busy, wakes, rolled, frame_ready,
        frame_bump, claims, claims_evicted, claim_state, claim_owner_pid, claim_owner_start, claim_bytes,
        claim_opened_ns."""
    def queue_counts(self) -> bytes:
        """offset_max and bytes of the queue in every entry: two native 64-bit words each. The entry of a queue is the
        bits of its number that `head["queue_mask"]` has."""
    def queue_numbers(self) -> bytes:
        """The number of the queue that lives in each entry: a native 32-bit word each, all bits set where none does."""
    def dirty_queues(self, limit: int, after: int = -1, /) -> list[UnpersistedQueue]:
        """Queues whose units are not all in files, of the entries behind that of a queue."""
    def offset_counts(self, first: int = 0, /) -> bytes:
        """Of every offset slot from one on two native 64-bit words: the committed offset plus 1 (0: never set), and the
        slot: the group's number << 32 | the queue's."""
    def offset_place(self, entry: int, /) -> int:
        """The slot that an entry of the table of offset slots is now."""
    def offsets_taken(self) -> bytes:
        """Of each offset slot the queue offset behind what its reader was handed, as a native 64-bit word; 0: nothing.
        The highest bit says that a local member owns the slot; without it a client over TCP was handed them last."""
    def clients(self) -> list[ClientEntry]: ...

@final
class ColumnReader:
    """Records of a store as Arrow columns."""

    def __init__(self, store: Store) -> None: ...
    def columns(
        self,
        queue: int,
        queue_id: int,
        next: int,
        end: int,
        columns: bytes,
        topic: str,
        broker: str,
        *,
        rows_max: int = 8192,
        bytes_max: int = 16777216,
        tags: Sequence[str] | None = None,
        ms_begin: int = 0,
        ms_end: int = ...,
        verify: bool | None = None,
    ) -> tuple[int, int, int, list[tuple[int, int]], object]:
        """(next offset, rows, record bytes, packed bodies, capsule) of queue offsets [next, end) of a queue index, up
        to a limit. The capsule is the `arrow_array` of the columns, in their order; packed bodies are (row, sysFlag) of
        bodies that are stored compressed: `body_inflate` makes them. The first record goes even if it is longer than
        bytes_max. Conditions: one of `tags`, ms_begin <= store time < ms_end. `verify`: None checks the
        CRC of every record that is read, unless the broker trusts reads, True that of every record, False none.

        Errors come when the record at `next` itself is the reason: GONE, EMPTY (not visible), NO_TOPIC (the queue was
        given to another topic), CORRUPT."""

@final
class Receipt:
    """Where a message was stored."""

    topic: str
    queue_id: int
    offset: int  # queue offset
    log_position: int
    store_ms: int
    message_id: str  # store host and log position in RocketMQ's upper-case hex form
    recall_handle: str | None  # of a delayed message that can be taken back

@final
class Producer:
    """Appends. `resolve(topic)` is called once per unknown topic and must return a topic index or raise.

    `special(topic, body, keywords)` is called for a send or send_oneway with a keyword that is none of ours, with all
    keywords but topic and body; what it returns, send returns. Without it such a keyword is a TypeError.

    `explain(arguments, error)` is called when a send, batch or reserve has failed by a Python error about its
    arguments, with all of them by name and the error, None for one that Python code has raised; the error that it
    returns is raised instead, None leaves the first one.

    `refused(method, error, positional, named)` is called when a send, send_oneway, batch or reserve has failed, outside
    of the segments; it returns None, which leaves the error, or a tuple of what the method returns, or raises.
    """

    def __init__(
        self,
        store: Store,
        *,
        resolve: Callable[[str], int],
        timeout: float = 3.0,
        wait_durable: bool = False,
        special: Callable[[str, Any, dict[str, Any], bool], Any] | None = None,
        explain: Callable[[dict[str, Any], BaseException | None], BaseException | None] | None = None,
        refused: Callable[[str, BaseException, tuple[Any, ...], dict[str, Any]], tuple[Any] | None] | None = None,
    ) -> None: ...
    def send(
        self,
        topic: str,
        body: Any,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | bytes | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        timeout: float | None = None,
        tag_code: int | None = None,
        **special: Any,
    ) -> Receipt:
        """Store one message and say where. Round robin over the write queues unless queue_id or message_group
        (stable hash of the group, property __SHARDINGKEY) decide. wait_durable follows the constructor.

        `properties` as bytes is RocketMQ property text that is stored as it is (but for a record CRC in it): the way to
        write names the broker itself uses. Its tag counts for filters when `tag` is None.

        `tag_code` is what the unit says instead of the hash of the tag, as in append().
        """
    def send_oneway(
        self,
        topic: str,
        body: Any,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | bytes | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        timeout: float | None = None,
        tag_code: int | None = None,
        **special: Any,
    ) -> None:
        """As send, without a receipt and without waiting for durability."""
    def send_batch(
        self,
        topic: str,
        bodies: Sequence[Any],
        *,
        tag: str | None = None,
        keys: Sequence[str | None] | None = None,
        properties: Mapping[str, str] | bytes | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """All bodies into one queue, in order: all or none, up to 4 MiB of records, or what a log file holds.

        More is stored in parts of that size; an error of a later one has the receipts of what is stored, and
        maybe_stored. keys, when given, holds one key a body."""
    def append(
        self,
        topic: str,
        body: Any,
        properties: bytes = b"",
        *,
        queue_id: int,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = ...,
        reconsume_times: int = 0,
        prepared_position: int = 0,
        tag_code: int | None = None,
        timeout: float | None = None,
    ) -> tuple[int, int, int, int]:
        """Store one record with exactly these fields: (queue offset, log position, store_ms, end).

        Property text is stored as it is, but for a record CRC in it. Any queue the topic has may be named, whatever its
        permission: the broker that calls this has looked. born_ms 0 takes the time of storing; a born_host of 8 bytes
        (IPv4 address, port) or 20 (IPv6) decides the sysFlag's bit for it, the default is the store's host. tag_code,
        None or left out, is the hash of TAGS; UNIT_DELAY_BASE + n stands for the store time + n milliseconds. Records
        with the sysFlag's bit 4 (prepared, rolled back) are in the log only: queue offset 0. Never waits for the disk.
        """
    def append_batch(
        self,
        topic: str,
        queue_id: int,
        records: Sequence[tuple[bytes, bytes, int]],
        *,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = ...,
        reconsume_times: int = 0,
        prepared_position: int = 0,
        tag_code: int | None = None,
        timeout: float | None = None,
    ) -> list[tuple[int, int, int, int]]:
        """Store (body, property text, flag) tuples in one queue, in order, each as append does: all or none. Together
        they may take as much as the longest record, or as a log file holds."""
    def append_encoded_batch(
        self,
        topic: str,
        queue_id: int,
        batch_body: Any,
        *,
        properties_extra: bytes = b"",
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = ...,
        reconsume_times: int = 0,
        prepared_position: int = 0,
        tag_code: int | None = None,
        timeout: float | None = None,
    ) -> list[tuple[int, int, int, int]]:
        """Store the messages in the body of a SEND_BATCH_MESSAGE request, as append_batch does; properties_extra comes
        behind the properties of each. CoreError BAD_ARGUMENT names the record whose lengths are wrong."""
    def append_together(
        self,
        records: tuple[tuple[str, int, bytes, bytes, int, int, int, bytes, int, int, int | None], ...],
        because_of: int | None = None,
        timeout: float | None = None,
        durable: bool = True,
        /,
    ) -> list[tuple[int, int, int, int]] | None:
        """Store 1 to 4 records of different queues, in this order, back to back: all or none after a kill.

        A record is (topic, queue_id, body, property text, flag, sys_flag, born_ms, born_host, reconsume_times,
        prepared_position, tag_code), as the arguments of append; born_host b"" is this host without a port. Waits for
        the disk as send does, unless `durable` is false.

        Args:
            because_of: the log position of the record this is done for; None: of none.

        Returns one tuple a record as append; None when `because_of` lies below the fence: nothing is stored then.
        """
    def reserve(
        self,
        topic: str,
        size: int,
        *,
        tag: str | None = None,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        timeout: float | None = None,
    ) -> Slot:
        """Room for a body of up to `size` bytes inside the log itself."""

@final
class Sender:
    """Stores plain sends of RocketMQ clients and answers them; one for all connections of a process.

    Plain is a SEND_MESSAGE or SEND_MESSAGE_V2 that asks for nothing but storing one short message in a queue there is,
    in a form that needs no interpretation. Everything else is left to the caller, as if it had come there first.

    Args of the constructor:
        refused: topics that are not plain; retry topics never are.
        suffix: property text behind the properties of each message.
        answers: of a JSON and of a binary request, without the frame's prefix: bytes that stand as they are, and
            numbers for what comes between: 1 opaque, 2 message id, 3 queue id, 4 queue offset, each with 16 added when
            its length comes before it in four bytes; 5 opaque in four bytes; 6 in four bytes, how many follow.
    """

    def __init__(
        self,
        producer: Producer,
        *,
        refused: frozenset[str],
        suffix: bytes,
        body_bytes_max: int,
        properties_bytes_max: int,
        answers: tuple[tuple[bytes | int, ...], tuple[bytes | int, ...]],
    ) -> None: ...
    def serve(
        self, data: bytes, at: int, frame_bytes_max: int, count_max: int, born_host: bytes, address: bytes, /
    ) -> tuple[
        int, int, bytes, tuple[int, ...], tuple[int, bytes, tuple[int, ...], int] | None, tuple[int, CoreError] | None
    ]:
        """Serve frames from data[at:] on, until one is not whole or not plain, or count_max are served (1024 at most).

        Returns (where the first frame that was not served begins, frames served, their answers, indexes of the queues
        that have new messages, what is held, what is in doubt). Readers of other client slots are woken; waiting
        requests of this process are the caller's. `address` is the first half of a message id: host and port in
        upper-case hexadecimal.

        What is held is None, or of messages that count on the disk only: (the log position that has to be durable, the
        answers that wait for it, queues whose messages can be seen from then on, frames that are answered then). The
        disk was asked for.

        What is in doubt is None, or of the last frame, when it was stored and the log was fenced before it could be
        acknowledged: (where it begins, the error that answers it). It counts as served, and its answer is the caller's.
        """

@final
class Puller:
    """Answers pulls of RocketMQ clients that repeat; one for all connections of a process.

    The key of a pull is its JSON header without the numbers of the first "opaque", "queueOffset" and "commitOffset",
    where the bytes 1, 2 and 3 stand. A plan says what pulls of a key get. It is forgotten when another needs its place.

    Args of the constructor:
        answer: the header of an answer with messages: bytes that stand as they are, and numbers for what comes between:
            1 opaque, 2 the next offset, 3 and 4 the bounds of the queue.
    """

    def __init__(self, store: Store, *, answer: tuple[bytes | int, ...]) -> None: ...
    def serve(
        self, data: bytes, frame_bytes_max: int, count_max: int, bytes_max: int, epoch: int, /
    ) -> tuple[int, int, tuple[bytes, ...]]:
        """Answer the pulls at the front of data, until one is not whole, has no plan or finds nothing; 64 at most.

        Returns (where the first frame that was not served begins, the code of those that were, their answers). The
        offsets that came along are stored. A pull that fails is left to the caller, as if it had come there first.
        """
    def unknown_key(self, header: bytes, epoch: int, /) -> bytes | None:
        """Return the key of a header; None when it has none, or there is a plan for it that holds."""
    def learn(
        self,
        key: bytes,
        *,
        epoch: int,
        table_version: int,
        code: int,
        group: int,
        queue: int,
        count_max: int,
        bytes_max: int,
        commits: bool,
        needs_progress: bool,
        tags: tuple[int, ...] | None,
        where: Filter | None,
        far_bytes: int,
    ) -> None:
        """Take a plan for the pulls of a key; it holds while the epoch and the version of the tables are these.

        The high half of an epoch says whose plan it is: another's for the same key does not take its place.
        """

@final
class DurableWatch:
    """Makes an eventfd readable when the log is safe up to the position that was wanted last, or will never be; with
    `ships` when the log is that long, for the one thread that ships it to replicas."""

    def __init__(self, store: Store, descriptor: int, *, ships: bool = False) -> None: ...
    def want(self, position: int, /) -> None:
        """Tell once; what was wanted before is forgotten."""
    def close(self) -> None:
        """End the thread; the descriptor is the caller's."""

@final
class Slot:
    """A body being written in place: `with producer.reserve(topic, size) as slot:` publishes on normal exit, gives the
    space back on an exception. Views of it are released at the end of the block."""

    view: memoryview  # writable
    properties: dict[str, str]
    size: int  # may be lowered before commit
    receipt: Receipt | None  # after commit

    def commit(self) -> Receipt:
        """Publish the first `size` bytes. When a view of the slot is still in use (an array made from it), the body is
        copied to a new place, published from there, and a ResourceWarning says so."""
    def abort(self) -> None:
        """Give the room back; twice is harmless."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

@final
class Message:
    """One received message; decodes lazily, keeps the mapped file alive while it or one of its views lives."""

    topic: str
    queue_id: int
    offset: int
    body: bytes  # copied (and inflated if compressed) on first access
    view: memoryview  # read-only, into the log; no copy
    size: int  # body bytes; len(view) is those that are stored
    tag: str | None
    key: str | None  # first of keys
    keys: list[str]
    properties: dict[str, str]  # without the record CRC
    message_group: str | None
    born_ms: int
    store_ms: int
    sys_flag: int
    flag: int
    reconsume_times: int
    log_position: int
    record_bytes: int
    message_id: str  # UNIQ_KEY if there, else the offset message id
    offset_message_id: str
    attempt: int  # 1 at first delivery; settable by the consumer that redelivers
    settled: bool
    value: Any  # codec(body) when the consumer set a codec; else raises AttributeError

    def ack(self) -> None:
        """Mark consumed; the group's offset moves over every prefix of acknowledged messages. Twice is harmless."""
    def nack(self, after: float | None = None) -> None:
        """Give back: delivered again after `after` seconds."""
    def extend(self, seconds: float, /) -> None:
        """Ask for more time before it is given to another member."""
    def verify(self) -> bool:
        """Whether body CRC and record CRC hold."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None:
        """Acknowledge on normal exit, give back on an exception."""

@final
class Filter:
    """A filter program (its format: filter.h); `shmq.filter` compiles it. Immutable, for any thread."""

    def __init__(self, program: bytes) -> None:
        """CoreError BAD_ARGUMENT when it is no program."""
    def matches(self, properties: Message | bytes, /) -> bool:
        """Whether a message, or RocketMQ property text, is selected."""

@final
class Reader:
    """Cursors over queues, with acknowledgement windows. Iterating blocks (in slices of at most `slice` seconds, so
    that signals and `stop()` are seen) and yields Message.

    `owner` is the Python consumer: its `_nack(message, after)` and `_extend(message, seconds)` serve Message's methods,
    and its `_idle()` is called by the iterator between slices and after wake(); True from it ends the iteration.
    """

    def __init__(
        self,
        store: Store,
        *,
        owner: Any = None,
        auto_ack: bool = False,
        tags: Sequence[str] | None = None,
        codec: Callable[[bytes], Any] | None = None,
        spin_us: int = 20,
        slice: float = 0.2,
        where: Filter | None = None,
        verify: bool | None = None,
    ) -> None:
        """`verify`: whether the CRC of each record is looked at; None does as the broker does."""
    def assign(self, topic: str, queue: int, queue_id: int, offset: int, slot: int = -1, /) -> None:
        """Read queue index `queue` from `offset`; acknowledged offsets are stored at offset slot `slot` unless -1."""
    def revoke(self, queue: int, /) -> None:
        """Stop reading it; messages in flight may still be acknowledged but no longer move the group's offset."""
    def assigned(self) -> list[Assignment]: ...
    def seek(self, queue: int, offset: int, /) -> None: ...
    def pause(self, queue: int, paused: bool, /) -> None: ...
    def poll(self, max: int = 32, timeout: float = 0.0) -> list[Message]:
        """At most `max` messages; [] when nothing came in time, after wake() and stop().

        CoreError CORRUPT once for each record that is not what its unit says: it is never delivered, and stepped over.
        With auto_ack the messages of one poll are acknowledged by the next.
        """
    def requeue(self, message: Message, /) -> None:
        """Deliver this message again, before anything new."""
    def lag(self) -> int:
        """Messages not acknowledged over all assigned queues; not delivered, for those without an offset slot."""
    def doubts(self) -> bool:
        """Whether a queue waits for the keeper to mend the unit of its next message."""
    def wake(self) -> None:
        """End a wait of this reader, from any thread; if it is not waiting yet, its next wait. The iterator calls
        `owner._idle()` at once."""
    def stop(self) -> None:
        """End the iteration and every later poll, from any thread."""
    def close(self) -> None:
        """Stop and forget the queues; with auto_ack, acknowledge what was delivered last."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message: ...
