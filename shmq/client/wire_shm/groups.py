"""The consumers of one connection of this host as members of their groups: what they read, and what the broker is told.

Shares are computed by each member, as TCP members do it. Offsets are words of shared memory, so nothing has to be
committed, and a member reads a queue only after it has become its owner (`share.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shmq.client import options
from shmq.client.spec import ConsumerSpec, Wanted, consumer_data, reads_retries
from shmq.client.wire import Handed, QueueSlot
from shmq.client.wire_shm.queues import ShmQueues
from shmq.client.wire_shm.share import ShmShare
from shmq.client.wire_shm.wire import ShmWire
from shmq.errors import ShmqError
from shmq.message import TOPIC_BYTES_MAX, retry_topic
from shmq.protocol.allocation import strategy_of
from shmq.protocol.body import SubscriptionData
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import RETRY_QUEUE_BASE, Message, Reader

if TYPE_CHECKING:
    from shmq.client.wire import ReaderOwner


class ShmGroups:
    """The readers of one connection and their groups."""

    def __init__(self, wire: ShmWire, queues: ShmQueues) -> None:
        self._wire = wire
        self._queues = queues
        self._allocate = strategy_of(wire.place.allocation)
        self._specs: tuple[ConsumerSpec, ...] = ()

    def watch(
        self,
        *,
        on_members_changed: Callable[[str], None],
        on_reconnect: Callable[[], None],
        on_error: Callable[[ShmqError], None],
    ) -> None:
        """Say whom the control plane reports to, on its own thread: a group, a reconnection, a refusal."""
        control = self._wire.control
        control.on_members_changed = on_members_changed
        control.on_reconnect = on_reconnect
        control.on_error = on_error

    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        """Tell the broker which groups this client is a member of."""
        self._specs = tuple(specs)
        self._wire.control.heartbeat(producer_groups, consumer_data(specs, _subscription, retries=False))

    def unregister(self, group: str) -> None:
        """Leave a group."""
        self._wire.control.unregister(group)

    def close(self) -> None:
        """Nothing: the broker forgets our groups when the socket closes."""

    # -- who reads what
    def assignment(self, spec: ConsumerSpec) -> tuple[list[QueueSlot], list[QueueSlot]]:
        """Return the queues a consumer is to read, and all of them."""
        if spec.model != "clustering" or spec.group is None or spec.invisible is not None:
            slots = self._queues.read_queues(spec.topic)
            return slots, slots
        control = self._wire.control
        slots = sorted(QueueSlot(*entry) for entry in control.offset_slots(spec.group, spec.topic))
        members = control.members(spec.group, spec.topic)
        wanted = self._shared_out(members, spec.topic, slots)
        if reads_retries(spec, self._specs):
            wanted += self._shared_out(members, retry_topic(spec.group), self._retry_slots(spec.group))
        return wanted, slots

    def _shared_out(self, members: Sequence[str], topic: str, slots: Iterable[QueueSlot]) -> list[QueueSlot]:
        broker_name = self._wire.instance.broker_name
        named = {MessageQueue(broker_name, slot.queue_id % RETRY_QUEUE_BASE, topic): slot for slot in slots}
        return [named[queue] for queue in self._allocate(members, self._wire.client_id, list(named))]

    def _retry_slots(self, group: str) -> list[QueueSlot]:
        """Return the queues of a group's retry topic; [] while there is no such topic."""
        topic, wire = retry_topic(group), self._wire
        if len(topic.encode()) > TOPIC_BYTES_MAX or wire.store.topic_find(topic) < 0:
            return []
        return [
            QueueSlot(RETRY_QUEUE_BASE + queue_id, queue_index, slot)
            for queue_id, queue_index, slot in sorted(wire.control.offset_slots(group, topic))
        ]

    def why_unassigned(self, spec: ConsumerSpec, share: Any) -> str:
        """Say why a consumer has no queue."""
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
        """Return the core's reader for a consumer."""
        return self._reader(spec.wanted, spec.codec, owner=owner, auto_ack=spec.auto_ack)

    def pull_reader(
        self, tags: Sequence[str], codec: Callable[[bytes], Any] | None, where: str | None = None
    ) -> Reader:
        """Return a reader without an owner."""
        return self._reader(Wanted(tuple(tags), where), codec)

    def _reader(self, wanted: Wanted, codec: Callable[[bytes], Any] | None, **owned: Any) -> Reader:
        return Reader(
            self._wire.store,
            tags=wanted.tags or None,
            where=wanted.filter,
            codec=codec,
            spin_us=options.SPIN_US,
            slice=options.ITERATION_SLICE,
            **owned,
        )

    def hand_over(self, spec: ConsumerSpec, message: Message) -> Handed:
        """Say that the broker is about to take a message over, which is acknowledged then."""
        return Handed(self._wire.instance.broker_name, message.ack, _nothing)

    def share(self, reader: Any, spec: ConsumerSpec, on_left: Callable[[int], None]) -> ShmShare:
        """Return the share that decides what such a reader reads."""
        return ShmShare(store=self._wire.store, reader=reader, topic=spec.topic, start=spec.start, on_left=on_left)


def _subscription(spec: ConsumerSpec, topic: str) -> SubscriptionData:
    return spec.wanted.subscription(topic, round(time.time() * 1000))


def _nothing() -> None:
    return
