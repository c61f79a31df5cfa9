"""Topics, groups and offsets of this host's broker: figures are read from shared memory, changes go to the broker.

Figures are exact and stay readable while the broker is away. A group's offsets are words of shared memory, too, so a
reset takes each queue as a member would, writes the offset, and leaves it: the queue's reader cannot undo it.

On a host that follows, groups are the leader's: their members are asked for there, and a reset is done there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from shmq.client.administration.interface import ResetStep, TopicQueues, TopicSettings
from shmq.client.refusals import AWAY
from shmq.errors import ConsumeError
from shmq.figures.mapped import MappedFigures, Popped
from shmq.figures.verdict import Finding, Health, Verdict, health_of
from shmq.protocol.roster import popped_messages

if TYPE_CHECKING:
    from shmq.client.administration.remote_figures import RemoteFigures
    from shmq.client.leader import Leader
    from shmq.client.wire_shm.control import ControlClient
    from shmq.client.wire_shm.wire import ShmQueues, ShmWire
    from shmq.shm.core import Store


class HostFigures(MappedFigures):
    """A broker of this host: its memory, and its control plane where something is changed; see `Changes`.

    Args:
        store, popped: as of `MappedFigures`.
        control: returns the control plane.
    """

    def __init__(
        self, store: Callable[[], Store], popped: Callable[[], Popped], control: Callable[[], ControlClient]
    ) -> None:
        super().__init__(store, popped)
        self._control = control

    @property
    def default_queues(self) -> int:
        return self._control().default_queues

    def is_on_every_broker(self, topic: str) -> bool:
        return self.has_topic(topic)

    def topic_queues(self, topic: str) -> TopicQueues | None:
        for info in self.topics([topic]):
            stored = {queue.queue_id: queue.messages for queue in info.queues}
            return TopicQueues(info.read_queues, info.write_queues, stored)
        return None

    def create_topic(self, name: str, settings: TopicSettings) -> bool:
        queues, perm, kind, flush = settings.queues, settings.perm, settings.kind, settings.flush
        return self._control().create_topic(
            name, queues=queues.write_queues, read_queues=queues.read_queues, perm=perm, kind=kind, flush=flush
        )

    def delete_topic(self, name: str) -> None:
        self._control().delete_topic(name)

    def create_group(self, name: str) -> None:
        self._control().create_group(name)

    def delete_group(self, group: str) -> None:
        self._control().delete_group(group)

    def members(self, group: str) -> list[str]:
        return self._control().members(group)


class LocalFigures(HostFigures):
    """The same, of a connection; see `Figures`.

    Args:
        wire: returns the wire of the connection, which is another one after a fork.
        queues: likewise.
    """

    is_asked = False

    def __init__(self, wire: Callable[[], ShmWire], queues: Callable[[], ShmQueues]) -> None:
        def popped() -> Popped:
            return popped_messages(wire().place.roster_path, wire().instance.generation)

        super().__init__(lambda: wire().store, popped, lambda: wire().control)
        self._wire = wire
        self._queues = queues

    @property
    def place(self) -> str:
        return f'on broker "{self._wire().place.broker_name}"'

    @property
    def queues(self) -> ShmQueues:
        return self._queues()

    def create_topic(self, name: str, settings: TopicSettings) -> bool:
        is_new = super().create_topic(name, settings)
        self.queues.wait_for_topic(name)
        return is_new

    def delete_topic(self, name: str) -> None:
        """Delete a topic; the error for one that does not exist names what may have been meant."""
        if not self.has_topic(name):
            raise self.queues.topic_not_found(name, may_be_made=False)
        super().delete_topic(name)

    def members(self, group: str) -> list[str]:
        with contextlib.suppress(*AWAY):
            if (there := leader_figures(self._wire().control.leader)) is not None:
                return there.members(group)
        return super().members(group)

    def move(self, group: str, topic: str, wanted: Mapping[int, int], *, dry_run: bool) -> list[ResetStep]:
        wire = self._wire()
        if (there := leader_figures(wire.control.leader)) is not None:
            return there.move(group, topic, wanted, dry_run=dry_run)
        store = wire.store
        if dry_run:
            lags = self.progress(group).get(group, ())
            now = {lag.queue_id: lag.committed for lag in lags if lag.topic == topic}
            return [ResetStep(queue_id, now.get(queue_id, -1), offset) for queue_id, offset in sorted(wanted.items())]
        slots = self.queues.offset_slots(group, topic)
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

    def status(self) -> dict[str, Any]:
        return self._wire().control.status()

    def health(self) -> Health:
        from shmq.figures.health import attached_findings  # much code, for a client that asks

        wire, alive = self._wire(), self._wire().control.alive
        plane = "the control plane answers" if alive else "the control plane is gone; sending and receiving go on"
        verdict = Verdict.OK if alive else Verdict.CRITICAL
        control = Finding("control", verdict, plane, facts={"alive": int(alive)})
        return health_of([control, *attached_findings(wire.place, wire.store)])


def leader_figures(leader: Leader | None) -> RemoteFigures | None:
    """Return the figures of the leader, asked for there; None where it is this host, is unknown, or has other groups.

    Raises:
        NotMaster: it cannot be reached.
    """
    if leader is None or not (leader.is_elsewhere and leader.owns_groups):
        return None
    from shmq.client.administration.remote_figures import RemoteFigures

    session = leader.session
    return RemoteFigures(lambda: session.wire, lambda: session.queues, session.wire.place.broker_name)


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
