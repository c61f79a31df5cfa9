"""Maps a queue index to its topic and queue id, and a group to the queues that it has consumed.

The names are looked up in an index that is made again when topics have changed.
"""

from collections.abc import Iterator
from typing import NamedTuple

from shmq.daemon.broker.tables import GroupProgress, Topic


class QueueName(NamedTuple):
    """One queue of a live topic."""

    topic: str
    queue_id: int


class Progress(NamedTuple):
    """How far a group is on one queue; `committed` is the next queue offset to deliver."""

    topic: str
    queue_id: int
    queue: int
    committed: int


class QueueIndex:
    """Names of queue indexes."""

    def __init__(self, tables: GroupProgress) -> None:
        self._tables = tables
        self._names: dict[int, QueueName] = {}
        self._topics: list[Topic] = []

    def names(self) -> dict[int, QueueName]:
        """Return the queues of all live topics by their index; the caller changes nothing in it."""
        topics = self._tables.topics()
        if topics is not self._topics:
            self._topics = topics
            self._names = {
                queue: QueueName(topic.name, queue_id)
                for topic in topics
                for queue_id, queue in enumerate(topic.queues)
            }
        return self._names

    def topic_progress(self, group: str, topic: Topic) -> dict[int, int]:
        """Return the committed offsets of a group on one topic by queue id."""
        index = self._tables.group(group)
        if index is None:
            return {}
        found = {}
        for queue_id, queue in enumerate(topic.queues):
            slot = self._tables.offset_slot(index, queue)
            committed = -1 if slot is None else self._tables.committed(slot)
            if committed >= 0:
                found[queue_id] = committed
        return found

    def progress(self, group: str) -> Iterator[Progress]:
        """Yield what a group has committed, on all topics that exist."""
        index = self._tables.group(group)
        if index is None:
            return
        names = self.names()
        for queue, slot in self._tables.group_offsets(index).items():
            committed = self._tables.committed(slot)
            if committed >= 0 and queue in names:
                yield Progress(*names[queue], queue, committed)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics a group has committed offsets of, sorted."""
        return sorted({progress.topic for progress in self.progress(group)})

    def groups_of(self, topic: Topic) -> list[str]:
        """Return the groups that have committed offsets of a topic, sorted."""
        return sorted(group for group in self._tables.groups() if self.topic_progress(group, topic))
