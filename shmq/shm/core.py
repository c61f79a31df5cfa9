"""The only door to the C core: its names, and what its statuses mean to a caller of shmq.

Re-exports `shmq.bindings._core` unchanged, because a wrapper around `send` or `poll` would cost more than the call
itself. A `CoreError(status, message)` therefore leaves the hot calls as it is and is translated where the caller
catches it: `except CoreError as error: raise translate(error) from error`, or `with core_errors():` around cold code.
It does not know files, sockets or who the caller is.

    status              raised as
    BROKER_BUSY         BrokerBusy           LOG_FULL, UNITS_FULL, TABLE_FULL   SegmentFull
    READ_ONLY           ReadOnlyStore        TOO_LARGE                          MessageTooLarge
    NO_TOPIC            TopicNotFound        NO_QUEUE, BAD_ARGUMENT             UsageError
    TIMED_OUT           SendTimeout          EMPTY, GONE                        OffsetOutOfRange
    CORRUPT             CorruptionError      SYSTEM                             SegmentError
    FOREIGN_ABI         VersionMismatch      FOREIGN_NAMESPACE                  ForeignNamespace
    RETIRED             BrokerNotRunning     anything else                      ShmqError
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shmq import errors
from shmq.bindings import _core
from shmq.bindings._core import (
    ABI,
    BATCH_MAX,
    BODY_BYTES_MAX,
    FRAME_BYTES,
    FRAME_UNITS,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX,
    UNIT_BYTES,
    CoreError,
    Message,
    Producer,
    Reader,
    Receipt,
    Slot,
    Store,
    crc32,
    layout_bytes,
    process_start,
    record_decode,
    record_encode,
    record_verify,
    tag_hash,
)

__all__ = [
    "ABI",
    "BATCH_MAX",
    "BODY_BYTES_MAX",
    "FRAME_BYTES",
    "FRAME_UNITS",
    "PROPERTIES_BYTES_MAX",
    "READ_ONLY_REASONS",
    "TOPIC_BYTES_MAX",
    "UNIT_BYTES",
    "CoreError",
    "Message",
    "Producer",
    "Reader",
    "Receipt",
    "Slot",
    "Store",
    "core_errors",
    "crc32",
    "layout_bytes",
    "process_start",
    "record_decode",
    "record_encode",
    "record_verify",
    "tag_hash",
    "translate",
]

# enum shmq_read_only_reason: the number in the segment, and the words of every message about it.
READ_ONLY_REASONS = {
    0: "writable",
    1: "a flush failed",
    2: "too many lock holders died in a row",
    3: "a stopped process holds the append lock",
    4: "the disk is full",
    5: "the operator asked for it",
}


def _busy(message: str) -> errors.ShmqError:
    return errors.BrokerBusy(message, hint="raise the timeout, or see `shmq health` for a stopped process")


def _full(message: str) -> errors.ShmqError:
    return errors.SegmentFull(message, hint="see `shmq health`: full disk, dead keeper, or a table that is too small")


def _read_only(message: str) -> errors.ShmqError:
    return errors.ReadOnlyStore(message, hint="read the broker's log, repair the cause, then restart `shmq serve`")


def _retired(message: str) -> errors.ShmqError:
    return errors.BrokerNotRunning(message, hint="start it with `shmq serve`; clients attach again by themselves")


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
    _core.BAD_ARGUMENT: errors.UsageError,
    _core.TIMED_OUT: errors.SendTimeout,
    _core.EMPTY: _gone,
    _core.GONE: _gone,
    _core.FOREIGN_ABI: errors.VersionMismatch,
    _core.FOREIGN_NAMESPACE: errors.ForeignNamespace,
    _core.RETIRED: _retired,
}


def translate(error: CoreError, *, path: str = "the log", position: int = 0) -> errors.ShmqError:
    """Return the public exception a core status stands for.

    Args:
        path: where the bytes came from, for CORRUPT.
        position: their log position, for CORRUPT.
    """
    status = error.args[0] if error.args else 0
    message = str(error.args[1]) if len(error.args) > 1 else "the core refused the call"
    if status == _core.CORRUPT:
        return errors.CorruptionError(path, position, message)
    if status == _core.SYSTEM:
        reason = os.strerror(error.args[2]) if len(error.args) > 2 and error.args[2] else "unknown system error"
        return errors.SegmentError(message if reason in message else f"{message}: {reason}")
    make = _RAISED_AS.get(status)
    return make(message) if make else errors.ShmqError(f"{message} (status {status})")


@contextmanager
def core_errors(*, path: str = "the log", position: int = 0) -> Iterator[None]:
    """Translate every CoreError that leaves the block."""
    try:
        yield
    except CoreError as error:
        raise translate(error, path=path, position=position) from error
