"""Carries topics, groups and consumer offsets between the config files and shared memory.

`config.py` reads and writes the files.

Rules: (1) an offset is never restored above its queue's maximum, or messages would be skipped for ever;
(2) an entry that has no place in shared memory (its topic is gone) is kept and written back as it was;
(3) a topic that disappears from shared memory leaves a tombstone with the log position, or the next recovery would make
it again from its records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shmq.delay_levels import SCHEDULE_COPIES_GROUP
from shmq.shm.core import TOPIC_LIVE, BrokerTables, KeeperStore, Store, StoreFigures
from shmq.store.config import FLUSH_MOST, OWN_GROUPS, Log
from shmq.store.consumequeue import Queue
from shmq.store.group_settings import encode_settings, stored_settings
from shmq.store.rebuild import QueueBounds
from shmq.store.table_entries import DELAY_KEY, MARK_KEYS, TIMER_KEYS, LossTable, OffsetTable, Tables, TopicRecord
from shmq.timing import TIMER_AT_GROUP, TIMER_COPIES_GROUP, TIMER_DUE_GROUP

NO_TOPIC = 0xFFFFFFFF  # topic index of a queue whose topic was deleted
NO_OFFSET_GROUPS = (TIMER_DUE_GROUP, TIMER_AT_GROUP, TIMER_COPIES_GROUP, SCHEDULE_COPIES_GROUP)
"""Groups for which no offset of a queue stands there, but a time, or a position of the log."""
_POSITION_GROUPS = (TIMER_COPIES_GROUP, SCHEDULE_COPIES_GROUP)
_GROUP_SHIFT, _QUEUE_MASK = 32, 0xFFFFFFFF  # of the second word of `StoreFigures.offset_counts`
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "SCHEDULE_TOPIC_", "rmq_sys_")


class LoweredOffset(NamedTuple):
    """An offset of a group that was set back."""

    topic: str
    group: str
    was: int
    now: int


def lower_offsets(store: Store) -> list[LoweredOffset]:
    """Set back what tells of messages that are not here and never will be: they were the old master's."""
    names, topics = dict(store.groups()), _queue_names(store)
    lowered = []
    for entry in store.offsets():
        group = names.get(entry.group, "")
        is_time = group in NO_OFFSET_GROUPS and group not in _POSITION_GROUPS
        if entry.queue not in topics or is_time:
            continue
        most = store.log_end if group in _POSITION_GROUPS else store.queue(entry.queue).offset_max
        if entry.committed > most:
            store.offset_set(entry.slot, most)
            lowered.append(LoweredOffset(topics[entry.queue], group, entry.committed, most))
    return lowered


def _queue_names(store: Store) -> dict[int, str]:
    return {queue: topic["name"] for topic in store.topics() for queue in topic["queues"]}


