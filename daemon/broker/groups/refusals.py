"""Keeps subscriptions that cannot be served: of which client, and why; for the log and for figures.

A stock client whose heartbeat is refused, or whose expression is none, goes on without a word and consumes nothing. So
each of them is logged once, and kept until the client says something that can be served, or has long been silent.

Invariant: at most `KEPT_MAX` are kept, the newest.
"""

from collections.abc import Iterable

from shmq.protocol.roster import RosterRefusal

KEPT_MAX = 64
_KEPT_MS = 600_000  # a client beats every 30 s


class RefusedSubscriptions:
    """What is refused now."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], RosterRefusal] = {}  # by group and client id, the newest at the end

    def add(self, group: str, client_id: str, address: str, reason: str, now_ms: int) -> list[str]:
        """Take note of one; return what to log, nothing where it is known."""
        before = self._known.pop((group, client_id), None)
        self._known[group, client_id] = RosterRefusal(group, client_id, address, reason, now_ms)
        while len(self._known) > KEPT_MAX:
            del self._known[next(iter(self._known))]
        if before is not None and before.reason == reason:
            return []
        return [f'group "{group}" gets nothing for its member {client_id} ({address}): {reason}']

    def forget(self, group: str, client_id: str) -> None:
        """The client says something that can be served."""
        self._known.pop((group, client_id), None)

    def all(self, now_ms: int) -> Iterable[RosterRefusal]:
        """Return those of clients that still speak."""
        for key in [key for key, entry in self._known.items() if now_ms - entry.at_ms > _KEPT_MS]:
            del self._known[key]
        return self._known.values()
