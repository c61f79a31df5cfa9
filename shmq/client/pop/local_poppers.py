"""Owns the consumers of one connection of this host that pop: where a new group begins, which there are, what waits.

It does not know messages or receipts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmq.client.pop.local_reader import LocalPopReader
from shmq.client.position import BEGIN
from shmq.message import pop_retry_topic
from shmq.progress import Backlog

if TYPE_CHECKING:
    from shmq.client.pop.leases import PopOwner
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire_shm.session import Session
    from shmq.shm.core import Message


class Poppers:
    """Readers that pop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._readers: list[LocalPopReader] = []

    def open(self, owner: PopOwner, spec: ConsumerSpec) -> LocalPopReader:
        """Return a new reader; a new group begins where it is to begin."""
        self._begin(spec)
        reader = LocalPopReader(self._session, owner, spec)
        self._readers = [*(known for known in self._readers if not known.stopped), reader]
        return reader

    def of(self, spec: ConsumerSpec) -> list[LocalPopReader]:
        """Return the readers that pop a topic for a group."""
        return [reader for reader in self._readers if not reader.stopped and reader.spec[:2] == spec[:2]]

    def bury(self, spec: ConsumerSpec, message: Message, reason: str) -> bool:
        """Put a message among the dead letters; False when nobody here pops its topic.

        One that is not in hand any more is left to who has it now.
        """
        readers = self.of(spec)
        return any([reader.bury(message, reason) for reader in readers]) or bool(readers)

    def settle(self) -> None:
        """Let the broker confirm what was acknowledged; waits for it a second a reader at most."""
        for reader in self._readers:
            reader.settle()

    def waiting_for(self, spec: ConsumerSpec) -> int:
        """Return how many messages nobody has taken yet for a group, those that come again included."""
        assert spec.group is not None
        session, count = self._session, 0
        for topic in (spec.topic, pop_retry_topic(spec.group, spec.topic)):
            if session.store.topic_find(topic) < 0:
                continue
            committed = session.committed(spec.group, topic)
            for queue in session.read_queues(topic):
                begin, end = session.bounds(topic, queue)
                count += Backlog(committed.get(queue.queue_id, -1), begin, end).waiting
        return count

    def _begin(self, spec: ConsumerSpec) -> None:
        if spec.start == BEGIN or spec.group is None or self._session.committed(spec.group, spec.topic):
            return
        queues = self._session.read_queues(spec.topic)
        places = {queue.queue_id: self._session.place_in(spec.topic, queue, spec.start) for queue in queues}
        self._session.commit(spec.group, spec.topic, places)
