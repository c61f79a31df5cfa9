"""The durable mark: how far the log and the ConsumeQueue files are known to be on disk.

RocketMQ's own `checkpoint` holds times, which a clock can falsify, and is never trusted for this.

    slot 0 at byte 0, slot 1 at byte 4096; each 72 bytes, little-endian
    0   8  magic "SHMQMARK"
    8   8  sequence       grows with every mark; the slot is sequence mod 2
    16  8  durable_end    log position: every byte below it is on disk
    24  8  dispatched     log position: the ConsumeQueue units of every record below it are on disk
    32  4  version        1 ends here, with its CRC at byte 36
    36  4  config_files   which files of the config directory were written, one bit each (config.py)
    40  8  unit_sums      sequence of the batch of sums that has every unit of a record below `dispatched`
    48  4  CRC-32 of bytes 0 to 48
    52  8  log_begin      log position: every log file below it was given up
    60  8  sequence again, of the mark that log_begin belongs to
    68  4  CRC-32 of bytes 52 to 68

A broker that knows 52 bytes reads the mark as it did, and leaves a log_begin of another sequence behind: that, and none
at all, is "not known". With a torn or changed log_begin the slot is not valid.

Rules: (1) a mark is written only after the sync it speaks of has returned, and a log_begin before a file goes;
(2) the two slots alternate in different blocks, so a torn write destroys at most the newer mark;
(3) no position ever moves back while the store exists, unless the log is cut (lineage/cutting.py), or is empty and
begins elsewhere (lineage/beginning.py);
(4) a new log_begin is written into both slots, as the older one would call files lost that were given up;
(5) after a sync that failed the same slot is written again, so the next sync is not believed for pages given up.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from typing import NamedTuple

from shmq.errors import CorruptionError
from shmq.plain_file import open_plain, read_plain, write_whole
from shmq.store.atomic import sync_directory
from shmq.store.layout import StoreLayout

_SLOT_STRIDE = 4096
MARK_BYTES = 2 * _SLOT_STRIDE
_SLOT_1 = struct.Struct("<8sQQQI")
_SLOT = struct.Struct("<8sQQQIIQ")
_BEGIN = struct.Struct("<QQ")
_BEGIN_AT = 52
_CRC = struct.Struct("<I")
_MAGIC = b"SHMQMARK"
_VERSION = 2


class Mark(NamedTuple):
    """Positions that are on disk for certain."""

    durable_end: int = 0
    dispatched: int = 0
    sequence: int = 0
    unit_sums: int = 0
    config_files: int = 0
    log_begin: int | None = None  # not known of a store that an older broker, or a stock one, wrote


class DurableMark:
    """The mark file of one store; one process writes it, from any of its threads."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        self._descriptor = -1
        self._current: Mark | None = None
        self.damaged_slots = 0  # that the last `load` could not read

    def load(self) -> Mark | None:
        """Return the newest valid mark, or None when the store never had one (a stock RocketMQ store).

        Raises:
            CorruptionError: the file is there but neither slot is valid.
        """
        try:
            content = read_plain(self._layout.durable_mark)
        except FileNotFoundError:
            return None
        found = [(at, _parse(content, at)) for at in (0, _SLOT_STRIDE)]
        marks = [mark for _, mark in found if mark is not None]
        # Of a new store one slot was never written; a cut tears none, as each lies in one sector.
        self.damaged_slots = sum(
            mark is None and (any(content[at : at + _SLOT_STRIDE]) or _is_owed(marks)) for at, mark in found
        )
        if not marks and content.strip(b"\0"):
            raise CorruptionError(
                self._layout.durable_mark,
                0,
                "neither slot of the durable mark is valid",
                hint=f"remove it to recover by checking the whole log: rm {self._layout.durable_mark}",
            )
        # A slot that an older page took the place of is whole, and out of turn.
        self.damaged_slots += len(marks) == 2 and abs(marks[0].sequence - marks[1].sequence) != 1
        self._current = max(marks, key=lambda mark: mark.sequence) if marks else None
        return self._current

    @property
    def is_known(self) -> bool:
        """Whether the store has a mark."""
        return self._current is not None

    @property
    def current(self) -> Mark:
        """The mark written or loaded last."""
        return self._current or Mark()

    def advance(
        self,
        *,
        durable_end: int = 0,
        dispatched: int = 0,
        unit_sums: int = 0,
        config_files: int = 0,
        log_begin: int | None = None,
    ) -> bool:
        """Write a mark if it says more than the current one; True when it did. Raises OSError.

        What is not given stays as it is.
        """
        with self._lock:
            previous = self.current
            begins = [begin for begin in (log_begin, previous.log_begin) if begin is not None]
            mark = Mark(
                max(durable_end, previous.durable_end),
                max(dispatched, previous.dispatched),
                previous.sequence,
                max(unit_sums, previous.unit_sums),
                previous.config_files | config_files,
                max(begins, default=None),
            )
            if self._current is not None and mark == previous:
                return False
            self._write(mark)
            if mark.log_begin != previous.log_begin:
                self._write(mark)
            return True

    def begin_at(self, position: int) -> None:
        """Say that an empty log begins, and ends, at a position, wherever it did before. Raises OSError.

        Raises:
            CorruptionError: there is a mark, and it cannot be read.
        """
        self.load()
        with self._lock:
            mark = self.current._replace(durable_end=position, dispatched=position, log_begin=position)
            self._write(mark)
            self._write(mark)

    def _write(self, mark: Mark) -> None:
        """Write a mark as the next one."""
        mark = mark._replace(sequence=self.current.sequence + 1)
        if self._descriptor < 0:
            self._open()
        write_whole(self._descriptor, _pack(mark), (mark.sequence % 2) * _SLOT_STRIDE)
        os.fdatasync(self._descriptor)
        self._current = mark

    def write_again(self) -> None:
        """Write the current mark into a file that has its name, into both slots. Raises OSError."""
        with self._lock:
            self.close()
            for _ in range(2):
                self._write(self.current._replace(sequence=self.current.sequence + 1))

    def set_back(self, log_end: int) -> None:
        """Write a mark that says of nothing behind a position of the log that it is on the disk. Raises OSError.

        Raises:
            CorruptionError: there is a mark, and it cannot be read.
        """
        self.load()
        with self._lock:
            before = self._current
            if before is None or (before.durable_end <= log_end and before.dispatched <= log_end):
                return
            mark = before._replace(
                durable_end=min(before.durable_end, log_end),
                dispatched=min(before.dispatched, log_end),
            )
            self._write(mark)

    def close(self) -> None:
        """Close the file; the mark stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        path = self._layout.durable_mark
        existed = path.exists()
        self._descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
        if os.fstat(self._descriptor).st_size < MARK_BYTES:
            os.posix_fallocate(self._descriptor, 0, MARK_BYTES)
            os.fsync(self._descriptor)
        if not existed:
            sync_directory(path.parent)


def _is_owed(marks: list[Mark]) -> bool:
    """Whether the other slot was written too: a mark goes into each in turn."""
    return any(mark.sequence > 1 for mark in marks)


def _pack(mark: Mark) -> bytes:
    body = _SLOT.pack(
        _MAGIC, mark.sequence, mark.durable_end, mark.dispatched, _VERSION, mark.config_files, mark.unit_sums
    )
    begin = b"" if mark.log_begin is None else _BEGIN.pack(mark.log_begin, mark.sequence)
    return _with_crc(body) + (_with_crc(begin) if begin else bytes(_BEGIN.size + _CRC.size))


def _with_crc(body: bytes) -> bytes:
    return body + _CRC.pack(zlib.crc32(body))


def _parse(content: bytes, at: int) -> Mark | None:
    for version, slot in ((_VERSION, _SLOT), (1, _SLOT_1)):
        body = content[at : at + slot.size]
        if len(body) < slot.size or content[at : at + slot.size + _CRC.size] != _with_crc(body):
            continue
        magic, sequence, durable_end, dispatched, told_version, *more = slot.unpack(body)
        if magic == _MAGIC and told_version == version:
            config_files, unit_sums = more or (0, 0)
            is_sound, log_begin = _begin(content[at + _BEGIN_AT :], sequence)
            return Mark(durable_end, dispatched, sequence, unit_sums, config_files, log_begin) if is_sound else None
    return None


def _begin(content: bytes, sequence: int) -> tuple[bool, int | None]:
    """Whether these bytes are what was written, and the log's begin; None: nothing tells it of this mark."""
    told = content[: _BEGIN.size + _CRC.size]
    if not told.strip(b"\0"):
        return True, None
    log_begin, of_sequence = _BEGIN.unpack(told[: _BEGIN.size].ljust(_BEGIN.size, b"\0"))
    return told == _with_crc(told[: _BEGIN.size]), log_begin if of_sequence == sequence else None
