"""The entries of all index files, in their order; each chain and each slot is proven on the way.

    an entry's predecessor    is the entry that its slot named before
    a slot                    names the newest entry of its chain
    an entry                  names no older record than the one before it

The core goes over entries that are as they must be, a million with one call; others are noted and stepped over here.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from shmq.errors import ShmqError
from shmq.shm.core import index_walk
from shmq.store.index.files import IndexFile, IndexFiles
from shmq.store.proof.findings import Findings

KEY = struct.Struct(">Iq")  # how an entry begins: hash and log position
_HEAD_BYTES = 40
_SLOT_BYTES = 4
_ENTRY = struct.Struct(">IqiI")
_ALL_WELL, _BAD_CHAIN = 0, 1  # enum shmq_index_walked
_EVERYTHING = (1 << 64) - 1


class Entry(NamedTuple):
    """One entry; `number` counts those of its file from 1."""

    file: str
    number: int
    hash_code: int
    position: int


@dataclass(frozen=True)
class Entries:
    """Entries of one file whose numbers follow each other."""

    file: str
    first: int
    keys: bytes

    def __iter__(self) -> Iterator[Entry]:
        for index, (hash_code, position) in enumerate(KEY.iter_unpack(self.keys)):
            yield Entry(self.file, self.first + index, hash_code, position)


class IndexEntries:
    """One pass over the entries of a store.

    Args:
        log_begin: entries of records below it are in no order any more.
        indexed: log position below which every slot has to be right.
    """

    def __init__(self, files: IndexFiles, findings: Findings, *, log_begin: int, indexed: int) -> None:
        self._files = files
        self._findings = findings
        self._log_begin = log_begin
        self._indexed = indexed
        self._names = iter(files.names())
        self._file: IndexFile | None = None
        self._newest = array("I")
        self._number = 1
        self._reached = 0

    def before(self, position: int = _EVERYTHING) -> Iterator[Entries]:
        """Yield the next entries of records below a log position."""
        while self._file is not None or self._open_next():
            file = self._file
            assert file is not None
            try:
                end = file.head().next_entry  # which grows while a broker runs
                while self._number < end:
                    first = self._number
                    walked = self._walk(file, end, position)
                    if walked:
                        yield Entries(file.name, first, walked)
                    elif self._number == first:
                        return
                self._prove_slots(file)
            except ShmqError as error:
                self._findings.add("index", f"index/{file.name}", str(error))
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_next(self) -> bool:
        for name in self._names:
            try:
                self._file = self._files.open(name)
            except FileNotFoundError:
                continue
            except (OSError, ShmqError) as error:
                self._findings.add("index", f"index/{name}", str(error))
                continue
            self._ask_for(self._file)
            self._newest = array("I", bytes(_SLOT_BYTES * self._file.shape.slots))
            self._number, self._reached = 1, self._log_begin
            return True
        return False

    def _ask_for(self, file: IndexFile) -> None:
        """Let the kernel read the file beside the work: slots and entries are gone through from begin to end."""
        file.data.madvise(mmap.MADV_NORMAL)
        with suppress(ShmqError):  # an impossible head is reported where it is used
            file.data.madvise(mmap.MADV_WILLNEED, 0, file.shape.entries_at + file.head().next_entry * _ENTRY.size)

    def _walk(self, file: IndexFile, end: int, until: int) -> bytes:
        """Go on; the keys of what was passed, none when it is `until`'s turn, or behind an entry that is wrong."""
        slots = file.shape.slots
        self._number, fault, self._reached, keys = index_walk(
            file.data, slots, file.shape.entries, self._newest, self._number, end, until, self._log_begin, self._reached
        )
        if fault != _ALL_WELL and not keys:
            return self._step_over(file)
        return keys

    def _step_over(self, file: IndexFile) -> bytes:
        """Say what is wrong with the next entry; its key, if it is in the order of the log."""
        at = file.shape.entries_at + self._number * _ENTRY.size
        hash_code, position, _, previous = _ENTRY.unpack_from(file.data, at)
        slot = hash_code % file.shape.slots
        where = f"index/{file.name} entry {self._number}"
        if previous != self._newest[slot]:
            reason = f"the entry goes on with entry {previous}, the one before it is {self._newest[slot]}"
            self._findings.add("index", where, reason)
        self._newest[slot] = self._number
        self._number += 1
        if self._log_begin <= position < self._reached:
            self._findings.add("index", where, f"the entry names byte {position}, the one before it {self._reached}")
            return b""
        self._reached = max(self._reached, position)
        return KEY.pack(hash_code, position)

    def _prove_slots(self, file: IndexFile) -> None:
        if file.head().end_position >= self._indexed:
            return
        newest = self._newest
        found = array("I", file.data[_HEAD_BYTES : _HEAD_BYTES + _SLOT_BYTES * len(newest)])
        found.byteswap()
        if found == newest:
            return
        wrong = [at for at in range(len(newest)) if found[at] != newest[at] and found[at] < self._number]
        for slot in wrong[:1]:
            reason = f"the slot names entry {found[slot]}, its newest is {newest[slot]}; {len(wrong)} slots are wrong"
            self._findings.add("index", f"index/{file.name} slot {slot}", reason)
