"""Processes that wait to become a part of an elected broker: a switch starts it anew, and clients wait.

    wanted ──after a while──▶ waits, with its modules imported ──take──▶ is the bridge, or the replication

Most of what such a process needs to start is the interpreter and its modules, on every host at the moment when all of
them are busy. A spare costs the memory of an idle process.
"""

import contextlib
from collections.abc import Callable, Iterable

from shmq.daemon.child import Child
from shmq.errors import ShmqError

WANTED_SECONDS = 1.0  # a process that has just begun has the processors for itself
_AGAIN_SECONDS = 5.0
_END_SECONDS = 1.0


class Spares:
    """One spare of each role; the supervisor's.

    Args:
        start: starts a child of a role that waits.
    """

    def __init__(self, roles: Iterable[str], start: Callable[[str], Child]) -> None:
        self._roles = frozenset(roles)
        self._start = start
        self._due: dict[str, float] = {}
        self._waiting: dict[str, Child] = {}

    def want(self, role: str, now: float) -> None:
        """Have a spare of a role, a little later."""
        if role in self._roles and role not in self._waiting:
            self._due[role] = now + WANTED_SECONDS

    def turn(self, now: float) -> list[float]:
        """Start what is due; return when something is due again."""
        for role in [role for role, due in self._due.items() if due <= now]:
            del self._due[role]
            try:
                self._waiting[role] = self._start(role)
            except ShmqError:  # no more processes: the broker goes on without
                self._due[role] = now + _AGAIN_SECONDS
        return list(self._due.values())

    def take(self, role: str) -> Child | None:
        """Return the spare of a role, which begins now; None where there is none, or it has died."""
        self._due.pop(role, None)
        child = self._waiting.pop(role, None)
        if child is None:
            return None
        with contextlib.suppress(BrokenPipeError):  # it dies just now
            if child.wait(0.0) is None:
                child.go()
                return child
        child.kill()
        child.close()
        return None

    def close(self) -> None:
        """End all of them."""
        for child in self._waiting.values():
            child.kill()  # it has nothing that could be lost, and may import just now
            child.wait(_END_SECONDS)
            child.close()
        self._waiting.clear()
        self._due.clear()
