"""The interface of an archive: how far each queue is in it, and entries that get in together or not at all.

    entries of a batch ─▶ accepted(): new, or in already, or refused ─▶ DeltaArchive.commit: one atomic step

Rules: (1) the archive itself knows where each queue ends, so Spark's checkpoint is a convenience: lost, behind or
ahead, no message is lost or doubled; (2) an entry begins where its queue ends in the archive. What is in already is
dropped, a hole is refused unless messages may be lost, and then it is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shmq.errors import OffsetOutOfRange, UsageError
from shmq.spark.jobs.table.entry import Entry, QueueKey, in_order
from shmq.spark.schema import refused


@dataclass(frozen=True)
class Gap:
    """Offsets [start, end) of a queue that were gone when they should have been archived."""

    key: QueueKey
    start: int
    end: int


@dataclass(frozen=True)
class Commit:
    """The content of one step."""

    query: str  # Spark's id of the streaming query
    batch: int
    add: tuple[Entry, ...]
    gaps: tuple[Gap, ...] = ()


Ends = Callable[[QueueKey], int | None]
"""The first offset of a queue that is not in, None when the archive does not know the queue."""


def accepted(entries: Sequence[Entry], end_of: Ends, *, may_lose: bool) -> tuple[list[Entry], list[Entry], list[Gap]]:
    """Divide a batch into what is new, what is in already, and the gaps before it.

    Raises:
        UsageError: the checkpoint and the archive do not belong together.
        OffsetOutOfRange: messages between them are gone, and may not be.
    """
    at = {entry.key: end_of(entry.key) for entry in entries}
    new, known, gaps = [], [], []
    for entry in in_order(entries):
        begin = at[entry.key]
        if begin is not None and entry.end <= begin:
            known.append(entry)
            continue
        place = f"topic {entry.topic}, queue {entry.queue_id}"
        if begin is not None and entry.start < begin:
            raise refused(
                f"{place}: the checkpoint is at offset {entry.start}, the archive holds all up to {begin}",
                "remove the checkpoint: the archive knows where to go on",
            )
        if begin is not None and entry.start > begin:
            if not may_lose:
                raise OffsetOutOfRange(
                    f"{place}: the archive ends at offset {begin}, the batch begins at {entry.start}",
                    hint="remove the checkpoint to go on where the archive ends, or allow loss: --allow-loss",
                )
            gaps.append(Gap(entry.key, begin, entry.start))
        new.append(entry)
        at[entry.key] = entry.end
    return new, known, gaps


def local_root(text: str) -> Path:
    """Return the directory an archive's path means.

    Raises:
        UsageError: it is not on a file system.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Path(text).absolute()
    if scheme != "file" or not rest.startswith("/"):
        raise UsageError(
            f"the archive {text} is not on a file system",
            hint="give a directory that driver and workers share; object stores have no atomic rename",
        )
    return Path(rest)