@dataclass
class LiveTables:
    """The tables of a running store, and what of them only the files know."""

    tables: Tables
    unplaced: OffsetTable = field(default_factory=dict)
    buried: dict[int, int] = field(default_factory=dict)
    """Deleted topics that `collect_topics` saw with no queue left to write to: number -> version."""
    unburied: set[str] = field(default_factory=set)
    """Those of which a queue was open: what is still written there is behind their tombstones."""

    def collect_topics(self, store: Store) -> tuple[dict[str, TopicRecord], dict[str, int]]:
        """Return the topics shared memory holds now, and the tombstones of those that went.

        A tombstone is the log's end at a time when no queue of the topic was open any more: no start makes the topic
        anew from records below it. Where one was open, the tombstone is moved the next time.
        """
        known = self.tables.topics
        found: dict[str, TopicRecord] = {}
        gone = set(known)
        self.buried, again, self.unburied = {}, self.unburied, set()
        lives: dict[str, int] = {}
        for topic in store.topics(True):
            name = topic["name"]
            if topic["state"] != TOPIC_LIVE:
                gone.add(name)
                lives[name] = topic["born_position"]
                if any(store.queue(queue).topic != NO_TOPIC for queue in topic["queues"]):
                    self.unburied.add(name)
                else:
                    self.buried[topic["index"]] = topic["version"]
                continue
            found[name] = TopicRecord(
                name=name,
                read_queues=topic["read_queues"],
                write_queues=topic["write_queues"],
                perm=topic["perm"],
                flags=topic["flags"],
                kind=topic["kind"],
                flush=topic["flush"],
                born=topic["born_position"],
                ended=self._former_end(name, topic["born_position"]),
                raw=known[name].raw if name in known else {},
            )
        log_begin, log_end = store.log_begin, store.log_end
        deleted = {name: at for name, at in self.tables.deleted.items() if name not in found and at > log_begin}
        for name in gone - found.keys():
            if name not in deleted or name in again or deleted[name] <= lives.get(name, -1):
                deleted[name] = log_end
        return found, deleted

    def _former_end(self, name: str, born: int) -> int:
        """Where the life of a name before its present one was over; -1: not known."""
        known = self.tables.topics.get(name)
        if known is None:
            return min(self.tables.deleted.get(name, -1), born)
        return known.ended if known.born == born else born

    def collect_groups(self, store: Store) -> dict[str, dict[str, Any]]:
        """Return the groups shared memory holds now, with the fields that only the files know."""
        known = self.tables.groups
        return {
            name: stored_settings(name, known.get(name, {}), store.group_settings(index))
            for index, name in store.groups()
            if name not in OWN_GROUPS
        }

    def find_unplaced(self, store: Store) -> None:
        """Note which offsets of the files have no place in shared memory."""
        for key, queues in self.tables.offsets.items():
            index = store.topic_find(key[0])
            count = len(store.topic(index)["queues"]) if index >= 0 else 0
            without = {queue_id: offset for queue_id, offset in queues.items() if queue_id >= count}
            if without:
                self.unplaced[key] = without

    def restore_offsets(self, store: Store, broker_tables: BrokerTables, log: Log) -> None:
        """Put the committed offsets of the files into shared memory."""
        self.find_unplaced(store)
        for (topic, group), queues in self.tables.offsets.items():
            index = store.topic_find(topic)
            for queue_id, offset in queues.items():
                if queue_id in self.unplaced.get((topic, group), {}):
                    continue
                queue = store.queue_index(index, queue_id)
                offset_max = store.queue(queue).offset_max
                if group in _POSITION_GROUPS:
                    offset = min(offset, store.log_end)  # of copies that were lost, or cut off
                if group in NO_OFFSET_GROUPS:
                    offset_max = max(offset_max, offset)
                if offset > offset_max:
                    log(
                        "recovery.offset_lowered",
                        topic=topic,
                        group=group,
                        queue_id=queue_id,
                        was=offset,
                        now=offset_max,
                    )
                slot = broker_tables.offset_put(self._group(store, broker_tables, group), queue)
                store.offset_set(slot, min(offset, offset_max))

    def restore_losses(self, store: Store, keeper_store: KeeperStore, broker_tables: BrokerTables) -> None:
        """Put into shared memory what cleaning took from groups before these segments were made."""
        for (topic, group), queues in self.tables.losses.items():
            index, of_group = store.topic_find(topic), store.group_find(group)
            known = len(store.topic(index)["queues"]) if index >= 0 and of_group >= 0 else 0
            for queue_id, (count, seconds) in queues.items():
                if queue_id < known:
                    slot = broker_tables.offset_put(of_group, store.queue_index(index, queue_id))
                    keeper_store.offset_lose(slot, count, seconds)

    def collect_losses(self, store: Store) -> LossTable:
        """Return what cleaning took from the groups that there are."""
        lost = store.offsets_lost()
        if not lost:
            return {}
        groups, found = dict(store.groups()), LossTable()
        topics = {topic["index"]: str(topic["name"]) for topic in store.topics()}
        for group, queue, count, seconds in lost:
            row = store.queue(queue)
            if group in groups and row.topic in topics:
                found.setdefault((topics[row.topic], groups[group]), {})[row.queue_id] = count, seconds
        return found

    def _group(self, store: Store, broker_tables: BrokerTables, name: str) -> int:
        index = store.group_find(name)
        if index < 0:
            index = broker_tables.group_put(name)
            self.tables.groups.setdefault(name, {})
        return index

    def collect_offsets(self, store: Store, figures: StoreFigures) -> OffsetTable:
        """Return the committed offsets of shared memory, and those that have no place there."""
        groups = dict(store.groups())
        places = {
            queue: (str(topic["name"]), queue_id)
            for topic in store.topics()
            for queue_id, queue in enumerate(topic["queues"])
        }
        found: OffsetTable = {key: dict(queues) for key, queues in self.unplaced.items()}
        words = memoryview(figures.offset_counts()).cast("Q").tolist()
        for after, where in zip(words[::2], words[1::2], strict=True):
            place, group = places.get(where & _QUEUE_MASK), groups.get(where >> _GROUP_SHIFT)
            if after == 0 or place is None or group is None:
                continue  # never set, or of a topic or a group that is gone
            key = place[0], group
            queues = found.get(key)
            if queues is None:
                queues = found[key] = {}
            queues[place[1]] = after - 1
        return found

    def collect_progress(self, store: Store, figures: StoreFigures) -> OffsetTable:
        """Return the committed offsets as `collect_offsets` does, with the marks of copies for a file.

        A mark of 0 says that the other words tell of every copy: so did those read after it of all that was in the log
        before it was read. Therefore the order here is end, marks, words.
        """
        end = store.log_end
        groups = {name for _, name in store.groups()}
        marks = OffsetTable()
        if any(group in groups for _, group in MARK_KEYS):
            before = self.collect_offsets(store, figures)
            marks = {key: before[key] for key in MARK_KEYS if key in before}
        offsets = self.collect_offsets(store, figures)
        for mark_key, key in zip(MARK_KEYS, (DELAY_KEY, TIMER_KEYS[0]), strict=True):
            offsets.pop(mark_key, None)
            if key in offsets:
                offsets[mark_key] = {0: marks.get(mark_key, {}).get(0, 0) or end}
        return offsets


