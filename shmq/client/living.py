"""The readers, or shares, of one session, without those that have ended; threads add theirs at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

ThingT = TypeVar("ThingT")


class Living(Generic[ThingT]):
    """Things, until they have ended; any thread may use it. One that ends stays until another one is added."""

    __slots__ = ("_all", "_has_ended")

    def __init__(self, has_ended: Callable[[ThingT], bool]) -> None:
        self._has_ended = has_ended
        self._all: dict[ThingT, None] = {}  # each of its calls here is one step: no thread undoes another one's

    def add(self, thing: ThingT) -> None:
        """Take one in, and forget those that have ended."""
        self._all[thing] = None
        for each in self:
            if self._has_ended(each):
                self._all.pop(each, None)

    def __iter__(self) -> Iterator[ThingT]:
        return iter(tuple(self._all))
