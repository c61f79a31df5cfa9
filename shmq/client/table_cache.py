"""What was read of the topics in the tables of shared memory, for as long as the tables stay as they are.

    table_version    raised by every change of the tables; a store of the next generation counts anew

Invariant: what a thread has read before a change never counts behind it: the thread puts it where it looked for it, and
behind the change others look elsewhere.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

ValueT = TypeVar("ValueT")


class Tables(Protocol):
    """A store, as far as this looks at it."""

    @property
    def table_version(self) -> int:
        """Raised by every change."""


class TableCache(Generic[ValueT]):
    """What is known of topics; any thread may use it."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: tuple[Tables | None, int, dict[str, ValueT]] = None, -1, {}

    def of(self, store: Tables) -> dict[str, ValueT]:
        """Return by topic what is known of a store now; the caller adds what it reads behind this call."""
        version, known = store.table_version, self._known
        if known[1] != version or known[0] is not store:
            self._known = known = store, version, {}
        return known[2]
