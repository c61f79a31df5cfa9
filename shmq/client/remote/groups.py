"""The consumers of one TCP connection as members of their groups: shares, offsets and registration.

    every 30 s   routes and heartbeats        every 20 s   locks of ordered consumers        every 5 s   offsets

Invariants:
    1. The queues of the topic and those of the group's retry topics are shared out one by one, as RocketMQ does it; one
       consumer of a connection, the group's first, reads the connection's share of %RETRY%group.
    2. While no broker can name the group's members, everything stays as it is.
    3. Offsets are also committed when a queue is left and at close, before the group is left.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from shmq.client.living import Living
from shmq.client.remote.duties import Duties, Upkeep
from shmq.client.remote.progress import MemberReader, QueueProgress
from shmq.client.remote.pulls import GroupReader, PullReader
from shmq.client.remote.questions import QueueQuestions
from shmq.client.remote.registration import Registration
from shmq.client.remote.share import TcpShare
from shmq.client.spec import ConsumerSpec, Wanted, reads_retries
from shmq.client.wire import LOG, UNWATCHED, Handed, QueueSlot, ReaderOwner, Watcher
from shmq.client.wire_tcp.network import countdown
from shmq.client.wire_tcp.route import Route
from shmq.client.wire_tcp.wire import LEAVE_TIMEOUT, TcpWire
from shmq.errors import BrokerNotRunning, ShmqError, UsageError
from shmq.message import TOPIC_BYTES_MAX, retry_topic, retry_topic_of
from shmq.protocol.allocation import strategy_of
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import Message


class TcpGroups:
    """The readers of one connection and their groups; any thread may use it."""

    def __init__(self, wire: TcpWire, questions: QueueQuestions) -> None:
        self.registration = Registration(wire)
        self._wire = wire
        self._questions = questions
        self._allocate = strategy_of(wire.place.options.allocation)
        self._readers: Living[GroupReader] = Living(lambda reader: reader.stopped)
        self._shares: Living[TcpShare] = Living(lambda share: share.ended)
        self._adopted: Living[weakref.ref[TcpShare]] = Living(lambda known: known() is None)
        self._leaving: set[Future[None]] = set()
        self._watcher = UNWATCHED
        self._upkeep = Upkeep(
            wire, questions, self.registration, lambda: self.readers, lambda: self.shares, self._members_changed
        )
        self._duties = Duties(wire, questions, self.registration, lambda: self.readers, self._members_changed)
        wire.on_route, wire.on_broker_back = self._route_changed, self._broker_back
        wire.on_masters = self._masters_changed
        wire.network.soon(self._upkeep.start)

    def watch(self, watcher: Watcher) -> None:
        """Set the watcher, called on the I/O thread; brokers of RocketMQ refuse no heartbeat after a reconnection."""
        self._watcher = watcher

    def _members_changed(self, group: str) -> None:
        self._watcher.members_changed(group)

    def _route_changed(self, route: Route) -> None:
        if self._upkeep.is_running:
            self._upkeep.beat_soon()
            for group in self.registration.groups_of(route.topic):
                self._members_changed(group)

    def _masters_changed(self, brokers: Collection[str]) -> None:
        """Brokers have other masters, which know nothing of locks."""
        for reader in self._pulling:
            reader.pull_anew(brokers)
        self._doubt_locks(brokers, holders_first=True)

    def _doubt_locks(self, brokers: Collection[str], *, holders_first: bool) -> None:
        for share in self.shares:
            share.doubt_locks(brokers, holders_first=holders_first)
        if self._upkeep.is_running:
            self._upkeep.confirm_locks_soon()

    def _broker_back(self, brokers: Collection[str]) -> None:
        self._doubt_locks(brokers, holders_first=False)
        self._upkeep.beat_soon()
        self._watcher.reconnected()

    # -- membership
    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        self.registration.set(producer_groups, specs)
        self._wire.call(self.registration.register())

    def beat(self) -> None:
        """Say it again, and hear that a broker is there.

        Raises:
            ConnectError, RequestTimeout: none is.
        """
        self._wire.call(self.registration.beat())

    def unregister(self, group: str) -> None:
        """Leave a group, after its offsets were committed."""
        self.drain()
        self._wire.call(self.registration.leave(group))

    def close(self) -> None:
        """Commit and say goodbye; never raises."""
        try:
            if not self._wire.network.is_own_thread:
                for share in self._shares:
                    share.leave_all()  # of a consumer that was dropped; those that were closed have left
                self.drain()
                self._wire.call(self.registration.leave(None), LEAVE_TIMEOUT)
        except (ShmqError, RuntimeError):
            pass  # brokers find out by themselves

    def drain(self) -> None:
        """Wait, not for long, for what was begun when queues were left: their commits, and the end of their locks."""
        deadline = time.monotonic() + LEAVE_TIMEOUT
        for future in list(self._leaving):
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except (ShmqError, TimeoutError):
                continue  # the offset is an older one now: messages come twice, none is lost

    def expect(self, work: Future[None]) -> None:
        """Let the end of a group wait for something that was begun."""
        self._leaving.add(work)
        work.add_done_callback(self._leaving.discard)

    # -- shares
    def assignment(self, spec: ConsumerSpec) -> tuple[list[QueueSlot], list[QueueSlot]]:
        return self._wire.call(self._assignment(spec))

    async def _assignment(self, spec: ConsumerSpec) -> tuple[list[QueueSlot], list[QueueSlot]]:
        wire, client_id = self._wire, self._wire.client_id
        left = countdown(wire.network.loop, wire.timeout)
        queues = await self._queues(spec.topic, left())
        if spec.model == "broadcasting" or spec.group is None:
            slots = [wire.slot(queue) for queue in queues]
            return slots, slots
        if not queues:
            return [], []
        members = await self._questions.members(spec.group, spec.topic, timeout=left())
        if client_id not in members:
            raise BrokerNotRunning(
                f'the brokers do not list this client in group "{spec.group}" yet', hint="it is asked again"
            )
        wanted = [wire.slot(queue) for queue in self._allocate(members, client_id, queues)]
        retry_topics = [retry_topic_of(spec.group, spec.topic)]
        if reads_retries(spec, self.registration.specs):
            retry_topics.append(retry_topic(spec.group))
        for topic in retry_topics:
            retries = await self._retry_queues(topic, left) if len(topic) <= TOPIC_BYTES_MAX else ()
            sharers = await self._questions.members(spec.group, topic, timeout=left()) if retries else []
            wanted += [wire.slot(queue, retry=True) for queue in self._allocate(sharers, client_id, retries)]
        return wanted, [wire.slot(queue) for queue in queues]

    async def _queues(self, topic: str, timeout: float) -> Sequence[MessageQueue]:
        route = await self._wire.names.route(topic, timeout=timeout)
        return route.readable if route is not None else ()

    async def _retry_queues(self, topic: str, left: Callable[[], float]) -> Sequence[MessageQueue]:
        """As `_queues`; but a topic that was missing a moment ago is asked for again: it may be why we are here."""
        names = self._wire.names
        if names.routes.old(topic) is None:
            await names.refresh(topic, timeout=left())
        return await self._queues(topic, left())

    def why_unassigned(self, spec: ConsumerSpec, share: Any) -> str:
        return str(self._wire.call(self._why_unassigned(spec, share)))

    async def _why_unassigned(self, spec: ConsumerSpec, share: TcpShare) -> str:
        wire, group = self._wire, spec.group
        left = countdown(wire.network.loop, wire.timeout)
        try:
            queues = await self._queues(spec.topic, left())
            members = await self._questions.members(group, spec.topic, timeout=left()) if group else []
        except ShmqError as error:
            return f"the brokers could not say who is in the group: {error}"
        if not queues:
            return "the topic does not exist, or has no queue that may be read; it is looked for again"
        if group is not None and wire.client_id not in members:
            return "the brokers do not list this client as a member of the group"
        if share.missing:
            return f"its queues could not be opened yet: {share.last_error or 'the broker has not answered'}"
        return (
            f"the group has {len(members)} members for {len(queues)} queues; "
            f"more queues: shmq topic update {spec.topic} --queues {len(members)}"
        )

    # -- readers and their queues
    keeps_readers = True

    def open(
        self, owner: ReaderOwner, spec: ConsumerSpec, on_left: Callable[[int], None]
    ) -> tuple[GroupReader, TcpShare]:
        reader = GroupReader(self._wire, self._questions, self.registration, owner, spec, self._reader_of)
        self._readers.add(reader)
        share = TcpShare(self._wire, self._questions, reader, spec, on_left, self._release)
        self._shares.add(share)
        return reader, share

    @property
    def readers(self) -> list[MemberReader]:
        """The readers that are not closed."""
        return [*self._pulling, *(share.reader for share in self.adopted)]

    @property
    def _pulling(self) -> list[GroupReader]:
        return [reader for reader in self._readers if not reader.stopped]

    def _reader_of(self, group: str | None, topic: str) -> GroupReader | None:
        return next((each for each in self._pulling if (each.spec.group, each.spec.topic) == (group, topic)), None)

    def hand_over(self, spec: ConsumerSpec, message: Message) -> Handed | None:
        mine = (reader for reader in self._pulling if reader.spec[:2] == spec[:2])
        return next((handed for reader in mine if (handed := reader.hand_over(message)) is not None), None)

    def adopt(self, reader: MemberReader, on_left: Callable[[int], None]) -> TcpShare:
        """Return the share of a reader of another session; both end with whichever consumer holds the share."""
        share = TcpShare(self._wire, self._questions, reader, reader.spec, on_left, self._release)
        self._adopted.add(weakref.ref(share))
        return share

    @property
    def questions(self) -> QueueQuestions:
        """Asks the brokers about queues; on the I/O thread."""
        return self._questions

    @property
    def adopted(self) -> list[TcpShare]:
        """The shares of readers of another session."""
        return [share for known in self._adopted if (share := known()) is not None]

    @property
    def shares(self) -> list[TcpShare]:
        """All shares that are not over."""
        return [*self._shares, *self.adopted]

    def pull_reader(
        self,
        tags: Sequence[str],
        codec: Callable[[bytes], Any] | None,
        where: str | None = None,
        verify: bool | None = None,
    ) -> PullReader:
        """Return a reader for a consumer that decides itself where it reads; the broker looks at the checksums."""
        return PullReader(self._wire, self._questions, wanted=Wanted(tuple(tags), where), codec=codec)

    def _release(self, spec: ConsumerSpec, queues: Sequence[QueueProgress]) -> None:
        """Commit the offsets of queues that were left, and give up their locks, in the background."""
        if spec.group is None or spec.model != "clustering":
            return
        # Only progress is written: a member that had a queue for a moment must not undo what another one wrote since.
        ends = {queue.queue: queue.committed if queue.committed != queue.known_offset else -1 for queue in queues}
        with contextlib.suppress(UsageError):  # it is closed: brokers find out by themselves
            self.expect(self._wire.network.submit(self._end(spec, ends)))

    async def _end(self, spec: ConsumerSpec, ends: Mapping[MessageQueue, int]) -> None:
        """Commit where the reading of queues ended (-1: where it began), and give up their locks."""
        wire, group = self._wire, spec.group
        assert group is not None
        for queue, offset in ends.items():
            try:
                if offset >= 0:
                    await self._questions.commit(group, queue, offset)
                if spec.ordered:
                    await self._questions.unlock(group, wire.client_id, [queue])
            except ShmqError as error:
                LOG.warning(
                    'offset %d of queue %d of topic "%s" could not be committed for group "%s": %s',
                    offset,
                    queue.queueId,
                    queue.topic,
                    group,
                    error,
                )
