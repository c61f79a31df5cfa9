"""Runs an action once in the next turn of the event loop, however often it is asked for in this one.

The loop looks at its sockets between two turns, so what was written in this one goes out before, and other connections
have their turn.
"""

import asyncio
from collections.abc import Callable, Iterable


class NextTurn:
    """Calls `action` with the numbers it was asked for, each once, in the order they came.

    Attributes:
        is_due: whether it was asked for.
    """

    def __init__(self, action: Callable[[tuple[int, ...]], None]) -> None:
        self._action = action
        self._numbers: dict[int, None] = {}
        self._is_closed = False
        self.is_due = False

    def ask(self, numbers: Iterable[int] = ()) -> None:
        """Have it done in the next turn, for these too."""
        self._numbers.update(dict.fromkeys(numbers))
        if not self.is_due:
            self.is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def close(self) -> None:
        """Do nothing from now on."""
        self._is_closed = True

    def _run(self) -> None:
        numbers, self._numbers, self.is_due = tuple(self._numbers), {}, False
        if not self._is_closed:
            self._action(numbers)


class Settling:
    """Calls an action after whatever changed a version: once a turn, however many requests of the turn changed it."""

    def __init__(self) -> None:
        self._action: Callable[[], None] | None = None
        self._version: Callable[[], object] = int
        self._settled: object = None
        self._turn = NextTurn(lambda _: self._settle_changes())

    def begin(self, action: Callable[[], None], version: Callable[[], object]) -> None:
        """Call this from now on, and now."""
        self._action, self._version = action, version
        self.settle()

    def settle(self) -> None:
        """Call the action now, whatever has changed."""
        if self._action is not None:
            self._settled = self._version()
            self._action()

    def settle_soon(self) -> None:
        """Call the action behind what else this turn does, if the version changes."""
        if self._action is not None and not self._turn.is_due and self._version() != self._settled:
            self._turn.ask()

    def close(self) -> None:
        """Call nothing from now on."""
        self._turn.close()

    def _settle_changes(self) -> None:
        if self._version() != self._settled:
            self.settle()
