"""Proves the index files against the log: every key of every record, every entry, every chain.

Entries lie in the files in the order of the log, so one pass over both compares them.

    a record with keys below `indexed`      has one entry for each of them
    an entry at or behind the log's begin   names a record that has a key of this hash
    an entry's predecessor                  is the entry that its slot named before
    a slot                                  names the newest entry of its chain

Behind `indexed` the keeper has not said that it is done; the next start goes on from there.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from shmq.errors import ShmqError
from shmq.shm.core import index_hash
from shmq.store.index import IndexFile, IndexFiles
from shmq.store.layout import StoreLayout
from shmq.store.proof.findings import Damages, Findings
from shmq.store.proof.record import StoredRecord

_HEAD_BYTES = 40
_SLOT_BYTES = 4
_ENTRY = struct.Struct(">IqiI")


class _Entry(NamedTuple):
    file: str
    number: int
    hash_code: int
    position: int


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

    def __init__(self, layout: StoreLayout, findings: Findings, *, log_begin: int, indexed: int) -> None:
        self._files = IndexFiles(layout)
        self._findings = findings
        self._log_begin = log_begin
        self._indexed = indexed
        self._entries = self._walk()
        self._next: _Entry | None = next(self._entries, None)
        self._missing = _Missing()
        self._stray: list[_Entry] = []
        self.entries = 0

    def add(self, record: StoredRecord) -> None:
        """Take the next whole record of the log."""
        found: Counter[int] = Counter()
        while self._next is not None and self._next.position <= record.position:
            if self._next.position == record.position:
                found[self._next.hash_code] += 1
            elif self._next.position >= self._log_begin:
                self._stray.append(self._next)
            self.entries += 1
            self._next = next(self._entries, None)
        if record.position >= self._indexed:
            return
        try:
            wanted = Counter(index_hash(record.topic, key) for key in record.keys)
        except UnicodeError:
            return
        if found != wanted:
            self._missing.begin = self._missing.begin if self._missing.records else record.position
            self._missing.last = record.position
            self._missing.records += 1
        elif wanted:
            self._tell_missing()

    def finish(self, log_end: int, damages: Damages) -> None:
        """Say what is left over."""
        self._tell_missing()
        for entry in self._stray:
            if not damages.holds(entry.position):
                self._tell_entry(entry, "where no record begins")
        while self._next is not None:
            if log_end <= self._next.position < self._indexed:
                self._tell_entry(self._next, f"and the log ends at byte {log_end}")
                return  # every one behind it does the same
            self._next = next(self._entries, None)

    def _tell_entry(self, entry: _Entry, reason: str) -> None:
        where = f"index/{entry.file} entry {entry.number}"
        self._findings.add("index", where, f"the entry names byte {entry.position}, {reason}")

    def _tell_missing(self) -> None:
        missing, self._missing = self._missing, _Missing()
        if missing.records == 1:
            self._findings.add("index", f"byte {missing.begin}", "the entries are not the keys of this record")
        elif missing.records:
            where = f"bytes {missing.begin} to {missing.last}"
            self._findings.add("index", where, f"the entries are not the keys of these {missing.records} records")

    def _walk(self) -> Iterator[_Entry]:
        """Every entry of every file, the oldest first; what is wrong with a file itself is told."""
        for name in self._files.names():
            try:
                file = self._files.open(name)
            except FileNotFoundError:
                continue
            except (OSError, ShmqError) as error:
                self._findings.add("index", f"index/{name}", str(error))
                continue
            try:
                yield from self._walk_file(file)
            except ShmqError as error:
                self._findings.add("index", f"index/{name}", str(error))
            finally:
                file.close()

    def _walk_file(self, file: IndexFile) -> Iterator[_Entry]:
        slots = file.shape.slots
        newest = array("I", bytes(_SLOT_BYTES * slots))
        number, reached = 1, self._log_begin
        while number < (end := file.head().next_entry):  # which grows while a broker runs
            at = file.shape.entries_at + number * _ENTRY.size
            for hash_code, position, _, previous in _ENTRY.iter_unpack(
                file.data[at : file.shape.entries_at + end * _ENTRY.size]
            ):
                slot = hash_code % slots
                where = f"index/{file.name} entry {number}"
                if previous != newest[slot]:
                    reason = f"the entry goes on with entry {previous}, the one before it is {newest[slot]}"
                    self._findings.add("index", where, reason)
                newest[slot] = number
                if position < reached and position >= self._log_begin:
                    self._findings.add("index", where, f"the entry names byte {position}, the one before it {reached}")
                else:
                    reached = max(reached, position)
                    yield _Entry(file.name, number, hash_code, position)
                number += 1
        if file.head().end_position < self._indexed:
            self._prove_slots(file, newest, number)

    def _prove_slots(self, file: IndexFile, newest: array[int], end: int) -> None:
        found = array("I", file.data[_HEAD_BYTES : _HEAD_BYTES + _SLOT_BYTES * len(newest)])
        found.byteswap()
        if found == newest:
            return
        wrong = [at for at in range(len(newest)) if found[at] != newest[at] and found[at] < end]
        for slot in wrong[:1]:
            reason = f"the slot names entry {found[slot]}, its newest is {newest[slot]}; {len(wrong)} slots are wrong"
            self._findings.add("index", f"index/{file.name} slot {slot}", reason)
