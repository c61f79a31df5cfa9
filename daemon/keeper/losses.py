"""Counts what cleaning takes from a group: messages that were deleted before the group had acknowledged them.

    offset_min          committed           new offset_min
        |   acknowledged    |       lost          |

They are counted in the group's offset slot, apart from its lag, and stay counted until the group goes: the catalog
keeps them in lostMessages.json for the next segments. A lag that falls because messages were deleted must not look like
progress. The count is made before the queue's minimum moves, so a reader that sees the new minimum finds what it cost.

Invariant: only groups with an offset on the queue are counted; one without has lost nothing.
"""

from shmq.daemon.event_log import EventLog
from shmq.delay_levels import SCHEDULE_COPIES_GROUP
from shmq.protocol.system_topics.pop_records import REVIVE_GROUP, REVIVE_KNOWN_GROUP
from shmq.shm.core import KeeperStore, Store
from shmq.store.consumequeue import ConsumeQueueFiles
from shmq.store.tables import NO_TOPIC
from shmq.timing import TIMER_COPIES_GROUP, TIMER_GROUPS

_NO_OFFSETS = frozenset(
    {*TIMER_GROUPS, TIMER_COPIES_GROUP, SCHEDULE_COPIES_GROUP, REVIVE_GROUP, REVIVE_KNOWN_GROUP}
)  # their words are other things than what comes next


class Losses:
    """Counts what groups lose while the queues' minimums are corrected."""

    def __init__(self, store: Store, keeper_store: KeeperStore, log: EventLog) -> None:
        self._store = store
        self._keeper_store = keeper_store
        self._log = log
        self._slots: dict[int, list[tuple[int, str]]] = {}  # queue index -> offset slot and group
        self._readers: set[tuple[int, str]] = set()  # topic index and group

    def begin(self) -> None:
        """Look which groups read which queues, for the corrections that follow."""
        names = dict(self._store.groups())
        self._slots.clear()
        self._readers.clear()
        for entry in self._store.offsets():
            name = names.get(entry.group, "")
            if name and name not in _NO_OFFSETS:
                self._slots.setdefault(entry.queue, []).append((entry.slot, name))
                topic = self._store.queue(entry.queue).topic
                if entry.committed >= 0 and topic != NO_TOPIC:
                    self._readers.add((topic, name))

    def count_missing(self, files: ConsumeQueueFiles, begin: int) -> None:
        """Count what went with first files of the log that are missing; they began at a log position."""
        self.begin()
        for topic, queue_id in files.queues():
            index = self._store.topic_find(topic)
            if index < 0 or (queue := self._store.queue_index(index, queue_id)) < 0:
                continue
            offset_min = self._store.queue(queue).offset_min
            if offset_min:
                self.count(queue, files.offsets_within((topic, queue_id), begin, begin)[0], offset_min)

    def count(self, queue: int, offset_min: int, moved_to: int) -> None:
        """Count what the groups of a queue lose when its minimum moves."""
        row = self._store.queue(queue)
        for slot, group in self._slots.get(queue, ()):
            lost = moved_to - max(offset_min, self._store.offset_get(slot))
            if lost > 0 and (row.topic, group) in self._readers:
                self._keeper_store.offset_lose(slot, lost)
                name = self._store.topic(row.topic)["name"]
                self._log(
                    "group.lost", group=group, topic=name, queue_id=row.queue_id, messages=lost, next_offset=moved_to
                )
