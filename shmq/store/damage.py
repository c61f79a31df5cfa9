"""Walking the log after a crash: where it ends, and what inside it cannot be read any more.

Records are handed on in log order, damage between them.

    the hole of an evicted claim                           stepped over, nothing is missing
    a bad record         a whole record follows anywhere   damage: reported, stepped over, never cut off
                         none, below the durable mark      damage up to the mark, where the log ends
                         none, above it or without one     torn tail: the log ends there

The mark lags behind the last sync, so a whole record behind a bad one may have been acknowledged wherever it lies. It
is none that an earlier life of these blocks left there: files are never used again, the tail behind an end that was
chosen holds no whole record and is zeroed, and a record may not name a queue offset that its queue has passed.

The core walks over what is whole, thousands of records a call, and stops in front of the first thing that is not: what
that means is decided here.

Rules: (1) a position is a record's only if the core accepts every length, both CRCs and the position stored in it;
(2) a bad record whose lengths agree is stepped over as a whole, so that a record inside a message's body is never taken
for one of the log; (3) nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shmq.errors import CorruptionError
from shmq.record import HOLE_TOPIC, LENGTH_BYTES, MAGIC_BYTES, RECORD_BYTES_MAX, record_bytes_at, record_starts
from shmq.shm.core import CoreError, KeeperStore, RecordBatch, ScannedRecord, record_decode
from shmq.store.commitlog import AHEAD_BYTES, CommitLogFiles

SCAN_RECORDS = 1 << 16
_SEARCH_BYTES = 1 << 20


class DamagedRecord(NamedTuple):
    """The fields of a record whose lengths and position agree and whose CRC does not: any one field may be wrong."""

    topic: bytes
    queue_id: int
    queue_offset: int
    record_bytes: int


@dataclass(frozen=True)
class Damage:
    """A range of the log that holds no readable record; one record, if that much can still be seen."""

    position: int
    end: int
    reason: str
    record: DamagedRecord | None = field(default=None, compare=False)


class LogWalk:
    """One pass over the log.

    Args:
        durable_end: every byte below it was on disk; None when no mark says so.
        log_end: a record border where the walk ends at the latest; None: the end of the files.
        on_records: gets every batch of records, in order; None: they are only checked.
        on_damage: gets every unreadable range, in order with the records.
        is_plausible: asked about the first record behind damage, whether it can be of this log.
        watched: topics of whose records the store times are wanted.
    """

    def __init__(
        self,
        keeper_store: KeeperStore,
        files: CommitLogFiles,
        *,
        durable_end: int | None,
        log_end: int | None = None,
        on_records: Callable[[RecordBatch], None] | None,
        on_damage: Callable[[Damage], None],
        is_plausible: Callable[[ScannedRecord], bool] = lambda _: True,
        watched: tuple[bytes, ...] = (),
    ) -> None:
        self._keeper_store = keeper_store
        self._files = files
        self._durable_end = durable_end
        self._end = files.end if log_end is None else log_end
        self._on_records = on_records
        self._on_damage = on_damage
        self._is_plausible = is_plausible
        self._watched = None if on_records is None else watched

    def run(self, position: int) -> int:
        """Walk from a record border to the end of the log and return where that is."""
        is_end, asked, known_end = False, position, min(self._durable_end or 0, self._end)
        while not is_end and position < self._end:
            if asked < known_end and asked - position < AHEAD_BYTES // 2:
                asked = self._files.will_need(max(asked, position), known_end)
            position, is_end = self.step(position)
        return position

    def step(self, position: int, records_max: int = SCAN_RECORDS) -> tuple[int, bool]:
        """Walk over some records, or over one thing that is none; where that led, and whether the log ends there."""
        batch = self._keeper_store.scan_batch(position, self._end, records_max, self._watched)
        reached, stop = batch.position, batch.stop
        if batch.records and self._on_records is not None:
            self._on_records(batch)
        if stop == "blank-end":
            return reached, True
        if stop:
            after = self._hole_end(reached) or self._step_over(reached, stop)
            return (max(reached, self._durable_end or 0), True) if after is None else (after, False)
        if reached <= position:
            raise CorruptionError(self._files.path(position), position, "the log could not be walked any further")
        return reached, False

    def _hole_end(self, position: int) -> int | None:
        """The end of an evicted claim's hole that its owner did not settle, so that its body CRC is wrong."""
        hole = self._decoded(position)
        return position + int(hole["record_bytes"]) if hole is not None and hole["topic"] == HOLE_TOPIC else None

    def _step_over(self, bad: int, reason: str) -> int | None:
        """The next readable record behind a bad one, or None when the log ends."""
        after = self.next_record(bad)
        if after is not None:
            for damage in self._split(bad, after, reason):
                self._on_damage(damage)
        elif self._durable_end is not None and bad < self._durable_end:
            self._on_damage(Damage(bad, self._durable_end, reason))
        return after

    def next_record(self, bad: int) -> int | None:
        """Return where the log goes on behind `bad`, with a whole record or a file's blank end; None: nowhere."""
        at = self._behind_agreeing(bad)
        if at != bad and self._is_whole(at):
            return at
        at = max(at, bad + 1)
        while at < self._end:
            for begin, size in self._files.data_ranges(at):
                for candidate in self._candidates(begin, begin + size):
                    if at <= candidate < self._end and self._is_whole(candidate):
                        return candidate
            at += self._files.file_bytes - at % self._files.file_bytes
        return None

    def _split(self, position: int, end: int, reason: str) -> Iterator[Damage]:
        """The damage of a range, record by record as long as their lengths agree."""
        while position < end:
            found = self._decoded(position)
            behind = end if found is None else position + int(found["record_bytes"])
            if found is None or behind > end:
                yield Damage(position, end, reason)
                return
            record = DamagedRecord(found["topic"], found["queue_id"], found["queue_offset"], int(found["record_bytes"]))
            yield Damage(position, behind, reason, record)
            position = behind

    def _behind_agreeing(self, bad: int) -> int:
        """Step over bad records whose lengths agree and that name their own position."""
        at = bad
        while at < self._end and (at == bad or not self._is_whole(at)):
            record = self._decoded(at)
            if record is None:
                break
            at += int(record["record_bytes"])
        return at

    def _decoded(self, position: int) -> dict[str, Any] | None:
        """The fields of a record that names this position, whatever its CRCs say; None when there is none."""
        size = record_bytes_at(self._files.read(position, LENGTH_BYTES).ljust(LENGTH_BYTES, b"\0"), 0)
        try:
            record: dict[str, Any] = record_decode(self._files.read(position, min(size, RECORD_BYTES_MAX)))
        except CoreError:
            return None
        return record if record["log_position"] == position else None

    def _candidates(self, begin: int, end: int) -> Iterator[int]:
        """Positions in a range where a record could begin, judged by the magic alone; ascending within each part."""
        for at in range(begin, end, _SEARCH_BYTES):
            # A magic that begins in this part may end behind it.
            chunk = self._files.read(at, min(_SEARCH_BYTES + MAGIC_BYTES - 1, end - at))
            yield from (at + start for start in record_starts(chunk))

    def _is_whole(self, position: int) -> bool:
        """Whether the log can go on here; behind a file's blank end the next file is not looked at."""
        reached, records, _ = self._keeper_store.scan(position, self._end, 1)
        if records and records[0].log_position == position:
            return self._is_plausible(records[0])
        return reached > position
