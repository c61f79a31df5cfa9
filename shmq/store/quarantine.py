"""Copies of damaged records, kept for people to look at: `<root>/quarantine/`.

    <20 digits>.record    the bytes as they were in the log at that position
    <20 digits>.json      which message it was: topic, queue id, queue offset, log position, bytes, how many messages
                          lay there

The operator removes a copy after dealing with it; `shmq health` counts those that are there.

Rules: (1) at most RECORDS_MAX copies and BYTES_MAX bytes are kept: the oldest damage tells most, so later copies are
refused; (2) a copy whose facts are missing, or shorter than they say, was not finished.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shmq.plain_file import read_plain, write_whole
from shmq.shm.access import Access
from shmq.store.layout import StoreLayout

RECORDS_MAX = 1000
BYTES_MAX = 64 << 20
_RECORD, _FACTS = ".record", ".json"


class Quarantine:
    """The copies of one store."""

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout

    def add(self, position: int, record: bytes, facts: dict[str, Any]) -> bool:
        """Keep a copy; False when it is there already, or there is no room for it. Raises OSError."""
        directory = self._layout.quarantine
        self._layout.make_directory(directory)
        copy = directory / f"{position:020d}{_RECORD}"
        sizes = [entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(_RECORD)]
        if copy.exists() or len(sizes) >= RECORDS_MAX or sum(sizes) + len(record) > BYTES_MAX:
            return False
        for path, content in ((copy.with_suffix(_FACTS), json.dumps(facts).encode()), (copy, record)):
            with self._layout.new_file(path, self._layout.access.read_mode) as descriptor:
                write_whole(descriptor, content, 0)
        return True


def count_quarantined(root: Path) -> int:
    """Return how many messages lay where the copies of a store are from; 0 when they cannot be listed."""
    directory = StoreLayout(root, Access(-1)).quarantine
    try:
        return sum(_messages(directory / name) for name in os.listdir(directory) if name.endswith(_RECORD))
    except OSError:
        return 0


def _messages(copy: Path) -> int:
    try:
        return int(json.loads(read_plain(copy.with_suffix(_FACTS)))["messages"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1
