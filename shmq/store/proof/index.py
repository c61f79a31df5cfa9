"""Proves the index files against the log: every key of every record, and every entry.

Entries lie in the files in the order of the log, so one pass over both compares them: as bytes, and where these differ
record by record. `index_entries.py` has the entries, and proves their chains.

    a record with keys below `indexed`      has one entry for each of them
    an entry at or behind the log's begin   names a record that has a key of this hash

Behind `indexed` the keeper has not said that it is done; the next start goes on from there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from shmq.shm.core import RecordBatch, index_hash
from shmq.shm.unit import log_positions_of
from shmq.store.index.files import IndexFiles, IndexShape
from shmq.store.layout import StoreLayout
from shmq.store.proof.findings import Damages, Findings
from shmq.store.proof.index_entries import KEY, Entries, Entry, IndexEntries
from shmq.store.proof.record import WalkedRecord


@dataclass
class _Missing:
    """Records that follow each other and are not in the index as they should be."""

    begin: int = 0
    last: int = 0
    records: int = 0


class IndexProof:
    """One pass.

    Args:
        indexed: log position below which every key has to be found.
    """

    def __init__(
        self, layout: StoreLayout, findings: Findings, *, log_begin: int, indexed: int, shape: IndexShape | None = None
    ) -> None:
        self._findings = findings
        self._log_begin = log_begin
        self._indexed = indexed
        self._entries = IndexEntries(IndexFiles(layout, shape), findings, log_begin=log_begin, indexed=indexed)
        self._end = log_begin  # of the records that were taken
        self._missing = _Missing()
        self._stray: list[Entry] = []
        self.entries = 0

    def add(self, record: WalkedRecord) -> None:
        """Take the next whole record of the log."""
        try:
            keys = b"".join(KEY.pack(index_hash(record.topic, key), record.position) for key in record.keys)
        except UnicodeError:
            keys = b""
        self._take(record.position + 1, keys, lambda: {record.position})

    def add_batch(self, batch: RecordBatch) -> None:
        """Take the next whole records of the log, with their keys."""

        def positions() -> set[int]:
            found = {position for position, _ in batch.watched}
            return found.union(*(log_positions_of(run.units) for run in batch.runs))

        self._take(batch.position, batch.keys, positions)

    def finish(self, log_end: int, damages: Damages) -> None:
        """Say what is left over."""
        self._tell_missing()
        for entry in self._stray:
            if not damages.holds(entry.position):
                self._tell_entry(entry, "where no record begins")
        for entries in self._entries.before():
            for entry in entries:
                if log_end <= entry.position < self._indexed:
                    self._tell_entry(entry, f"and the log ends at byte {log_end}")
                    self._entries.close()
                    return  # every one behind it does the same
        self._entries.close()

    def _take(self, end: int, keys: bytes, positions: Callable[[], set[int]]) -> None:
        """Compare the keys of records below `end` with the entries there are of them."""
        begin, self._end = self._end, end
        entries = list(self._entries.before(end))
        found = b"".join(part.keys for part in entries)
        self.entries += len(found) // KEY.size
        if begin >= self._indexed and found in (keys, b""):
            return
        if found != keys or end > self._indexed:
            self._take_each(keys, entries, positions())
        elif keys:
            self._tell_missing()

    def _take_each(self, keys: bytes, parts: list[Entries], positions: set[int]) -> None:
        wanted: dict[int, Counter[int]] = {}
        found: dict[int, Counter[int]] = {}
        for hash_code, position in KEY.iter_unpack(keys):
            wanted.setdefault(position, Counter())[hash_code] += 1
        for entry in (entry for part in parts for entry in part):
            if entry.position in positions:
                found.setdefault(entry.position, Counter())[entry.hash_code] += 1
            elif entry.position >= self._log_begin:
                self._stray.append(entry)
        for position in sorted(wanted.keys() | found.keys()):
            if position >= self._indexed:
                return
            if found.get(position) != wanted.get(position):
                self._missing.begin = self._missing.begin if self._missing.records else position
                self._missing.last = position
                self._missing.records += 1
            else:
                self._tell_missing()

    def _tell_entry(self, entry: Entry, reason: str) -> None:
        where = f"index/{entry.file} entry {entry.number}"
        self._findings.add("index", where, f"the entry names byte {entry.position}, {reason}")

    def _tell_missing(self) -> None:
        missing, self._missing = self._missing, _Missing()
        if missing.records == 1:
            self._findings.add("index", f"byte {missing.begin}", "the entries are not the keys of this record")
        elif missing.records:
            where = f"bytes {missing.begin} to {missing.last}"
            self._findings.add("index", where, f"the entries are not the keys of these {missing.records} records")
