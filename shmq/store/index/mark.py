"""The mark up to which the index is complete and on disk: a start goes on from there.

The sums of the files (sums.py) say what is right in them, but not how much of the log behind them holds no keys.

    <root>/shmq.index    {"indexed": log position, "last": name of the newest index file below it, or ""}, sealed

Rule: it is written after the sync it speaks of, and taken back before the file it speaks of is written to again.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from shmq.errors import CorruptionError, StoreError
from shmq.plain_file import read_plain
from shmq.store.atomic import write_atomically
from shmq.store.layout import StoreLayout
from shmq.store.seal import sealed, unsealed


class IndexMark(NamedTuple):
    """Every key below `indexed` is in the files up to `last`, synced."""

    indexed: int = 0
    last: str = ""


def load_index_mark(layout: StoreLayout) -> IndexMark | None:
    """Return the mark; None when there is none.

    Raises:
        CorruptionError: it cannot be believed.
    """
    try:
        data = unsealed(read_plain(layout.index_mark))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptionError(layout.index_mark, 0, f"the mark of the index cannot be read: {error}") from error
    indexed, last = data.get("indexed"), data.get("last")
    if type(indexed) is not int or indexed < 0 or not isinstance(last, str):
        raise CorruptionError(layout.index_mark, 0, "the mark of the index says no log position")
    return IndexMark(indexed, last)


def read_index_mark(layout: StoreLayout) -> IndexMark | None:
    """Return the mark; None when there is none or it is unreadable, which only costs a longer walk."""
    try:
        return load_index_mark(layout)
    except CorruptionError:
        return None


def write_index_mark(layout: StoreLayout, mark: IndexMark) -> None:
    """Replace the mark.

    Raises:
        StoreError: the disk refused.
    """
    content = sealed(json.dumps({"indexed": mark.indexed, "last": mark.last}).encode())
    try:
        write_atomically(layout.index_mark, content, mode=layout.access.read_mode, gid=layout.access.gid)
    except OSError as error:
        raise StoreError(f"{layout.index_mark} cannot be written: {error.strerror}") from error
