"""What is to be served soon, a few in a turn: five hundred held requests whose message has come.

Served in one go they would take 15 ms, in which nobody else is: not the sender, whose answer is written at the end of
the turn, and no other connection. So a wave of more than two is served in turns of the event loop, between which it
looks at its sockets.

    begin ──▶ waiting ──go_on, sixteen in a turn──▶ served
                 └──drop──▶ forgotten

Invariants:
 1. Whoever waits here is served once for each time it was begun with since it was last served, first come first served.
 2. As long as somebody waits here, a Wake(0) is on its way; where serving has raised, the owner's next tick goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from shmq.daemon.logic.effects import Effect, Wake

_AT_ONCE = 2  # cost no more than another turn of the loop
_TURN_COUNT = 16  # half a millisecond

_GONE = object()
_Item = TypeVar("_Item")


class Wave(Generic[_Item]):
    """Serves items in turns.

    Args:
        serve: serves one of them, at a time in milliseconds; what it returns is carried out before the next turn.
    """

    def __init__(self, serve: Callable[[_Item, int], Sequence[Effect]]) -> None:
        self._serve = serve
        self._waiting: dict[_Item, None] = {}

    def begin(self, items: Iterable[_Item], now_ms: int) -> Sequence[Effect]:
        """Serve these too, at once if nobody else waits and they are few."""
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
