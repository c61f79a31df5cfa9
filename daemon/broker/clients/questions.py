"""Requests of ours to clients, and their answers.

The opaque number tells an answer from the client's own requests; `Questions` keeps who asked under it.

Invariants:
 1. Every question ends exactly once: by its answer, by its time, or by the end of the connection.
 2. An answer counts only when it comes over the connection that was asked.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shmq.daemon.logic.effects import Effect, Notify
from shmq.daemon.logic.requests import Ask
from shmq.protocol.command import Command, oneway

_OPAQUE_END = 1 << 31


class _Open(NamedTuple):
    until_ms: int
    then: Callable[[Command | None], Sequence[Effect]]


class Questions:
    """Open questions to clients."""

    def __init__(self) -> None:
        self._opaque = 0
        self._open: dict[tuple[int, int], _Open] = {}

    def notice(self, connection_id: int, code: int, ext: Mapping[str, str], body: bytes = b"") -> Notify:
        """Return a oneway notice to a client."""
        return Notify(connection_id, oneway(code, ext, opaque=self._next(), body=body))

    def ask(self, ask: Ask, now_ms: int) -> Notify:
        """Return the request to a client; its answer is awaited from now on."""
        command = Command(code=ask.code, opaque=self._next(), ext=dict(ask.ext), body=ask.body)
        self._open[ask.connection_id, command.opaque] = _Open(now_ms + ask.timeout_ms, ask.then)
        return Notify(ask.connection_id, command)

    def answered(self, connection_id: int, command: Command) -> list[Effect]:
        """Hand an answer to the part that asked; a late or an invented one is dropped."""
        found = self._open.pop((connection_id, command.opaque), None)
        return list(found.then(command)) if found else []

    def disconnected(self, connection_id: int) -> list[Effect]:
        """End what this connection still had to answer."""
        return self._end([key for key in self._open if key[0] == connection_id])

    def tick(self, now_ms: int) -> list[Effect]:
        """End what took too long."""
        return self._end([key for key, waiting in self._open.items() if waiting.until_ms <= now_ms])

    def _end(self, keys: Sequence[tuple[int, int]]) -> list[Effect]:
        effects: list[Effect] = []
        for key in keys:
            effects += self._open.pop(key).then(None)
        return effects

    def _next(self) -> int:
        self._opaque = (self._opaque + 1) % _OPAQUE_END
        return self._opaque
