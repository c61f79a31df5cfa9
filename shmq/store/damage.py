"""Walking the log after a crash: where it ends, and what inside it cannot be read any more.

Records are handed on in log order, damage between them.

    the hole of an evicted claim                           stepped over, nothing is missing
    a bad record         below the durable mark            damage: reported, stepped over, never cut off
                         at or above the durable mark      torn tail: the log ends there
                         no mark (a stock store)           damage if a valid record follows anywhere, else torn tail

Rules: (1) a position is a record's only if the core accepts every length, both CRCs and the position stored in it;
(2) nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shmq.errors import CorruptionError
from shmq.record import HOLE_TOPIC, MAGIC_BYTES, RECORD_BYTES_MAX, record_starts
from shmq.shm.core import CoreError, ScannedRecord, Store, record_decode
from shmq.store.commitlog import CommitLogFiles

SCAN_RECORDS = 4096
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True)
class Damage:
    """A range of the log that holds no readable record."""

    position: int
    end: int
    reason: str


class LogWalk:
    """One pass over the log.

    Args:
        durable_end: every byte below it was on disk; None when no mark says so.
        on_records: told every batch of records, in order.
        on_damage: told every unreadable range, in order with the records.
    """

    def __init__(
        self,
        store: Store,
        files: CommitLogFiles,
        *,
        durable_end: int | None,
        on_records: Callable[[list[ScannedRecord]], None],
        on_damage: Callable[[Damage], None],
    ) -> None:
        self._store = store
        self._files = files
        self._durable_end = durable_end
        self._on_records = on_records
        self._on_damage = on_damage

    def run(self, position: int) -> int:
        """Walk from a record border to the end of the log and return where that is."""
        while position < self._files.end:
            reached, records, stop = self._scan(position)
            if records:
                self._on_records(records)
            if stop == "blank-end":
                return reached
            if stop:
                after = self._hole_end(reached) or self._step_over(reached, stop)
                if after is None:
                    return max(reached, self._durable_end or 0)
                reached = after
            elif reached <= position:
                raise CorruptionError(self._files.path(position), position, "the log could not be walked any further")
            position = reached
        return position

    def _scan(self, position: int) -> tuple[int, list[ScannedRecord], str]:
        """As Store.scan, and no record that lost the end of its properties, and with it its record CRC."""
        reached, records, stop = self._store.scan(position, self._files.end, SCAN_RECORDS)
        last = self._files.bytes_at([record.log_position + record.record_bytes - 1 for record in records])
        index = last.find(0)
        while index >= 0:
            damaged = records[index]
            begin = damaged.log_position
            if record_decode(self._files.read(begin, damaged.record_bytes))["properties"]:
                return begin, records[:index], "corrupt: the properties end with a zero byte"
            index = last.find(0, index + 1)  # a stock record without properties
        return reached, records, stop

    def _hole_end(self, position: int) -> int | None:
        """Where the hole of an evicted claim ends that its owner did not settle, so that its body CRC is wrong."""
        try:
            hole = record_decode(self._files.read(position, RECORD_BYTES_MAX))
        except CoreError:
            return None
        if hole["log_position"] != position or hole["topic"] != HOLE_TOPIC:
            return None
        return position + int(hole["record_bytes"])

    def _step_over(self, bad: int, reason: str) -> int | None:
        """The next readable record behind a bad one, or None when the log ends."""
        durable_end = self._durable_end
        if durable_end is not None and bad >= durable_end:
            return None
        after = self.next_record(bad)
        if durable_end is None:
            if after is None:
                return None
            end = after
        else:
            # What follows above the mark is a torn tail, even if a record in it happens to be whole.
            end = durable_end if after is None or after > durable_end else after
        self._on_damage(Damage(bad, end, reason))
        return end if end == after else None

    def next_record(self, bad: int) -> int | None:
        """Return the position of the first valid record behind `bad`, or None."""
        at = bad + 1
        while at < self._files.end:
            for begin, size in self._files.data_ranges(at):
                for candidate in self._candidates(begin, begin + size):
                    if candidate > bad and self._is_record(candidate):
                        return candidate
            at += self._files.file_bytes - at % self._files.file_bytes
        return None

    def _candidates(self, begin: int, end: int) -> Iterator[int]:
        """Positions in a range where a record could begin, judged by the magic alone; ascending within each part."""
        for at in range(begin, end, _SEARCH_BYTES):
            # A magic that begins in this part may end behind it.
            chunk = self._files.read(at, min(_SEARCH_BYTES + MAGIC_BYTES - 1, end - at))
            yield from (at + start for start in record_starts(chunk))

    def _is_record(self, position: int) -> bool:
        _, records, _ = self._store.scan(position, self._files.end, 1)
        return bool(records) and records[0].log_position == position
