"""The entry of one archived file: the messages of the queue that it holds, and sums over them. Pure data.

    start <= offsets in the file < end       the entries of a batch cover each queue without a gap
    rows < end - start                       only if messages were gone, or a selection left them out

Entries travel as JSON: from executors to the driver as rows, from the driver to the commit of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from shmq.errors import CorruptionError


class QueueKey(NamedTuple):
    """One queue of one topic, which was made at a log position: made anew, it is another one."""

    topic: str
    broker: str
    queue_id: int
    born_position: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}@{self.born_position}"


@dataclass(frozen=True)
class Entry:
    """One file, or with an empty path a stretch of a queue without a message. Offsets count messages, times are ms."""

    topic: str
    broker: str
    queue_id: int
    born_position: int
    start: int
    end: int
    path: str = ""  # below the archive
    rows: int = 0
    file_bytes: int = 0
    body_bytes: int = 0
    crc_xor: int = 0  # of the messages' body CRCs
    crc_sum: int = 0
    stored_min_ms: int = 0
    stored_max_ms: int = 0
    partition: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> QueueKey:
        """The queue it is of."""
        return QueueKey(self.topic, self.broker, self.queue_id, self.born_position)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


_NAMES = {each.name: each.type for each in fields(Entry)}


def entry_of(data: Any) -> Entry:
    """Read an entry.

    Raises:
        CorruptionError: it is none.
    """
    if not isinstance(data, dict) or not data.keys() <= _NAMES.keys():
        raise CorruptionError("archive", 0, f"an entry is {data!r}")
    try:
        found = Entry(**data)
        sane = 0 <= found.start <= found.end and found.rows >= 0 and found.file_bytes >= 0
    except TypeError as error:
        raise CorruptionError("archive", 0, f"an entry is damaged: {error}") from None
    if not sane or ".." in found.path.split("/") or found.path.startswith("/"):
        raise CorruptionError("archive", 0, f"an entry is {data!r}")
    return found


def entries_of(lines: Iterable[str]) -> list[Entry]:
    """Return the entries of JSON texts, by queue and offset."""
    return in_order(entry_of(json.loads(line)) for line in lines)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries by queue and offset."""
    return sorted(entries, key=lambda each: (each.key, each.start, each.end))
