"""The links of a broker whose master is elected, as the election sees them: reports, messages and ends go to it.

Rules: (1) a report counts in the epoch that its link ships in, so one that comes late is of no use to a later leader;
(2) a slave that takes no part in the election is shipped to, and counts nowhere: it could not be elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shmq.daemon.event_log import EventLog
from shmq.daemon.ha.election.effects import Message, Position
from shmq.daemon.ha.election.message_codec import read_message
from shmq.daemon.ha.leader import LeaderLink
from shmq.errors import ProtocolError

_LOOK_SECONDS = 3600.0


class ElectedCounting:
    """The links of one broker, inside one event loop.

    Args:
        is_sync: nothing is acknowledged or shown before it is confirmed.
        hears, gone: the elector's.
        in_sync: the stores in sync, as they were seen last.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        is_sync: bool,
        hears: Callable[[str, Message], None],
        gone: Callable[[str], None],
        in_sync: Callable[[], frozenset[str]],
    ) -> None:
        self.is_prompt = self.tells_confirmed = is_sync
        self._log, self._hears, self._gone, self._in_sync = log, hears, gone, in_sync
        self._links: dict[str, LeaderLink] = {}  # the newest one of each store

    async def serve(self) -> None:
        """The elector has a clock of its own."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)

    def report(self, link: LeaderLink, address: str, flushed: int) -> None:
        if link.slave is not None and link.slave.store and not link.slave.is_aside:
            self._links[link.slave.store] = link
            self._hears(link.slave.store, Position(link.epoch, link.acknowledged or 0, flushed))

    def heard(self, link: LeaderLink, message: bytes) -> None:
        """A slave says something of the election."""
        if link.slave is None or link.slave.is_aside:
            return
        try:
            self._hears(link.slave.store, read_message(message))
        except ProtocolError as error:
            link.closed = str(error)

    def gone(self, link: LeaderLink) -> None:
        store = link.slave.store if link.slave is not None else ""
        if store and self._links.get(store) is link:
            del self._links[store]
            self._gone(store)

    def is_in_sync(self, link: LeaderLink) -> bool:
        return link.slave is not None and link.slave.store in self._in_sync()
