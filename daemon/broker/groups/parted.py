"""Up to where offsets count that clients bring from the master before.

A slave that is promoted may lack the end of its master's log. Its own goes on from there, so queues have other messages
at offsets that clients have passed elsewhere: who goes on behind them would never get these.

    P   the place in the log from which on the two may have parted
    E   the first offset of a queue that lies at P or behind it

    the first offset that a connection brings for a name, within two minutes
    up to E, or up to where its group is here    counts: these messages are the same, or were read here
    a pull behind both                           begins where its group is, whose member may hold messages that it has
                                                 not settled, else at the first message; who has no progress here, as a
                                                 broadcasting consumer or one that begins anew, begins at E
    a commit behind both                         passed over if a member may have sent it

Connections end with the master before, so what comes second for a name was read here.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Protocol

from shmq.daemon.broker.groups.lives import Sure
from shmq.daemon.broker.settings import Parting
from shmq.daemon.broker.tables import GroupProgress
from shmq.daemon.logic.requests import Call


class Groups(Protocol):
    """The groups that have members."""

    def consumer_group(self, name: str) -> object | None:
        """Return a consumer group that has members."""


class PartedQueues:
    """The queues of a log that may have parted from the one that clients have read."""

    def __init__(self, tables: GroupProgress, parting: Parting | None, groups: Groups) -> None:
        self._tables = tables
        self._parting = parting
        self._groups = groups
        self._ends: dict[int, int] = {}

    def is_asked(self, now_ms: int) -> bool:
        """Whether offsets are judged."""
        return self._parting is not None and now_ms < self._parting.until_ms

    def may_be_a_members(self, call: Call, group: str) -> bool:
        """Whether a commit may be that of a member, which says where it was elsewhere; tools wait for an answer."""
        return call.command.is_oneway or self._groups.consumer_group(group) is not None

    def sure(
        self, group: int | None, queue: int, now_ms: int, *, first: int | None = None, is_new: bool = False
    ) -> Sure | None:
        """Return up to where the first offset of a name counts; None: each one does.

        Args:
            group: its number; None: it has no progress here.
            first: where one that shares its group's progress begins; None of a reader that has none here.
            is_new: without progress of its group it begins at E, too.
        """
        if self._parting is None or not self.is_asked(now_ms):
            return None
        if queue not in self._ends:
            self._ends[queue] = self._end(queue, self._parting.log_position)
        end = self._ends[queue]
        slot = self._tables.offset_slot(group, queue) if group is not None else None
        committed = self._tables.committed(slot) if slot is not None else -1
        return Sure(max(end, committed), end if first is None or (is_new and committed < 0) else first)

    def _end(self, queue: int, log_position: int) -> int:
        low, high = self._tables.queue_bounds(queue)

        def position(offset: int) -> int:
            if units := self._tables.units(queue, offset, 1):
                return units[0].log_position
            is_gone = offset < self._tables.queue_bounds(queue).offset_min
            return -1 if is_gone else log_position  # what cannot be read is doubted

        return low + bisect_left(range(low, high), log_position, key=position)
