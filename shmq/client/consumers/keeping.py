"""Owns when a broadcast consumer's offsets are written down, and where it goes on.

It does not know files (kept_offsets) nor how a queue is read (shares and readers).

Rule: what is written is the oldest message not settled, every 5 s and when the consumer is closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shmq.client import options
from shmq.client.consumers.kept_offsets import KeptOffsets, open_kept_offsets

if TYPE_CHECKING:
    from shmq.client.consumers.consumer import Consumer
    from shmq.client.wire import QueueShare, QueueSlot


class Keeping:
    """Keeps the offsets of one consumer from `start()` to `close()`; the caller holds the consumer's lock."""

    def __init__(self, consumer: Consumer, kept: KeptOffsets) -> None:
        self._consumer = consumer
        self._kept = kept
        self._closed = False

    def start(self) -> None:
        """Save after a while, again and again."""
        self._consumer._connection._coordinator.call_after(options.KEEP_OFFSETS_INTERVAL, self._again)

    def place(self, share: QueueShare, slots: Iterable[QueueSlot]) -> None:
        """Tell a share where its queues go on."""
        known = {slot.queue_index: self._kept.get(share.name_of(slot)) for slot in slots}
        share.go_on({index: offset for index, offset in known.items() if offset is not None})

    def close(self) -> None:
        """Save for the last time; twice is harmless."""
        if not self._closed:
            self._closed = True
            self._save()
            self._kept.close()

    def _again(self) -> None:
        with self._consumer._lock:
            if not self._closed:
                self._save()
                self.start()

    def _save(self) -> None:
        share, reader = self._consumer._share, self._consumer._reader
        if share is None or reader is None:
            return
        lowest = {entry[1]: entry[4] for entry in reader.assigned()}
        held = list(share.held.items())
        self._kept.save({share.name_of(slot): lowest[index] for index, slot in held if index in lowest})


def keeping_of(consumer: Consumer) -> Keeping | None:
    """Return what keeps a consumer's offsets; None where a group does, or nobody."""
    spec = consumer._spec
    if spec.model != "broadcasting" or spec.group is None:
        return None
    kept = open_kept_offsets(consumer._connection.url, spec.group, spec.topic)
    if kept is None:
        return None
    keeping = Keeping(consumer, kept)
    keeping.start()
    return keeping
