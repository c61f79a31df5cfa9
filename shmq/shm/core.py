"""The only door to the C core: its names, and what its statuses mean to a caller of shmq.

Re-exports `shmq.bindings._core` unchanged, because a wrapper around `send` or `poll` would cost more than the call
itself: no Python frame could catch an error of theirs and translate it. Therefore the core makes its errors through
`public_error`: the exception is the public type it stands for *and* a CoreError, so applications catch the one and the
daemon may ask the other for its status.

    status              raised as
    BROKER_BUSY         BrokerBusy           LOG_FULL, UNITS_FULL, TABLE_FULL   SegmentFull
    READ_ONLY           ReadOnlyStore        TOO_LARGE                          MessageTooLarge
    NO_TOPIC            TopicNotFound        NO_QUEUE, BAD_ARGUMENT             UsageError
    TIMED_OUT, UNCONFIRMED  SendTimeout      EMPTY, GONE                        OffsetOutOfRange
    CORRUPT             CorruptionError      SYSTEM                             SegmentError
    FOREIGN_ABI         VersionMismatch      FOREIGN_NAMESPACE                  ForeignNamespace
    RETIRED, DETACHED   BrokerNotRunning     NOT_MASTER, DOUBTED                NotMaster
    anything else       ShmqError
"""

from __future__ import annotations

import copyreg
import os
import re
from collections.abc import Callable
from typing import Any

from shmq import errors


def _why_unusable() -> str:
    """Return why the core cannot be loaded, or lacks what is wanted of it, and what to type."""
    try:
        from shmq.shm.old_core import CURE, old_core
    except ImportError:
        return (
            "the C core of shmq cannot be loaded: it is not imported out of a zip (--py-files), nor by another Python "
            "than the one it was built for. Install shmq where this runs: pip install shmq, or pip install . in a "
            "checkout"
        )
    return f"{old_core() or 'the C core of shmq is not of this version'}; build it again: {CURE} in the checkout"


try:
    import shmq.bindings._core as _core
    from shmq.bindings._core import (
        ABI,
        BATCH_MAX,
        BODY_BYTES_MAX,
        COLUMN_BATCH_BYTES_MAX,
        COLUMN_ROWS_MAX,
        DAMAGE_RECORD,
        DAMAGE_UNIT,
        FRAME_BYTES,
        FRAME_UNITS,
        GROUP_SETTINGS_BYTES_MAX,
        INDEX_DAMAGE,
        INDEX_DONE,
        INDEX_FULL,
        INDEX_NO_FILE,
        INDEX_NO_ROOM,
        LOG_FULL,
        NO_QUEUE,
        NO_TOPIC,
        OK,
        PROPERTIES_BYTES_MAX,
        READ_ONLY,
        RETRY_QUEUE_BASE,
        STAMP_AGE_MS,
        TOPIC_BYTES_MAX,
        UNIT_BYTES,
        UNIT_DELAY_BASE,
        Assignment,
        BrokerLog,
        BrokerTables,
        ClientEntry,
        ColumnReader,
        CoreError,
        DamageReport,
        DurableWatch,
        Filter,
        IndexProgress,
        KeeperStore,
        Message,
        OffsetEntry,
        Producer,
        Puller,
        QueueEntry,
        Reader,
        Receipt,
        RecordBatch,
        ReplicaStore,
        ScannedRecord,
        Sender,
        Slot,
        Store,
        StoreFigures,
        UnitRun,
        UnpersistedQueue,
        body_inflate,
        columns_decode,
        columns_names,
        columns_schema,
        crc32,
        index_bytes,
        index_find,
        index_hash,
        index_head,
        index_walk,
        layout_bytes,
        message_reopen,
        messages_keep,
        process_died,
        process_start,
        receipt_make,
        receipt_moved,
        record_batch,
        record_decode,
        record_encode,
        record_verify,
        records_read,
        standard_hold,
        standard_release,
        tag_hash,
        unit_sizes,
    )
except ImportError as error:
    raise ImportError(_why_unusable()) from error

