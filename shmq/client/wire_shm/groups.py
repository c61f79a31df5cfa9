"""The consumers of one connection of this host as members of their groups: shares and registration.

Shares are computed by each member, as TCP members do it. Offsets are words of shared memory, so nothing has to be
committed, and a member reads a queue only after it has become its owner. It is taken again and again while another
member that lives still owns it.

Invariants:
    (1) a queue of a group is read only between `offset_take` and `offset_leave` of its offset slot, so never by two;
    (2) reading starts at the group's committed offset; a group that never committed anything on the topic starts where
        `start` says, and writes that down before it reads, for all queues at once;
    (3) a queue that appears later, when its siblings have offsets, starts at its first message: nothing is skipped;
    (4) a broadcasting member whose offset is behind the end of its queue waits for what is to be copied yet; where the
        log has lost its end it goes on there;
    (5) the broker takes queues away from a member when an administrator has set the group's offset: the member reads on
        from there, and what it had in flight no longer counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shmq.client import options
from shmq.client.position import BEGIN, Position, start_offset
from shmq.client.queue_share import ReaderShare
from shmq.client.spec import ConsumerSpec, Wanted, consumer_data, reads_retries
from shmq.client.wire import Handed, QueueSlot, ReaderOwner, Watcher, ignore
from shmq.client.wire_shm.topic_life import born_position
from shmq.client.wire_shm.wire import ShmQueues, ShmWire
from shmq.errors import BrokerNotRunning, ShmqError
from shmq.message import QUEUES_MAX, TOPIC_BYTES_MAX, retry_topic, retry_topic_of
from shmq.protocol.allocation import strategy_of
from shmq.protocol.body import SubscriptionData
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import RETRY_QUEUE_BASE, Message, Reader, Store
from shmq.waits import slice_seconds


class ShmShare(ReaderShare):
    """The part of a topic that this consumer reads."""

    def __init__(
        self,
        *,
        store: Store,
        reader: Reader,
        topic: str,
        start: Position,
        on_left: Callable[[int], None],
        is_to_come: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`is_to_come`: see `ShmQueues.is_to_come`."""
        super().__init__(reader, on_left)
        self._reader: Reader = reader
        self.topic = topic
        self._store = store
        self._start = start
        self._is_to_come = is_to_come
        self._unset_since: dict[int, float] = {}
        self._names: dict[int, str] = {}

    def name_of(self, slot: QueueSlot) -> str:
        """Return a name of a queue that means the same after a restart, and nothing once its topic was made again."""
        name = self._names.get(slot.queue_index)
        if name is None:
            born = born_position(self._store, slot.queue_index)
            name = self._names[slot.queue_index] = f"{slot.queue_id}@{born}"
        return name

    @property
    def is_settled(self) -> bool:
        """Whether exactly the wanted queues are held, and nothing is on its way."""
        return not self._leaving and self.held.keys() == self._wanted.keys()

    def _prepare(self, all_slots: list[QueueSlot]) -> None:
        self._drop_lost()
        self._write_start(all_slots)

    def _drop_lost(self) -> None:
        """Stop reading what is not ours any more (rule 5); where it is wanted, it is taken again."""
        for index, slot in list(self.held.items()):
            if slot.offset_slot >= 0 and not self._store.offset_is_own(slot.offset_slot):
                self._forget(index)

    def _take_missing(self, now: float) -> bool:
        took = [slot for slot in self.missing if self._take(slot, now)]
        if took:
            self._reader.wake()
        return not self.is_settled

    def retake(self) -> None:
        """After a reconnection: own the held queues again, if our client slot is not what it was, or give them up."""
        positions = {entry.queue: entry.committed for entry in self._reader.assigned()}
        for index, slot in list(self.held.items()):
            if slot.offset_slot < 0 or self._store.offset_is_own(slot.offset_slot):
                continue
            if self._store.offset_take(slot.offset_slot):
                self._reader.assign(self.topic, index, slot.queue_id, positions.get(index, 0), slot.offset_slot)
            else:
                self._forget(index)

    def _leave(self, index: int) -> None:
        slot = self.held[index]
        if slot.offset_slot < 0:
            self._offsets.update(
                {entry.queue: entry.committed for entry in self._reader.assigned() if entry.queue == index}
            )
        self._forget(index)
        if slot.offset_slot >= 0:
            self._store.offset_leave(slot.offset_slot)

    def _take(self, slot: QueueSlot, now: float) -> bool:
        if slot.offset_slot < 0:
            self.name_of(slot)  # known from now on, should its topic be deleted
            offset = self._offsets.get(slot.queue_index)
            if offset is None:
                offset = start_offset(self._store, slot.queue_index, self._start)
        else:
            committed = self._committed(slot, now)
            if committed is None or not self._store.offset_take(slot.offset_slot):
                return False
            # Read again: until a moment ago the former owner could still move it.
            owned = self._store.offset_get(slot.offset_slot)
            offset = owned if owned >= 0 else committed
        queue = self._store.queue(slot.queue_index)
        if offset > queue.offset_max and slot.offset_slot >= 0:
            offset = queue.offset_min
        elif offset > queue.offset_max and not self._is_to_come(self.topic):
            offset = queue.offset_max  # the log has lost its end; all that is stored was read
        # An offset below the minimum stays what it is: the core says once how much cleaning took from the group.
        self._reader.assign(self.topic, slot.queue_index, slot.queue_id, offset, slot.offset_slot)
        self.held[slot.queue_index] = slot
        return True

    def _committed(self, slot: QueueSlot, now: float) -> int | None:
        """The group's offset; None while it is too early to call the queue new (rule 3)."""
        committed = self._store.offset_get(slot.offset_slot)
        if committed >= 0:
            self._unset_since.pop(slot.queue_index, None)
            return committed
        # What comes again is for the group, wherever it began.
        is_shared = slot.queue_id < RETRY_QUEUE_BASE
        if is_shared and now - self._unset_since.setdefault(slot.queue_index, now) < options.UNSET_QUEUE_GRACE:
            return None
        return start_offset(self._store, slot.queue_index, BEGIN)

    def _write_start(self, slots: list[QueueSlot]) -> None:
        # Two members that start at the same moment both find nothing and write the same; one that comes a moment later
        # finds some offsets set and waits for the rest (UNSET_QUEUE_GRACE) instead of taking them for new queues.
        shared = [slot for slot in slots if slot.offset_slot >= 0]
        if any(self._store.offset_get(slot.offset_slot) >= 0 for slot in shared):
            return
        for slot in shared:
            self._store.offset_set(slot.offset_slot, start_offset(self._store, slot.queue_index, self._start))

    def _in_flight(self) -> dict[int, int]:
        return {entry.queue: entry.next_offset - entry.committed for entry in self._reader.assigned()}


