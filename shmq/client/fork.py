"""What happens to live connections at a fork and at the end of the process.

This module calls `_after_fork()` of each connection in the child, and `_at_exit()` at the end.

Invariants:
    (1) in the child nothing of the parent's is used, told or closed for good: handles open anew on first use;
    (2) at the end of the process connections say goodbye, quickly, so that others need not find out.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Live(Protocol):
    """What is registered here."""

    def _after_fork(self) -> None: ...
    def _at_exit(self) -> None: ...


_live: weakref.WeakSet[Live] = weakref.WeakSet()


def watch(connection: Live) -> None:
    """Call the connection after a fork and at exit, as long as it lives."""
    _live.add(connection)


def live_connections() -> list[Live]:
    """Return the connections of this process that nobody has dropped; closed ones may be among them."""
    return list(_live)


def _in_child() -> None:
    for connection in live_connections():
        connection._after_fork()


def _at_exit() -> None:
    for connection in live_connections():
        connection._at_exit()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
