"""Checksums of the ConsumeQueue units: what the files held when they were last right, and how far they went.

Units carry no checksum of their own, and a stock broker refuses foreign files in a queue's directory, so the sums of
all queues lie in one journal. One file costs one sync a mark, whatever the number of queues; a file of sums beside each
unit file would cost as many again as the units themselves.

    <root>/shmq.units    batches, one behind the other; the file is written anew when most of it is outdated

    batch     magic "SHMQUNIT" 8 · sequence 8 · payload bytes 4 · CRC-32 of all before and the payload 4 · sections
    section   topic bytes 2 · sums 4 · queue id 4 · birth of the topic 8 · lowest block 8 · first block given 8 · end 8
              · tail CRC 4 · topic · sums, 4 bytes each
    block     200 units; queue offset n is in block n // 200. A block that is full has a sum, the last one, which is
              not, the tail CRC over its units below `end`; units are only appended, so both stay true

A section replaces what was said of its queue from the first block given on, and below its lowest block; one with `end`
0 says that there is no unit any more. All numbers are little-endian.

Rules: (1) a batch is synced before the mark that speaks of it, and the mark has its sequence: what is missing at the
end is noticed; (2) sums say where the files are wrong, and never what is right: that comes from the log; (3) a batch
whose sync failed is not believed, the next one writes the whole file anew.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shmq.plain_file import open_plain, read_plain, write_whole
from shmq.shm.core import UNIT_BYTES
from shmq.store.atomic import write_atomically
from shmq.store.layout import StoreLayout, is_safe_name

BLOCK_UNITS = 200
BLOCK_BYTES = BLOCK_UNITS * UNIT_BYTES

Queue = tuple[str, int]  # topic, queue id
ReadUnits = Callable[[Queue, int, int], bytes]  # queue, first queue offset, count

_MAGIC = b"SHMQUNIT"
_BATCH = struct.Struct("<8sQI")
_CRC = struct.Struct("<I")
_SECTION = struct.Struct("<HIIQQQQI")
_SPARE_BYTES = 1 << 20  # outdated bytes that never make it worth to write the file anew
_READ_BLOCKS = 1024
assert sys.byteorder == "little"  # sums are written as they are in memory


@dataclass
class QueueSums:
    """The sums of one queue; `end` is the queue offset behind the last unit that they cover."""

    born: int = 0
    first_block: int = 0
    sums: array[int] = field(default_factory=lambda: array("I"))
    end: int = 0
    tail_crc: int = 0
    stale_block: int | None = None  # from here on units were changed, and have to be read again
    told_block: int | None = None  # from here on the file does not know; None: it knows all

    @property
    def block_end(self) -> int:
        """The block behind the last full one."""
        return self.first_block + len(self.sums)

    def touch(self, block: int) -> None:
        """Note that the file does not know this block any more."""
        self.told_block = block if self.told_block is None else min(self.told_block, block)

    def append(self, units: bytes | memoryview) -> None:
        """Take units that follow the last one."""
        self.touch(self.block_end)
        at, size = 0, len(units)
        while at < size:
            room = (BLOCK_UNITS - self.end % BLOCK_UNITS) * UNIT_BYTES
            piece = units[at : at + room]
            self.tail_crc = zlib.crc32(piece, self.tail_crc)
            self.end += len(piece) // UNIT_BYTES
            at += len(piece)
            if len(piece) == room:
                self.sums.append(self.tail_crc)
                self.tail_crc = 0


class UnitSums:
    """The sums of one store; one process writes them, one thread at a time."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self._path = layout.unit_sums
        self._queues: dict[Queue, QueueSums] = {}
        self._of_topic: dict[str, dict[Queue, None]] = {}  # the same queues
        self._dirty: dict[Queue, None] = {}
        self._gone: set[Queue] = set()
        self._born: dict[str, int] = {}
        self._file_bytes = 0
        self._whole_bytes = 0  # of the file when it was last written anew
        self._is_sound = False  # the file can be appended to
        self.sequence = 0
        self.floors: dict[Queue, int] = {}  # queue offsets below which some were given out, from sums not believed

    def load(self, born: dict[str, int], deleted: dict[str, int], *, sequence: int) -> bool:
        """Read the file; False when it does not say all that a mark of that sequence speaks of.

        Args:
            born: topic -> log position of its present life's begin; sums of a former life are left out. A table that is
                older than the sums is no reason to leave them out.
            deleted: topic -> log position of its deletion; likewise.
        """
        self._born = dict(born)
        try:
            content = read_plain(self._path)
        except FileNotFoundError:
            content = b""
        self._queues.clear()
        self._of_topic.clear()
        end = 0
        is_complete = True
        for at, batch_sequence, payload in _batches(content):
            is_complete &= at == end and (not end or batch_sequence == self.sequence + 1)
            self._take(payload)
            self.sequence = batch_sequence
            end = at + _BATCH.size + _CRC.size + len(payload)
        self._file_bytes = self._whole_bytes = end
        is_complete &= bool(end) and self.sequence >= sequence
        self._is_sound = is_complete and end == len(content)
        self.sequence = max(self.sequence, sequence)
        for queue, sums in list(self._queues.items()):
            if sums.born < born.get(queue[0], 0) or sums.born < deleted.get(queue[0], 0):
                self._drop(queue)
            else:
                self._born[queue[0]] = sums.born
        return is_complete

    @property
    def file_bytes(self) -> int:
        """How much of the file counts; more is there while a batch is being written."""
        return self._file_bytes

    def born(self) -> dict[str, int]:
        """Return the log position where the life of each topic begins whose units are covered."""
        return {queue[0]: sums.born for queue, sums in self._queues.items()}

    def start_anew(self) -> None:
        """Forget every sum: they have to be made from the files again."""
        self.floors = {queue: sums.end for queue, sums in self._queues.items()}
        self._queues.clear()
        self._of_topic.clear()
        self._dirty.clear()
        self._is_sound = False

    def write_anew(self) -> None:
        """Have the next batch replace the file."""
        self._is_sound = False

    def queues(self) -> list[Queue]:
        """Return every queue that has sums."""
        return sorted(self._queues)

    def of(self, queue: Queue) -> QueueSums | None:
        """Return the sums of a queue."""
        return self._queues.get(queue)

    def end(self, queue: Queue) -> int:
        """Return the queue offset behind the last unit that is covered; 0 without sums."""
        found = self._queues.get(queue)
        return found.end if found is not None else 0

    # -- what happens to the files

    def wrote(self, queue: Queue, first: int, units: bytes) -> None:
        """Note units that were written at queue offset `first`."""
        sums = self._queues.get(queue)
        if sums is None:
            sums = self._put(queue, QueueSums(self._born.get(queue[0], 0), first // BLOCK_UNITS))
            sums.touch(0)
            sums.end = first
            if first % BLOCK_UNITS:
                sums.stale_block = sums.first_block
        self._dirty[queue] = None
        if first == sums.end and sums.stale_block is None:
            sums.append(units)
            return
        block = min(first, sums.end) // BLOCK_UNITS
        if block < sums.first_block:
            sums.first_block, sums.sums = block, array("I")
        sums.stale_block = block if sums.stale_block is None else min(block, sums.stale_block)
        sums.end = max(sums.end, first + len(units) // UNIT_BYTES)

    def adopt(self, queue: Queue, first: int, end: int) -> None:
        """Take the units that are in the files for right."""
        block = first // BLOCK_UNITS
        self._put(queue, QueueSums(self._born.get(queue[0], 0), block, end=end, stale_block=block, told_block=block))
        self._dirty[queue] = None

    def cut(self, queue: Queue, end: int) -> None:
        """Note that no unit is left from queue offset `end` on."""
        sums = self._queues.get(queue)
        if sums is None or sums.end <= end:
            return
        self._dirty[queue] = None
        sums.end = end
        block = end // BLOCK_UNITS
        sums.stale_block = block if sums.stale_block is None else min(block, sums.stale_block)
        sums.first_block = min(sums.first_block, block)

    def drop_below(self, queue: Queue, first: int) -> None:
        """Note that the files begin at a queue offset now."""
        sums = self._queues.get(queue)
        if sums is None:
            return
        blocks = min(first // BLOCK_UNITS - sums.first_block, len(sums.sums))
        if blocks > 0:
            del sums.sums[:blocks]
            sums.first_block += blocks
            self._dirty[queue] = None
            sums.touch(0)

    def set_born(self, topic: str, born: int) -> None:
        """Note where the life of a topic begins whose units are in the files."""
        self._born[topic] = born
        for queue in self._of_topic.get(topic, ()):
            sums = self._queues[queue]
            if sums.born != born:
                sums.born = born
                sums.touch(0)
                self._dirty[queue] = None

    def forget_topic(self, topic: str, born: int = 0) -> None:
        """Note that every unit file of a topic is gone; a later life of it begins at log position `born`."""
        self._born[topic] = born
        for queue in list(self._of_topic.get(topic, ())):
            self._drop(queue)
            self._dirty.pop(queue, None)
            self._gone.add(queue)

    def _put(self, queue: Queue, sums: QueueSums) -> QueueSums:
        self._queues[queue] = sums
        self._of_topic.setdefault(queue[0], {})[queue] = None
        return sums

    def _drop(self, queue: Queue) -> None:
        if self._queues.pop(queue, None) is not None:
            of_topic = self._of_topic[queue[0]]
            del of_topic[queue]
            if not of_topic:
                del self._of_topic[queue[0]]

    # -- the file

    def batch(self, read: ReadUnits) -> tuple[bytes, bool]:
        """Return the bytes that bring the file up to date, and whether they replace it; empty when it is.

        The caller writes them with `store` before it asks again, or the next batch is a whole file.
        """
        for queue in self._dirty:
            self._refresh(queue, read)
        whole = not self._is_sound or self._file_bytes > 4 * self._whole_bytes + _SPARE_BYTES
        if whole:
            sections = [_section(queue, sums, sums.first_block) for queue, sums in self._queues.items()]
        else:
            gone = [_section(queue, QueueSums(), 0) for queue in self._gone - self._queues.keys()]
            sections = gone + [
                _section(queue, self._queues[queue], self._queues[queue].told_block) for queue in self._dirty
            ]
        if not sections and not whole:
            return b"", False
        for queue in self._queues if whole else self._dirty:
            self._queues[queue].told_block = None
        self._dirty.clear()
        self._gone.clear()
        self._is_sound = False  # until it is stored: a batch that never was has to be made up for
        payload = b"".join(sections)
        self.sequence += 1
        head = _BATCH.pack(_MAGIC, self.sequence, len(payload))
        return head + _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload, whole

    def store(self, batch: bytes, *, whole: bool) -> None:
        """Write and sync what `batch` returned. Raises OSError; the next batch is a whole file then."""
        if not batch:
            return
        if whole:
            access = self._layout.access
            write_atomically(self._path, batch, mode=access.read_mode, gid=access.gid)
            self._file_bytes = self._whole_bytes = len(batch)
        else:
            descriptor = open_plain(self._path, os.O_WRONLY)
            try:
                if os.fstat(descriptor).st_size < self._file_bytes:  # a batch behind a hole would be read as none
                    raise OSError(errno.EIO, f"{self._path} was truncated")
                write_whole(descriptor, batch, self._file_bytes)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            self._file_bytes += len(batch)
        self._is_sound = True

    def _refresh(self, queue: Queue, read: ReadUnits) -> None:
        """Make sums of changed units from the file."""
        sums = self._queues[queue]
        if sums.stale_block is None:
            return
        block, end = max(sums.stale_block, sums.first_block), sums.end
        sums.stale_block = None
        sums.touch(block)
        del sums.sums[block - sums.first_block :]
        sums.end, sums.tail_crc = block * BLOCK_UNITS, 0
        while sums.end < end:
            units = read(queue, sums.end, min(_READ_BLOCKS * BLOCK_UNITS, end - sums.end))
            if not units:  # a file in between is missing: its units are zero
                units = bytes(UNIT_BYTES * (min(end, sums.end + BLOCK_UNITS) - sums.end))
            sums.append(units)

    def _take(self, payload: bytes) -> None:
        at = 0
        while at < len(payload):
            topic_bytes, count, queue_id, born, lowest, first, end, tail_crc = _SECTION.unpack_from(payload, at)
            at += _SECTION.size
            topic = payload[at : at + topic_bytes].decode()
            at += topic_bytes
            told = array("I", payload[at : at + 4 * count])
            at += 4 * count
            queue = topic, queue_id
            if not is_safe_name(topic) or not end:
                self._drop(queue)
                continue
            known = self._queues.get(queue)
            if known is None or born != known.born or not known.first_block <= first <= known.block_end:
                known = self._put(queue, QueueSums(born, first))
            del known.sums[first - known.first_block :]
            known.sums += told
            del known.sums[: max(0, lowest - known.first_block)]
            known.first_block = max(known.first_block, lowest)
            known.end, known.tail_crc = end, tail_crc


def _section(queue: Queue, sums: QueueSums, told_block: int | None) -> bytes:
    topic = queue[0].encode()
    first = sums.block_end if told_block is None else max(told_block, sums.first_block)
    told = sums.sums[first - sums.first_block :]
    head = _SECTION.pack(len(topic), len(told), queue[1], sums.born, sums.first_block, first, sums.end, sums.tail_crc)
    return head + topic + told.tobytes()


def _batches(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The sound batches of the file: where each one begins, its sequence and payload."""
    at = content.find(_MAGIC)
    while at >= 0:
        head = content[at : at + _BATCH.size + _CRC.size]
        if len(head) == _BATCH.size + _CRC.size:
            _, sequence, size = _BATCH.unpack_from(head)
            payload = content[at + len(head) : at + len(head) + size]
            if zlib.crc32(payload, zlib.crc32(head[: _BATCH.size])) == _CRC.unpack_from(head, _BATCH.size)[0]:
                yield at, sequence, payload
                at += len(head) + size - 1
        at = content.find(_MAGIC, at + 1)