def fill_tables(
    broker_tables: BrokerTables, tables: Tables, bounds: dict[Queue, QueueBounds], *, default_queues: int, log: Log
) -> LiveTables:
    """Put topics and groups into fresh segments; offsets follow when the queues have their bounds.

    Args:
        bounds: the queues the log holds; a topic that no table names is made from them.

    Raises:
        SegmentFull: a table of the segments is too small for this store.
    """
    _fill_topics(broker_tables, tables, bounds, default_queues, log)
    for name, raw in tables.groups.items():
        broker_tables.group_set(broker_tables.group_put(name), encode_settings(raw))
    return LiveTables(tables)


def _fill_topics(
    broker_tables: BrokerTables, tables: Tables, bounds: dict[Queue, QueueBounds], default_queues: int, log: Log
) -> None:
    needed: dict[str, int] = {}
    for name, queue_id in bounds:
        needed[name] = max(needed.get(name, 0), queue_id + 1)
    for name, count in needed.items():
        if name not in tables.topics:
            queues = count if name.startswith(_SYSTEM_PREFIXES) else max(count, default_queues)
            tables.topics[name] = TopicRecord(name, read_queues=queues, write_queues=queues)
            tables.deleted.pop(name, None)
            log("recovery.topic_found_in_log", topic=name, queues=queues)
    for name, record in tables.topics.items():
        record.read_queues = max(record.read_queues, needed.get(name, 0))
        index = broker_tables.topic_put(
            name,
            read_queues=record.read_queues,
            write_queues=record.write_queues,
            perm=record.perm,
            flags=record.flags,
            kind=record.kind,
        )
        broker_tables.topic_set_flush(index, record.flush if record.flush <= FLUSH_MOST else 0)
        broker_tables.set_topic_born(index, record.born)
