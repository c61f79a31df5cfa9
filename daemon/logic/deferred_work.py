"""Serves many items a few in a turn: for instance five hundred held requests whose message has come.

Served in one go they would take 15 ms, in which no other connection is served, and the sender's answer, written at the
end of the turn, waits. So more than two are served in turns of the event loop, between which it looks at its sockets.
    begin ──▶ waiting ──go_on, sixteen in a turn──▶ served
                 └──drop──▶ forgotten

Invariants:
 1. Each item is served once, however often it was begun with in between, first come first served.
 2. As long as an item waits here, a Wake(0) is on its way; where serving has raised, the owner's next tick goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from shmq.daemon.logic.effects import Effect, Wake

_AT_ONCE = 2  # cost no more than another turn of the loop
_TURN_COUNT = 16  # half a millisecond

_GONE = object()
_Item = TypeVar("_Item")


class DeferredWork(Generic[_Item]):
    """Serves items in turns.

    Args:
        serve: serves one of them, at a time in milliseconds; what it returns is carried out before the next turn.
    """

    def __init__(self, serve: Callable[[_Item, int], Sequence[Effect]]) -> None:
        self._serve = serve
        self._waiting: dict[_Item, None] = {}

    def begin(self, items: Iterable[_Item], now_ms: int) -> Sequence[Effect]:
        """Serve these too, at once if no other item waits and they are few."""
        is_going_on = bool(self._waiting)
        self._waiting.update(dict.fromkeys(items))
        return self.go_on(now_ms) if len(self._waiting) <= _AT_ONCE and not is_going_on else (Wake(0),)

    def go_on(self, now_ms: int) -> Sequence[Effect]:
        """Serve those whose turn it is."""
        effects: list[Effect] = []
        for item in list(islice(self._waiting, _TURN_COUNT)):
            if self._waiting.pop(item, _GONE) is not _GONE:  # else what was served before it has ended it
                effects += self._serve(item, now_ms)
        if self._waiting:
            effects.append(Wake(0))
        return effects

    def drop(self, item: _Item) -> None:
        """Forget it, if it waits."""
        self._waiting.pop(item, None)