__all__ = [
    "ABI",
    "ACK_CONFIRMED",
    "ACK_DURABLE",
    "ACK_END",
    "BATCH_MAX",
    "BODY_BYTES_MAX",
    "COLUMN_BATCH_BYTES_MAX",
    "COLUMN_ROWS_MAX",
    "DAMAGE_RECORD",
    "DAMAGE_UNIT",
    "FRAME_BYTES",
    "FRAME_UNITS",
    "GROUP_SETTINGS_BYTES_MAX",
    "INDEX_DAMAGE",
    "INDEX_DONE",
    "INDEX_FULL",
    "INDEX_NO_FILE",
    "INDEX_NO_ROOM",
    "LOG_FULL",
    "NO_QUEUE",
    "NO_TOPIC",
    "OK",
    "PROPERTIES_BYTES_MAX",
    "READ_ONLY",
    "READ_ONLY_DISK_FULL",
    "READ_ONLY_FENCED",
    "READ_ONLY_FEW_REPLICAS",
    "READ_ONLY_FILES_LOST",
    "READ_ONLY_FLUSH_FAILED",
    "READ_ONLY_FOLLOWER",
    "READ_ONLY_REASONS",
    "RETRY_QUEUE_BASE",
    "STAMP_AGE_MS",
    "TOPIC_BYTES_MAX",
    "TOPIC_LIVE",
    "UNIT_BYTES",
    "UNIT_DELAY_BASE",
    "Assignment",
    "BrokerLog",
    "BrokerTables",
    "ClientEntry",
    "ColumnReader",
    "CoreError",
    "DamageReport",
    "DurableWatch",
    "Filter",
    "IndexProgress",
    "KeeperStore",
    "Message",
    "OffsetEntry",
    "Producer",
    "Puller",
    "QueueEntry",
    "Reader",
    "Receipt",
    "RecordBatch",
    "ReplicaStore",
    "ScannedRecord",
    "Sender",
    "Slot",
    "Store",
    "StoreFigures",
    "UnitRun",
    "UnpersistedQueue",
    "body_inflate",
    "columns_decode",
    "columns_names",
    "columns_schema",
    "crc32",
    "disk_full_word",
    "doubted",
    "index_bytes",
    "index_find",
    "index_hash",
    "index_head",
    "index_walk",
    "layout_bytes",
    "message_reopen",
    "messages_keep",
    "process_died",
    "process_start",
    "public_error",
    "receipt_make",
    "receipt_moved",
    "record_batch",
    "record_decode",
    "record_encode",
    "record_verify",
    "records_read",
    "standard_hold",
    "standard_release",
    "tag_hash",
    "unit_sizes",
]

# enum shmq_read_only_reason: the number in the segment, and the words of every message about it.
READ_ONLY_REASONS = {
    0: "writable",
    1: "the disk refused to write",
    2: "too many lock holders died in a row",
    3: "a stopped process holds the append lock",
    4: "the disk is full",
    5: "the operator asked for it",
    6: "its records come from its master",
    7: "fewer replicas are in sync than the operator asks for",
    8: "another broker may be the master now",
    9: "files of the store were removed or replaced",
}
READ_ONLY_FLUSH_FAILED = 1
READ_ONLY_DISK_FULL = 4
READ_ONLY_FOLLOWER = 6
READ_ONLY_FEW_REPLICAS = 7
READ_ONLY_FENCED = 8
READ_ONLY_FILES_LOST = 9
# enum shmq_ack_rule: what a message has to be before it is acknowledged or visible.
ACK_END, ACK_DURABLE, ACK_CONFIRMED = 0, 1, 2
TOPIC_LIVE = 1  # enum shmq_topic_state


def disk_full_word(used_percent: int, limit_percent: int) -> int:
    """Return what `KeeperStore.set_read_only` takes for a full disk, so that errors name the numbers."""
    return READ_ONLY_DISK_FULL | min(used_percent, 255) << 8 | min(limit_percent, 255) << 16


_CLOSED = "the connection to the store is closed"  # as the core says it


def _busy(message: str) -> errors.ShmqError:
    return errors.BrokerBusy(message, hint="raise the timeout, or see `shmq health` for a stopped process")


def _full(message: str) -> errors.ShmqError:
    return errors.SegmentFull(message, hint="see `shmq health`: full disk, dead keeper, or a table that is too small")


def _disk_full(message: str) -> errors.ShmqError:
    error = errors.FlowControl(message, hint="make room, or shorten --retention-hours; consumers go on meanwhile")
    error.code = errors.ReadOnlyStore.code  # what RocketMQ answers
    return error


def _read_only(message: str) -> errors.ShmqError:
    return errors.ReadOnlyStore(message, hint="read the broker's log, repair the cause, then restart `shmq serve`")


def _not_master(message: str) -> errors.ShmqError:
    return errors.NotMaster(message, hint="connect to the master, shmq.connect('rocketmq://HOST:PORT')")


def doubted(message: str) -> errors.ShmqError:
    """Return the error for what is stored here, and may not be acknowledged."""
    error = errors.NotMaster(message, hint="sent again, it may be there twice; not sent again, it may be lost")
    error.maybe_stored = True
    return error


def _retired(message: str) -> errors.ShmqError:
    return errors.BrokerNotRunning(message, hint="start it with `shmq serve`; clients attach again by themselves")


def _detached(message: str) -> errors.ShmqError:
    return errors.BrokerNotRunning(message, hint="it attaches again by itself; try again")


def _misused(message: str) -> errors.ShmqError:
    if message == _CLOSED:
        return errors.UsageError(message, hint="connect again with shmq.connect()")
    return errors.UsageError(message)


def _unconfirmed(message: str) -> errors.ShmqError:
    error = errors.SendTimeout(message, hint="do not resend; `shmq health` says how many slaves are in sync")
    error.code = 12  # RocketMQ's FLUSH_SLAVE_TIMEOUT
    return error


