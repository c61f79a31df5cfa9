"""Carries topics, groups and consumer offsets between the config files and shared memory.

`config.py` reads and writes the files.

Rules: (1) an offset is never restored above its queue's maximum, or messages would be skipped for ever;
(2) an entry that has no place in shared memory (its topic is gone) is kept and written back as it was;
(3) a topic that disappears from shared memory leaves a tombstone with the log position, or the next recovery would make
it again from its records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from shmq.shm.core import BrokerTables, CoreError, KeeperStore, Store, StoreFigures
from shmq.store.config import FLUSH_MOST, OWN_GROUPS, Log
from shmq.store.consumequeue import Queue
from shmq.store.group_settings import encode_settings, stored_settings
from shmq.store.rebuild import QueueBounds
from shmq.store.table_entries import LossTable, OffsetTable, Tables, TopicRecord
from shmq.timing import TIMER_AT_GROUP, TIMER_DUE_GROUP

TOPIC_LIVE = 1  # enum shmq_topic_state
NO_TOPIC = 0xFFFFFFFF  # topic index of a queue whose topic was deleted
NO_OFFSET_GROUPS = (TIMER_DUE_GROUP, TIMER_AT_GROUP)  # what stands there for a queue is no offset of it
_GROUP_SHIFT, _QUEUE_MASK = 32, 0xFFFFFFFF  # of the second word of `StoreFigures.offset_counts`
_SYSTEM_PREFIXES = ("%RETRY%", "%DLQ%", "RMQ_SYS_", "SCHEDULE_TOPIC_", "rmq_sys_")


@dataclass
class LiveTables:
    """The tables of a running store, and what of them only the files know."""

    tables: Tables
    unplaced: OffsetTable = field(default_factory=dict)

    def collect_topics(self, store: Store) -> tuple[dict[str, TopicRecord], dict[str, int]]:
        """Return the topics shared memory holds now, and the tombstones of those that went."""
        known = self.tables.topics
        found: dict[str, TopicRecord] = {}
        gone = set(known)
        for topic in all_topics(store):
            name = topic["name"]
            if topic["state"] != TOPIC_LIVE:
                gone.add(name)
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
                raw=known[name].raw if name in known else {},
            )
        log_begin, log_end = store.log_begin, store.log_end
        deleted = {name: at for name, at in self.tables.deleted.items() if name not in found and at > log_begin}
        for name in gone - found.keys() - deleted.keys():
            deleted[name] = log_end
        return found, deleted

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
                offset_max = store.queue(queue)[1]
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
        for group, queue, count, seconds in lost:
            topic, queue_id = store.queue(queue)[3:5]
            if group in groups:
                found.setdefault((store.topic(topic)["name"], groups[group]), {})[queue_id] = count, seconds
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


def all_topics(store: Store) -> Iterator[dict[str, Any]]:
    """Every topic entry of shared memory, those of deleted topics too."""
    for index in itertools.count():
        try:
            topic = store.topic(index)
        except CoreError:
            return
        yield topic


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
