"""From where on a promoted broker may have another log than the one that clients have read (`groups/parted.py`)."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from shmq.daemon.broker.settings import Parting
from shmq.errors import ShmqError
from shmq.shm.core import Store
from shmq.store.lineage.epochs import Epoch, Epochs

PARTING_MS: Final = 120_000  # clients that were connected before find the new master by then


def find_parting(store: Store, epochs: Epochs, *, now_ms: int) -> Parting | None:
    """Return where the oldest epoch begins that has begun just now; None where none has.

    Args:
        now_ms: the wall clock, as records have it.
    """
    begin = None
    for epoch in reversed(epochs[1:]):
        if not _is_young(store, epoch, now_ms):
            break
        begin = epoch.start
    return None if begin is None else Parting(begin, time.monotonic_ns() // 1_000_000 + PARTING_MS)


def _is_young(store: Store, epoch: Epoch, now_ms: int) -> bool:
    """Whether the first record of an epoch was stored just now, or is yet to come."""
    if epoch.start >= store.log_end:
        return True
    file_bytes = store.head["file_bytes"]
    for position in (epoch.start, epoch.start - epoch.start % file_bytes + file_bytes):  # a BLANK may fill the file
        with suppress(ShmqError):
            return now_ms - int(store.message_at(position).store_ms) < PARTING_MS
    return False