class ShmGroups:
    """The readers of one connection and their groups."""

    def __init__(self, wire: ShmWire, queues: ShmQueues) -> None:
        self._wire = wire
        self._queues = queues
        self._allocate = strategy_of(wire.place.allocation)
        self._specs: tuple[ConsumerSpec, ...] = ()

    def watch(self, watcher: Watcher) -> None:
        """Set the watcher of groups, reconnections and refusals; the control plane's thread calls it."""
        self._wire.control.watcher = watcher

    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        self._specs = tuple(specs)
        self._wire.control.heartbeat(producer_groups, consumer_data(specs, _subscription, retries=False))

    def unregister(self, group: str) -> None:
        self._wire.control.unregister(group)

    def close(self) -> None:
        """Leave all groups; a client that ends without it is taken for killed. Never raises."""
        self._wire.control.leave(sorted({spec.group for spec in self._specs if spec.group}))
        self._specs = ()

    # -- shares
    def assignment(self, spec: ConsumerSpec) -> tuple[list[QueueSlot], list[QueueSlot]]:
        if spec.model != "clustering" or spec.group is None or spec.invisible is not None:
            slots = self._queues.read_queues_here(spec.topic)
            return slots, slots
        if not self._wire.is_current:  # the answers would be about segments that are not mapped here yet
            raise BrokerNotRunning("the broker has made its segments anew", hint="they are mapped in a moment")
        control = self._wire.control
        slots = sorted(QueueSlot(*entry) for entry in control.offset_slots(spec.group, spec.topic))
        wanted = self._shared_out(control.members(spec.group, spec.topic), spec.topic, slots)
        wanted += self._retries(spec.group, retry_topic_of(spec.group, spec.topic), RETRY_QUEUE_BASE + QUEUES_MAX)
        if reads_retries(spec, self._specs):
            wanted += self._retries(spec.group, retry_topic(spec.group), RETRY_QUEUE_BASE)
        return wanted, slots

    def _shared_out(self, members: Sequence[str], topic: str, slots: Iterable[QueueSlot]) -> list[QueueSlot]:
        broker_name = self._wire.instance.broker_name
        named = {MessageQueue(broker_name, slot.queue_id % RETRY_QUEUE_BASE, topic): slot for slot in slots}
        return [named[queue] for queue in self._allocate(members, self._wire.client_id, list(named))]

    def _retries(self, group: str, topic: str, base: int) -> list[QueueSlot]:
        """Return our share of a retry topic."""
        slots = self._retry_queues(group, topic, base)
        return self._shared_out(self._wire.control.members(group, topic), topic, slots) if slots else []

    def _retry_queues(self, group: str, topic: str, base: int) -> list[QueueSlot]:
        """Return the queues of a retry topic, numbered from `base` on; [] while there is no such topic."""
        wire = self._wire
        if len(topic.encode()) > TOPIC_BYTES_MAX or wire.store.topic_find(topic) < 0:
            return []
        return [
            QueueSlot(base + queue_id, queue_index, slot)
            for queue_id, queue_index, slot in sorted(wire.control.offset_slots(group, topic))
        ]

    def queues_of(self, spec: ConsumerSpec) -> list[QueueSlot]:
        """Return every queue that members of its group may read for this topic."""
        assert spec.group is not None
        slots = [QueueSlot(*entry) for entry in self._wire.control.offset_slots(spec.group, spec.topic)]
        slots += self._retry_queues(spec.group, retry_topic_of(spec.group, spec.topic), RETRY_QUEUE_BASE + QUEUES_MAX)
        return slots + self._retry_queues(spec.group, retry_topic(spec.group), RETRY_QUEUE_BASE)

    def why_unassigned(self, spec: ConsumerSpec, share: Any) -> str:
        wire = self._wire
        if not wire.alive:
            return "the broker's control plane does not answer; see `shmq health`"
        try:
            _, slots = self.assignment(spec)
            members = wire.control.members(spec.group, spec.topic) if spec.group else []
        except ShmqError as error:
            return f"the broker could not say who is in the group: {error}"
        if not slots:
            return "the topic has no queue that may be read"
        if spec.model == "clustering" and wire.client_id not in members:
            return "the broker does not list this client as a member of the group"
        if share.missing:
            owners = sorted({wire.store.offset_owner(slot.offset_slot) for slot in share.missing})
            return f"its queues are still read by client slot {str(owners)[1:-1]} (-1: over TCP), which still has them"
        return (
            f"the group has {len(members)} members for {len(slots)} queues; "
            f"more queues: shmq topic update {spec.topic} --queues {len(members)}"
        )

    # -- readers and their queues
    def reader(self, owner: ReaderOwner, spec: ConsumerSpec) -> Reader:
        """Return a reader for a consumer."""
        return self._reader(spec.wanted, spec.codec, owner=owner, auto_ack=spec.auto_ack, verify=spec.verify)

    def pull_reader(
        self,
        tags: Sequence[str],
        codec: Callable[[bytes], Any] | None,
        where: str | None = None,
        verify: bool | None = None,
    ) -> Reader:
        return self._reader(Wanted(tuple(tags), where), codec, verify=verify)

    def _reader(self, wanted: Wanted, codec: Callable[[bytes], Any] | None, **owned: Any) -> Reader:
        return Reader(
            self._wire.store,
            tags=wanted.tags or None,
            where=wanted.filter,
            codec=codec,
            spin_us=options.SPIN_US,
            slice=slice_seconds(options.ITERATION_SLICE),
            **owned,
        )

    def hand_over(self, spec: ConsumerSpec, message: Message) -> Handed:
        """Say that the broker is about to take a message over, which is acknowledged then."""
        return Handed(self._wire.instance.broker_name, message.ack, ignore)

    keeps_readers = False

    def open(self, owner: ReaderOwner, spec: ConsumerSpec, on_left: Callable[[int], None]) -> tuple[Reader, ShmShare]:
        store, reader = self._wire.store, self.reader(owner, spec)
        return reader, ShmShare(
            store=store,
            reader=reader,
            topic=spec.topic,
            start=spec.start,
            on_left=on_left,
            is_to_come=self._queues.is_to_come,
        )


def _subscription(spec: ConsumerSpec, topic: str) -> SubscriptionData:
    return spec.wanted.subscription(topic, round(time.time() * 1000))
