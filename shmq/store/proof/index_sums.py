"""Proves the index files against their checksums.

    a file up to the mark    has sums, and they hold
    sums up to the mark      have a file

A file behind the mark is being filled, or was when the broker ended; the next start throws it away.
"""

from __future__ import annotations

from shmq.errors import CorruptionError, ShmqError
from shmq.store.index.files import IndexFiles, IndexShape
from shmq.store.index.mark import IndexMark, read_index_mark
from shmq.store.index.sums import IndexSums
from shmq.store.layout import StoreLayout
from shmq.store.proof.findings import Findings


def prove_index_sums(layout: StoreLayout, findings: Findings, *, shape: IndexShape | None = None) -> None:
    """Compare every file that the mark covers with its sums. Raises OSError."""
    files, sums = IndexFiles(layout, shape), IndexSums(layout)
    mark = read_index_mark(layout) or IndexMark()
    for name in sorted({*files.names(), *sums.names()}):
        reason = _fault(files, sums, name) if name <= mark.last else ""
        if reason and (read_index_mark(layout) or IndexMark()).last == mark.last:  # no broker writes to it meanwhile
            findings.add("index", f"index/{name}", reason)


def _fault(files: IndexFiles, sums: IndexSums, name: str) -> str:
    try:
        found = sums.load(name)
        if found is None:
            return "its checksums are missing"
        file = files.open(name)
    except CorruptionError as error:
        return error.reason
    except FileNotFoundError:
        return "the file is missing, and its checksums are there"
    except ShmqError as error:
        return str(error)
    try:
        if found.next_entry != file.head().next_entry:
            return f"its checksums speak of {found.next_entry - 1} entries"
        block = found.wrong_block(file)
        return "" if block is None else f"the checksum of its block {block} does not hold"
    except ShmqError as error:
        return str(error)
    finally:
        file.close()
