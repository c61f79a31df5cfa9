"""How far the index is complete and on disk: the file that lets a start begin where the index ends.

RocketMQ's own sign, the index time of `checkpoint`, says which files are whole, but not how much of the log behind them
holds no keys at all.

    <root>/shmq.index    {"indexed": log position, "last": name of the newest index file below it, or ""}

Rule: it is written after the sync it speaks of, and taken back before the file it speaks of is written to again.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from shmq.errors import StoreError
from shmq.store.atomic import write_atomically
from shmq.store.layout import StoreLayout


class IndexMark(NamedTuple):
    """Every key below `indexed` is in the files up to `last`, synced."""

    indexed: int = 0
    last: str = ""


def read_index_mark(layout: StoreLayout) -> IndexMark | None:
    """Return the mark; None when there is none or it is unreadable, which only costs a longer walk."""
    try:
        data = json.loads(layout.index_mark.read_bytes())
    except (OSError, ValueError):
        return None
    indexed, last = (data.get("indexed"), data.get("last")) if isinstance(data, dict) else (None, None)
    if type(indexed) is not int or indexed < 0 or not isinstance(last, str):
        return None
    return IndexMark(indexed, last)


def write_index_mark(layout: StoreLayout, mark: IndexMark) -> None:
    """Replace the mark.

    Raises:
        StoreError: the disk refused.
    """
    content = json.dumps({"indexed": mark.indexed, "last": mark.last}).encode()
    try:
        write_atomically(layout.index_mark, content, mode=layout.access.read_mode, gid=layout.access.gid)
    except OSError as error:
        raise StoreError(f"{layout.index_mark} cannot be written: {error.strerror}") from error
