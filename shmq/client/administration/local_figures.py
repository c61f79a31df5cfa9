"""Topics, groups and offsets of this host's broker: figures are read from shared memory, changes go to the broker.

Figures are exact and stay readable while the broker is away. A group's offsets are words of shared memory, too, so a
reset takes each queue as a member would, writes the offset, and leaves it: the queue's reader cannot undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shmq.client.administration.group import ResetStep
from shmq.client.administration.queue_change import TopicQueues, TopicSettings
from shmq.errors import ConsumeError
from shmq.figures.mapped import MappedFigures
from shmq.figures.model import QueueLag, TopicInfo
from shmq.figures.verdict import Finding, Health, Verdict, health_of
from shmq.protocol.roster import popped_messages

if TYPE_CHECKING:
    from shmq.client.wire_shm.queues import ShmQueues
    from shmq.client.wire_shm.wire import ShmWire
    from shmq.shm.core import Store


class LocalFigures:
    """Figures of this host's broker; see `Figures`.

    Args:
        wire: returns the wire of the connection, which is another one after a fork.
        queues: likewise.
    """

    def __init__(self, wire: Callable[[], ShmWire], queues: Callable[[], ShmQueues]) -> None:
        self._wire = wire
        self._queues = queues

    @property
    def place(self) -> str:
        """The broker's place, for the words of errors."""
        return f'on broker "{self._wire().place.broker_name}"'

    @property
    def queues(self) -> ShmQueues:
        """Its topics and queues."""
        return self._queues()

    @property
    def _mapped(self) -> MappedFigures:
        wire = self._wire()
        return MappedFigures(wire.store, lambda: popped_messages(wire.place.roster_path, wire.instance.generation))

    # -- topics
    @property
    def default_queues(self) -> int:
        """Queues of a new topic."""
        return self._wire().control.default_queues

    def topics(self, names: Collection[str] | None = None) -> list[TopicInfo]:
        """Return topics, those of these names if they exist."""
        return self._mapped.topics(names)

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of this name."""
        return self._wire().store.topic_find(name) >= 0

    def is_on_every_broker(self, name: str) -> bool:
        """Whether no broker lacks a topic; there is one broker."""
        return self.has_topic(name)

    def topic_queues(self, name: str) -> TopicQueues | None:
        """Return the queues of a topic, None when there is no such topic."""
        info = self._mapped.topic(name)
        if info is None:
            return None
        stored = {queue.queue_id: queue.messages for queue in info.queues}
        return TopicQueues(info.read_queues, info.write_queues, stored)

    def create_topic(self, name: str, settings: TopicSettings) -> bool:
        """Create or change a topic, and wait until it is in shared memory; return whether it is new."""
        is_new = self._wire().control.create_topic(
            name,
            queues=settings.queues.write_queues,
            read_queues=settings.queues.read_queues,
            perm=settings.perm,
            kind=settings.kind,
            flush=settings.flush,
        )
        self.queues.wait_for_topic(name)
        return is_new

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        if not self.has_topic(name):
            raise self.queues.topic_not_found(name, may_be_made=False)
        self._wire().control.delete_topic(name)

    # -- groups
    def group_names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return self._mapped.group_names()

    def has_group(self, name: str) -> bool:
        """Whether there is a group of this name."""
        return self._mapped.has_group(name)

    def lags(self, group: str) -> list[QueueLag]:
        """Return the progress of a group on every queue it has an offset for, by topic and queue."""
        return self._mapped.progress(group).get(group, [])

    def members(self, group: str) -> list[str]:
        """Return the client ids of a group, sorted."""
        return self._wire().control.members(group)

    def move(self, group: str, topic: str, wanted: Mapping[int, int], *, dry_run: bool) -> list[ResetStep]:
        """Let a group go on at {queue id: offset} of a topic, or say what that would do."""
        wire = self._wire()
        store = wire.store
        if dry_run:
            now = {lag.queue_id: lag.committed for lag in self.lags(group) if lag.topic == topic}
            return [ResetStep(queue_id, now.get(queue_id, -1), offset) for queue_id, offset in sorted(wanted.items())]
        slots = {queue_id: slot for queue_id, _, slot in wire.control.offset_slots(group, topic)}
        steps = [
            ResetStep(queue_id, store.offset_get(slots[queue_id]), offset)
            for queue_id, offset in sorted(wanted.items())
            if queue_id in slots
        ]
        write_offsets(
            store,
            [(slots[step.queue_id], step.new) for step in steps],
            lambda owner: ConsumeError(
                f'group "{group}" reads topic "{topic}" now ({_reader(store, owner)})',
                hint="stop its members, reset, and start them again",
            ),
        )
        return steps

    def delete_group(self, group: str) -> None:
        """Forget a group and its offsets."""
        self._wire().control.delete_group(group)

    # -- the broker
    def status(self) -> dict[str, Any]:
        """Return what the broker says about itself: processes, members, version."""
        return self._wire().control.status()

    def health(self) -> Health:
        """Look whether the broker is well."""
        from shmq.figures.health import attached_findings  # much code, for a client that asks

        wire, alive = self._wire(), self._wire().control.alive
        plane = "the control plane answers" if alive else "the control plane is gone; sending and receiving go on"
        verdict = Verdict.OK if alive else Verdict.CRITICAL
        control = Finding("control", verdict, plane, facts={"alive": int(alive)})
        return health_of([control, *attached_findings(wire.place, wire.store)])


def write_offsets(store: Store, wanted: Iterable[tuple[int, int]], being_read: Callable[[int], ConsumeError]) -> None:
    """Write offsets into slots, all or none: every queue is owned first, as a member does, so that none begins to read.

    A queue that is ours already is read by a consumer of this very process, which would go on where it was.

    Args:
        wanted: offset slots, and what to write.
        being_read: returns the error for a queue that the member in a client slot reads.
    """
    entries, taken = list(wanted), []
    try:
        for slot, _ in entries:
            if store.offset_is_own(slot) or not store.offset_take(slot):
                raise being_read(store.offset_owner(slot))
            taken.append(slot)
        for slot, offset in entries:
            store.offset_set(slot, offset)
    finally:
        for slot in taken:
            store.offset_leave(slot)


def _reader(store: Store, owner: int) -> str:
    return "a consumer of this process" if owner == store.client_slot else f"client slot {owner}"
