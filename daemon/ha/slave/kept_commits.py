"""Remembers what was committed on a slave while its master was gone, until the master has it.

Consumers whose master is gone read from a slave and commit there, on its host and over TCP. The master that comes again
knows nothing of it; without these commits its groups would get those messages once more.

    the master said where groups are      `spoken_of`: so far they were here then
    it is lost                            `lost`: the same of all it did not speak of
    it is met again                       `collect`: what has risen since waits
    it has heard of that                  `forget`

What a group on this host committed while the master was followed is this host's alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shmq.daemon.broker.tables import Tables
from shmq.store.config import OWN_GROUPS


class Place(NamedTuple):
    """One queue, for one group."""

    group: str
    topic: str
    queue_id: int


class KeptCommits:
    """The commits of one slave, while its process lives.

    Attributes:
        waiting: the offsets that the master has to hear of.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._is_gone = False
        self._before: dict[int, int] = {}  # by slot, the offset of when the master was there
        self.waiting: dict[Place, int] = {}

    def spoken_of(self, slot: int) -> None:
        """Note where a group is in a queue now that the master has said where it is there."""
        self._before[slot] = self._tables.committed(slot)

    def lost(self) -> None:
        """Note where all others are; the master is gone from now on."""
        if self._is_gone:
            return
        self._is_gone = True
        for _, slot in self._slots():
            self._before.setdefault(slot, self._tables.committed(slot))

    def collect(self) -> None:
        """Let all that has risen since wait; the master is there from now on."""
        for place, slot in self._slots():
            offset = self._tables.committed(slot)
            if offset > self._before.get(slot, -1):
                self.waiting[place] = max(offset, self.waiting.get(place, 0))
        self._before.clear()
        self._is_gone = False

    def forget(self, place: Place) -> None:
        """The master has heard of it."""
        self.waiting.pop(place, None)

    def _slots(self) -> Iterator[tuple[Place, int]]:
        tables = self._tables
        queues = {queue: (topic.name, number) for topic in tables.topics() for number, queue in enumerate(topic.queues)}
        for name in tables.groups():
            group = tables.group(name)
            if group is None or name in OWN_GROUPS:
                continue
            for queue, slot in tables.group_offsets(group).items():
                if queue in queues:
                    yield Place(name, *queues[queue]), slot
