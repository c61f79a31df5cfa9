"""Distinguishes offsets of a topic's former life from those of its present one.

A topic that is deleted and made again counts from 0, and members that were there go on with the offsets of its former
life. Requests do not say which life they mean; but the index of a queue does, for no two queues of one generation of
segments have the same. So it is noted for each connection, group and queue (`QueueName`) which index it pulls.

    a pull, the first of its name                   its offset counts; the index is noted
    a pull, another index is noted                  its offset is of a former life: it is sent to the first message
    a commit, another index is noted                of a former life: passed over
    a commit, after the pull was sent elsewhere     counts up to what the client was handed since, until that is more
                                                    than it had in the former life

The last line is for clients that go on to commit the old offset for some seconds: Java's and Go's do for 10 s.

Invariants:
 1. What is known of a connection goes with it, and is bounded.
 2. Where a name is not noted, which is so after a reconnection, every offset counts as one of now.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

NAMES_PER_CONNECTION_MAX: Final = 16_384


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

    @property
    def is_settled(self) -> bool:
        return self.handed_offset >= self.former_offset


class Lives:
    """What all connections of a process pull."""

    def __init__(self) -> None:
        self._connections: dict[int, dict[QueueName, _Pulled]] = {}

    def is_former(self, connection_id: int, name: QueueName, queue: int, offset: int, first: int) -> bool:
        """Take note of a pull; say whether its offset is of a former life, and the client is to begin at `first`."""
        known = self._connections.setdefault(connection_id, {})
        pulled = known.get(name)
        if pulled is None:
            if len(known) >= NAMES_PER_CONNECTION_MAX:
                del known[next(iter(known))]
            known[name] = _Pulled(queue)
            return False
        if pulled.queue == queue:
            return False
        pulled.queue, pulled.handed_offset = queue, first
        pulled.former_offset = max(offset, pulled.former_offset)
        return offset != first

    def handed(self, connection_id: int, name: QueueName, next_offset: int) -> None:
        """Take note of how far a client was handed messages."""
        pulled = self._connections.get(connection_id, {}).get(name)
        if pulled is not None and not pulled.is_settled:
            pulled.handed_offset = max(next_offset, pulled.handed_offset)

    def counts(self, connection_id: int, name: QueueName, queue: int, offset: int) -> bool:
        """Say whether an offset that a client commits may be of this life."""
        known = self._connections.get(connection_id, {})
        pulled = known.get(name)
        if pulled is None:  # it commits for another group than it pulls for: what it pulls says what it has seen
            place = name.topic, name.queue_id
            indexes = {each.queue for of, each in known.items() if (of.topic, of.queue_id) == place}
            return not indexes or queue in indexes
        return pulled.queue == queue and (pulled.is_settled or offset <= pulled.handed_offset)

    def is_settled(self, connection_id: int, name: QueueName, queue: int) -> bool:
        """Say whether all that the client asks and commits under a name is of this life."""
        pulled = self._connections.get(connection_id, {}).get(name)
        return pulled is not None and pulled.queue == queue and pulled.is_settled

    def forget(self, connection_id: int) -> None:
        """The connection is gone."""
        self._connections.pop(connection_id, None)