def _gone(message: str) -> errors.ShmqError:
    return errors.OffsetOutOfRange(message, hint="seek to an offset between the queue's minimum and maximum")


_RAISED_AS: dict[int, Callable[[str], errors.ShmqError]] = {
    _core.BROKER_BUSY: _busy,
    _core.LOG_FULL: _full,
    _core.UNITS_FULL: _full,
    _core.TABLE_FULL: _full,
    _core.READ_ONLY: _read_only,
    _core.TOO_LARGE: errors.MessageTooLarge,
    _core.NO_TOPIC: errors.TopicNotFound,
    _core.NO_QUEUE: errors.UsageError,
    _core.BAD_ARGUMENT: _misused,
    _core.TIMED_OUT: errors.SendTimeout,
    _core.UNCONFIRMED: _unconfirmed,
    _core.EMPTY: _gone,
    _core.GONE: _gone,
    _core.FOREIGN_ABI: errors.VersionMismatch,
    _core.FOREIGN_NAMESPACE: errors.ForeignNamespace,
    _core.RETIRED: _retired,
    _core.DETACHED: _detached,
    _core.NOT_MASTER: _not_master,
    _core.DOUBTED: doubted,
}


class _CoreFailure(CoreError):
    """Adds what a CoreError carries to a public exception."""

    status: int

    def __str__(self) -> str:
        return str(self.args[1])

    def __reduce__(self) -> tuple[Any, ...]:
        public = type(self).__bases__[1]  # the type of both is made in each process, so a pickle cannot name it
        return _blank_of_both, (public, self.args), super().__reduce__()[2]


def _blank_of_both(public: type[errors.ShmqError], arguments: tuple[object, ...]) -> errors.ShmqError:
    kind = _BOTH.get(public) or _both(public)
    error = kind.__new__(kind)
    error.args = arguments
    return error


def _both(public: type[errors.ShmqError]) -> type[errors.ShmqError]:
    """The public type that is a CoreError as well; its name and its arguments are what a caller sees."""
    made = type(public.__name__, (_CoreFailure, public), {"__module__": public.__module__, "__doc__": public.__doc__})
    _BOTH[public] = made
    return made


_LOG_POSITION = re.compile(r"log position (\d+)")  # as the core's sentences name it
_BOTH: dict[type[errors.ShmqError], type[errors.ShmqError]] = {}


def _public(status: int, message: str, reason: int) -> errors.ShmqError:
    if status == _core.CORRUPT:
        place = _LOG_POSITION.search(message)
        return errors.CorruptionError("the log", int(place[1]) if place else 0, message)
    if status == _core.SYSTEM:
        text = os.strerror(reason) if reason else "unknown system error"
        return errors.SegmentError(message if text in message else f"{message}: {text}")
    make = _RAISED_AS.get(status)
    return make(message) if make else errors.ShmqError(f"{message} (status {status})")


def public_error(
    status: int, message: str, reason: int = 0, used: int = 0, limit: int = 0, holder_pid: int = 0
) -> BaseException:
    """Make the exception for a core status: a public error that is also a CoreError with the core's arguments."""
    public = _disk_full(message) if status == _core.READ_ONLY and limit else _public(status, message, reason)
    if isinstance(public, errors.MeasuredError):
        public.used, public.limit, public.holder_pid = used, limit, holder_pid
    text = public.args[0] if public.args else message
    return _as_core_error(public, (status, text, reason) if status == _core.SYSTEM else (status, text))


def damage_error(
    status: int, message: str, topic: str, queue_id: int, offset: int, position: int, record: bytes, body: bytes | None
) -> BaseException:
    """Make the exception for a message that a reader left out."""
    public = errors.DamagedMessage(
        message, topic=topic, queue_id=queue_id, offset=offset, position=position, record=record, body=body
    )
    return _as_core_error(public, (status, message))


def _as_core_error(public: errors.ShmqError, args: tuple[object, ...]) -> BaseException:
    kind = type(public)
    error = (_BOTH.get(kind) or _both(kind)).__new__(_BOTH[kind])
    error.__dict__.update(public.__dict__)
    error.args = args
    return error


_STAY_HERE: dict[type, str] = {
    Message: "hand over its body and properties, or its id: mq.browse(topic, id=message.message_id)",
    Slot: "hand over the connection, and reserve there",
    Producer: "hand over the connection, and call its send() there",
}


def _pickled(receipt: Receipt) -> tuple[Any, ...]:
    from shmq.shm.pickling import receipt_values  # most programs hand nothing over

    return receipt_make, receipt_values(receipt)


def _refused(thing: object) -> Any:
    from shmq.shm.pickling import stays_here

    return stays_here(_STAY_HERE[type(thing)])(thing)


copyreg.pickle(Receipt, _pickled)
for _kind in _STAY_HERE:
    copyreg.pickle(_kind, _refused)
_core.set_error_factory(public_error)
_core.set_damage_factory(damage_error)
