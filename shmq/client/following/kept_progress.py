"""How far the members of one connection were when they went to another place, until they have opened there.

    keep(key, number, index, offset)     a member is about to leave a queue, or its segments to be mapped anew
    take(key, number, index, here=…)     it opens the queue again: the offset, or None

Invariant: no message is stepped over. An offset counts in the topic it was kept in. If unconfirmed messages may have
been read it counts in the same segments only, and not at a leader: that may lack the end of the log that was read here,
which is cut off then, and has other messages in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shmq.client.wire_shm import topic_life
from shmq.shm.core import Store

Key = tuple[str | None, str]
"""Group and topic of a consumer."""


class _Kept(NamedTuple):
    generation: int  # of the segments
    begin: int  # where the topic of the queue begins
    is_confirmed: bool  # nothing that was read can be cut off
    offset: int


class KeptProgress:
    """Offsets by consumer and queue; `store` and `generation` return those of the segments of now."""

    def __init__(self, store: Callable[[], Store], generation: Callable[[], int]) -> None:
        self._store = store
        self._generation = generation
        self._kept: dict[tuple[Key, int], _Kept] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, key: Key, number: int, index: int, offset: int) -> None:
        """Remember the offset of a queue, which has that index here."""
        store = self._store()
        begin = topic_life.born_position(store, index)
        if begin < 0:  # its topic was deleted
            return
        self._kept[key, number] = _Kept(self._generation(), begin, is_confirmed(store, index), offset)

    def take(self, key: Key, number: int, index: int, *, here: bool) -> int | None:
        """Return the offset of a queue, once; None where none was kept, or it means nothing any more.

        Args:
            here: it is opened for a group of this host, not of a leader.
        """
        kept, store = self._kept.pop((key, number), None), self._store()
        if kept is None or kept.begin != topic_life.born_position(store, index):
            return None
        is_same_log = here and kept.generation == self._generation()
        return kept.offset if kept.is_confirmed or is_same_log else None

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()


def is_confirmed(store: Store, index: int) -> bool:
    """Whether nothing that is read of a queue can be cut off."""
    return topic_life.is_confirmed(store, store.queue(index).topic)
