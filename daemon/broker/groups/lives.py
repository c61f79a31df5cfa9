"""Distinguishes offsets of a topic's former life from those of its present one.

A topic that is deleted and made again counts from 0, and members that were there go on with the offsets of its former
life. Requests do not say which life they mean; but the index of a queue does, for no two queues of one generation of
segments have the same. So it is noted for each connection, group and queue (`QueueName`) which index it pulls.

    a pull, the first of its name                   its offset counts, up to what is sure (`parted.py`); the index is
                                                    noted
    a pull, another index is noted                  its offset is of a former life: it is sent to the first message
    a commit, another index is noted                of a former life: passed over
    a commit, before any pull                       counts up to what is sure
    a commit, after the pull was sent elsewhere     counts up to what the client was handed since, until that is more
                                                    than it had in the former life

The last line is for clients that go on to commit the old offset for some seconds: Java's and Go's do for 10 s.

Invariants:
 1. What is known of a connection goes with it, and is bounded.
 2. Where a name is not noted, which is so after a reconnection, every offset counts as one of now, but for what may be
    of another log.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

NAMES_PER_CONNECTION_MAX: Final = 16_384


class Sure(NamedTuple):
    """Up to where an offset counts that is the first of its name, and where a pull begins that brings another."""

    offset: int
    begin: int


def every_one() -> Sure | None:
    """Return None: each offset is sure."""
    return None


class QueueName(NamedTuple):
    """A queue as a client knows it: of a group, or one of several readers without one."""

    group: str
    topic: str
    queue_id: int
    reader: str = ""


@dataclass(slots=True)
class _Pulled:
    """The index that is pulled under a name; what was had of a former one, and what was handed out since."""

    queue: int
    former_offset: int = 0
    handed_offset: int = 0
    has_begun: bool = True  # else it has only asked where its group is

    @property
    def is_settled(self) -> bool:
        return self.handed_offset >= self.former_offset


class Lives:
    """What all connections of a process pull."""

    def __init__(self) -> None:
        self._connections: dict[int, dict[QueueName, _Pulled]] = {}

    def begin_of(
        self,
        connection_id: int,
        name: QueueName,
        queue: int,
        offset: int,
        first: int,
        sure: Callable[[], Sure | None] = every_one,
    ) -> int | None:
        """Take note of a pull; return where the client is to begin where its offset means nothing, else None.

        Args:
            first: where who has no offset of this queue begins.
            sure: None: each offset is.
        """
        known = self._connections.setdefault(connection_id, {})
        pulled = known.get(name)
        if pulled is None or not pulled.has_begun:
            told = sure()
            if told is None or offset <= told.offset:
                _note(known, name, _Pulled(queue))
                return None
            _note(known, name, _Pulled(queue, former_offset=offset, handed_offset=told.begin))
            return told.begin
        if pulled.queue == queue:
            return None
        pulled.queue, pulled.handed_offset = queue, first
        pulled.former_offset = max(offset, pulled.former_offset)
        return first if offset != first else None

    def asked(self, connection_id: int, name: QueueName, queue: int) -> None:
        """Take note that a client has asked where its group is; one that reads a copy of this log never pulls."""
        known = self._connections.setdefault(connection_id, {})
        if name not in known or not known[name].has_begun:
            _note(known, name, _Pulled(queue, has_begun=False))

    def has_asked(self, connection_id: int, name: QueueName) -> bool:
        """Say whether a client has asked where its group is, and pulled nothing since."""
        pulled = self._connections.get(connection_id, {}).get(name)
        return pulled is not None and not pulled.has_begun

    def handed(self, connection_id: int, name: QueueName, next_offset: int) -> None:
        """Take note of how far a client was handed messages."""
        pulled = self._connections.get(connection_id, {}).get(name)
        if pulled is not None and not pulled.is_settled:
            pulled.handed_offset = max(next_offset, pulled.handed_offset)

    def counts(
        self,
        connection_id: int,
        name: QueueName,
        queue: int,
        offset: int,
        sure: Callable[[], Sure | None] = every_one,
    ) -> bool:
        """Say whether an offset that a client commits may be of this life; `sure` as for `begin_of`."""
        known = self._connections.get(connection_id, {})
        pulled = known.get(name)
        if pulled is not None and (pulled.has_begun or pulled.queue == queue):
            return pulled.queue == queue and (pulled.is_settled or offset <= pulled.handed_offset)
        # It may commit for another group than it pulls for: what it pulls says what it has seen.
        place = name.topic, name.queue_id
        pulls = {of: each.queue for of, each in known.items() if (of.topic, of.queue_id) == place and each.has_begun}
        if pulls and queue not in pulls.values():
            return False
        told = None if any(of.reader for of in pulls) else sure()
        return told is None or offset <= told.offset

    def is_settled(self, connection_id: int, name: QueueName, queue: int) -> bool:
        """Say whether all that the client asks and commits under a name is of this life."""
        pulled = self._connections.get(connection_id, {}).get(name)
        return pulled is not None and pulled.has_begun and pulled.queue == queue and pulled.is_settled

    def forget(self, connection_id: int) -> None:
        """The connection is gone."""
        self._connections.pop(connection_id, None)


def _note(known: dict[QueueName, _Pulled], name: QueueName, pulled: _Pulled) -> None:
    if name not in known and len(known) >= NAMES_PER_CONNECTION_MAX:
        del known[next(iter(known))]
    known[name] = pulled
