"""The topics and queues of this host's broker, read from shared memory; the broker is asked only to create a topic."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence

from shmq.client import options
from shmq.client.edge import edge
from shmq.client.leader import TABLES_SECONDS
from shmq.client.position import Position, start_offset
from shmq.client.wire import QueueSlot
from shmq.client.wire_shm.wire import ShmWire
from shmq.errors import ConnectError, DamagedMessage, TopicNotFound, UsageError
from shmq.message import PERM_READ_WRITE, PERM_WRITE, check_open_topic, check_topic, is_system_topic, missing_topic
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import Message, Reader


class ShmQueues:
    """Topics and queues; see `shmq.client.wire.Queues`."""

    __slots__ = ("_wire",)

    def __init__(self, wire: ShmWire) -> None:
        self._wire = wire

    def version(self) -> int:
        """Return the version of the tables: it grows when a topic is deleted or made."""
        return self._wire.store.table_version

    # -- topics
    @edge
    def resolve(self, topic: str) -> int:
        """Return the index of a topic, creating it if the broker creates topics on first use.

        Raises:
            TopicNotFound: it does not exist and may not be created.
            InvalidName: no topic can have this name.
        """
        index = self._wire.store.topic_find(topic)
        if index >= 0:
            return index
        check_topic(topic)
        attachment = self._wire.control.attachment
        if not attachment.auto_create or is_system_topic(topic):
            raise self.topic_not_found(topic, may_be_made=not is_system_topic(topic))
        return self.put_topic(topic, queues=attachment.default_queues, only_if_missing=True)

    def resolve_open(self, topic: str) -> int:
        """Return the index of a topic that a user has named, as `resolve` does.

        Raises:
            PermissionDenied: it is the broker's own.
        """
        check_open_topic(topic)
        return self.resolve(topic)

    def create(self, topic: str, *, queues: int) -> int:
        """Return the index of a topic, asking the broker to make it if there is none, whatever its default is."""
        index = self._wire.store.topic_find(topic)
        return index if index >= 0 else self.put_topic(topic, queues=queues, only_if_missing=True)

    def put_topic(self, topic: str, *, queues: int, only_if_missing: bool = False) -> int:
        """Let the broker create or change a topic and return its index once it is in shared memory."""
        control = self._wire.control
        control.create_topic(topic, queues=queues, perm=PERM_READ_WRITE, only_if_missing=only_if_missing)
        return self.wait_for_topic(topic)

    def wait_for_topic(self, topic: str) -> int:
        """Return the index of a topic that the broker has made, once it is in shared memory."""
        wire = self._wire
        leader = wire.control.leader
        seconds = wire.timeout + (TABLES_SECONDS if leader is not None and leader.is_elsewhere else 0.0)
        deadline = time.monotonic() + seconds
        while (index := wire.store.topic_find(topic)) < 0:
            if time.monotonic() >= deadline:
                raise ConnectError(
                    f'topic "{topic}" was created, but did not appear in shared memory within {seconds:g} s',
                    hint="see `shmq health`",
                )
            time.sleep(options.CREATE_POLL)
        return index

    def topic_not_found(self, topic: str, *, may_be_made: bool = True) -> TopicNotFound:
        """Return the error for a topic that does not exist, with the nearest names that do.

        Args:
            may_be_made: whether to say how it is created: not for a deletion, nor about a broker's own.
        """
        names = [str(entry["name"]) for entry in self._wire.store.topics()]
        then = f"create it with: shmq topic create {topic}" if may_be_made else "see: shmq topic list -a"
        return missing_topic(topic, f'on broker "{self._wire.place.broker_name}"', names, then)

    # -- queues
    def write_queues(self, topic: str) -> Sequence[int]:
        entry = self._wire.store.topic(self.resolve(topic))
        return range(entry["write_queues"] if entry["perm"] & PERM_WRITE else 0)

    def read_queues(self, topic: str, *, must_exist: bool = False) -> list[QueueSlot]:
        """Return the readable queues of a topic; one that must exist is not created.

        Raises:
            TopicNotFound: there is none of this name, and none may be created.
        """
        store = self._wire.store
        if must_exist and store.topic_find(topic) < 0:
            raise self.topic_not_found(topic, may_be_made=False)
        entry = store.topic(self.resolve(topic))
        return [QueueSlot(queue_id, index) for queue_id, index in enumerate(entry["queues"][: entry["read_queues"]])]

    def bounds(self, topic: str, queue: QueueSlot) -> tuple[int, int]:
        row = self._wire.store.queue(queue.queue_index)
        return row.offset_min, row.offset_max

    def place_in(self, topic: str, queue: QueueSlot, position: Position) -> int:
        return start_offset(self._wire.store, queue.queue_index, position)

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return the broker's name of a queue: its id is the same here."""
        return MessageQueue(self._wire.instance.broker_name, queue_id, topic)

    def queue_id(self, queue: MessageQueue) -> int:
        """Return the id of a queue, which is the broker's own here."""
        return queue.queueId

    def messages_at(self, places: Sequence[tuple[str, int, int]]) -> list[Message]:
        store, found = self._wire.store, []
        reader = Reader(store)
        try:
            for name, queue_id, offset in places:
                topic = store.topic_find(name)
                queue = store.queue_index(topic, queue_id) if topic >= 0 else -1
                if queue < 0:
                    continue
                reader.assign(name, queue, queue_id, offset)
                with contextlib.suppress(DamagedMessage):  # it is gone as well; the keeper says so
                    found += reader.poll(1)
                reader.revoke(queue)
        finally:
            reader.close()
        return found

    # -- offsets of groups
    def offset_slots(self, group: str, topic: str) -> dict[int, int]:
        """Return {queue id: where the group's offset of it is kept}; the group is made if need be."""
        entries = self._wire.control.offset_slots(group, topic)
        return {slot.queue_id: slot.offset_slot for slot in itertools.starmap(QueueSlot, entries)}

    def committed(self, group: str, topic: str) -> dict[int, int]:
        store = self._wire.store
        offsets = {queue_id: store.offset_get(slot) for queue_id, slot in self.offset_slots(group, topic).items()}
        return {queue_id: offset for queue_id, offset in offsets.items() if offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        slots = self.offset_slots(group, topic)
        unknown = sorted(offsets.keys() - slots.keys())
        if unknown:
            raise UsageError(f"topic {topic} has no queue {unknown[0]}", hint="see queues()")
        for queue_id, offset in offsets.items():
            self._wire.store.offset_set(slots[queue_id], offset)
