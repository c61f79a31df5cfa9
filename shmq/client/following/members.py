"""Members of groups on a host that may follow: the groups are the leader's, the messages this host's copy of the log.

    this host               members register at     queues, offsets and locks                   messages
    leads                   its own bridge          in shared memory (`ShmGroups`)              in shared memory
    follows a leader        both                    at the leader, over TCP (`TcpGroups`)       in shared memory
    is cut off, or late     both                    at the leader, over TCP                     sent by the leader
    its leader is gone      its own bridge          in shared memory                            in shared memory
    refuses its leader      its own bridge          in shared memory                            in shared memory

A leader that does not answer for some seconds is gone (`Contact`). Then the members of this host share among themselves
what it has, and the slave says to the master that comes again what they committed. A slave refuses a master whose log
does not go on where its own ends, until an operator has done something: its members read what is here, and hold none of
the leader's queues, which they could not read. A host is cut off when its leader answers and nothing of its log comes
here, and late where it is far behind: then the leader sends the members their messages until the copy is up to date, as
their queues would stand still.
On a host that follows a thread looks each second who leads. Where the members belong elsewhere, it reports a
reconnection, and every consumer opens anew.

Invariants:
    (1) all consumers of a connection are in one place, but while they move;
    (2) progress goes with a member that moves, as far as no message can be stepped over by that (`KeptProgress`);
    (3) a registration that fails while they move leaves them on this host; the next look tries again;
    (4) offsets of a log that is none of the leader's stay in the segments of that log.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shmq.client.background import started
from shmq.client.following.contact import Contact
from shmq.client.following.kept_progress import KeptProgress, Key
from shmq.client.leader import Leader
from shmq.client.queue_share import QueueShare
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import LOG, UNWATCHED, Handed, QueueReader, QueueSlot, ReaderOwner, Watcher
from shmq.client.wire_shm.groups import ShmGroups
from shmq.client.wire_shm.wire import ShmWire
from shmq.errors import BrokerNotRunning, ConnectError, NotMaster, RequestTimeout, ShmqError
from shmq.shm.core import Message, Reader

if TYPE_CHECKING:
    from shmq.client.following.reader import MappedReader
    from shmq.client.remote.groups import TcpGroups
    from shmq.protocol.dialect import MessageQueue

_LOOK_SECONDS: Final = 1.0
_AWAY = (ConnectError, RequestTimeout, NotMaster)


class _Place(NamedTuple):
    """What a consumer is opened for."""

    groups: TcpGroups | None = None  # the leader's; None: those of this host
    reads_copy: bool = True  # and not what the leader sends


_HERE: Final = _Place()


class _Placed(NamedTuple):
    """Where a consumer was opened last."""

    place: _Place
    generation: int  # of the segments it reads
    share: weakref.ref[QueueShare]
    mapped: Callable[[], MappedReader | None]  # returns what reads for the leader's groups, if that lives


class FollowingMembers:
    """The groups of one attachment; see `shmq.client.session.Members`. Any thread may use it."""

    def __init__(self, wire: ShmWire, here: ShmGroups, leader: Leader) -> None:
        self._wire = wire
        self._here = here
        self._leader = leader
        self._watcher = UNWATCHED
        self._place = _HERE
        self._placed: dict[Key, _Placed] = {}  # by consumer; each use is one step: threads open theirs at once
        self._kept = KeptProgress(lambda: wire.store, lambda: wire.instance.generation)
        self._contact = Contact()
        self._refusing_generation = -1  # of the segments whose log is none of the leader's
        self._over = threading.Event()
        self._starting = threading.RLock()  # a handler of a signal may subscribe while its thread does
        self._lookout: threading.Thread | None = None

    def watch(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._here.watch(watcher)

    # -- registration
    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        self._here.register(producer_groups, specs)
        shared = [spec for spec in specs if spec.shares_queues]
        keys = [_key(spec) for spec in shared]
        for key, placed in list(self._placed.items()):
            if key not in keys and placed.share() is None:  # one that lives was opened since `specs` were listed
                self._placed.pop(key, None)
        if shared:
            self._look_out()
            if not self._placed:
                self._place = self._found()
        groups = self._place.groups
        if groups is None or not shared:
            self._leader.introduce(producer_groups)
            return
        try:
            self._check(groups)
            groups.watch(self._watcher)
            groups.register(producer_groups, shared)
        except ShmqError as error:
            is_new = any(key not in self._placed for key in keys)
            if not self._is_elsewhere(self._place) and not (is_new and isinstance(error, _AWAY)):
                raise
            LOG.warning("members share queues among those of this host, as the leader does not take them: %s", error)
            self._stay(refused=not isinstance(error, _AWAY))

    def _stay(self, *, refused: bool) -> None:
        self._leader.leave()  # else its heartbeats go on, and the leader counts on members that read here
        self._place = _HERE
        self._contact.left(time.monotonic(), refused=refused)
        if self._is_elsewhere(_HERE):
            self._watcher.reconnected()

    def _is_elsewhere(self, place: _Place) -> bool:
        """Whether a consumer was opened for another place."""
        return any(placed.place != place for placed in list(self._placed.values()))

    def _check(self, groups: TcpGroups) -> None:
        if not self._leader.has(groups):
            raise BrokerNotRunning("another host leads now", hint="its members are registered there in a moment")

    def unregister(self, group: str) -> None:
        groups = self._place.groups
        if groups is not None and self._leader.has(groups):
            with contextlib.suppress(*_AWAY):
                groups.unregister(group)
        self._here.unregister(group)

    def close(self) -> None:
        """Commit, and leave all groups. Never raises."""
        self._over.set()
        groups = self._place.groups
        if groups is not None and self._leader.has(groups):
            for share in groups.adopted:
                share.leave_all()  # of a consumer that was dropped; those that were closed have left
            groups.close()
        self._here.close()

    # -- who leads
    def renew(self) -> bool:
        """Go where the members belong now; True when that is another place than before."""
        if not self._placed:
            return False
        with contextlib.suppress(ConnectError):  # no thread: a registration tries again
            self._look_out()
        place, before = self._found(), self._place.groups
        if self._is_elsewhere(place):
            self.keep_progress()
        self._place = place
        if before is not None and before is not place.groups and self._leader.has(before):
            self._leader.leave()  # which is no leader of ours any more, or does not answer
        if place.groups is None and before is None and not self._leader.follows:
            self._kept.clear()  # it led and leads: its offsets are where they were
        return self._is_elsewhere(place)

    def keep_progress(self) -> None:
        """Remember how far every member is; before they move, and before the segments are mapped anew."""
        store, generation = self._wire.store, self._wire.instance.generation
        for key, placed in list(self._placed.items()):
            share, mapped = placed.share(), placed.mapped()
            if share is None or placed.generation != generation:  # the numbers of its queues mean others now
                continue
            if mapped is not None:
                mapped.keep()
                continue
            # What the leader sent may be missing here, and other messages come to stand in its place.
            if not placed.place.reads_copy or generation == self._refusing_generation:
                continue
            for slot in list(share.held.values()):
                if slot.offset_slot >= 0 and (offset := store.offset_get(slot.offset_slot)) >= 0:
                    self._kept.keep(key, slot.queue_id, slot.queue_index, offset)

    def _found(self) -> _Place:
        """Return the groups of the leader, if that is another host that answers, and these are ours."""
        if not self._leader.owns_groups:
            if self._leader.follows:
                self._refusing_generation = self._wire.instance.generation
            return _HERE
        if not self._wire.store.retired:
            self._refusing_generation = -1  # it follows in the segments of before: their log is part of the leader's
        now, contact = time.monotonic(), self._contact
        if self._place.groups is None and contact.is_avoided(now):
            return _HERE
        contact.asked(now)
        try:
            session = self._leader.session
            if session.members is not self._place.groups or contact.is_to_be_beaten(now) or not session.wire.alive:
                session.members.beat()
                contact.beaten(now)
        except _AWAY:
            return _HERE if contact.is_gone(now) else self._place
        contact.answered(now)
        return _Place(session.members, contact.reads_copy(now, self._leader.copying))

    def _look_out(self) -> None:
        """Look from now on who leads, where this host follows."""
        if self._leader.follows and self._lookout is None:
            with self._starting:
                self._lookout = self._lookout or started(
                    threading.Thread(target=self._look, name="shmq-lookout", daemon=True)
                )

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            try:
                if self._is_elsewhere(found := self._found()):
                    is_back = found.groups is not None and self._place.groups is None
                    if self._contact.is_time_to_go(time.monotonic(), is_back=is_back):
                        self._watcher.reconnected()
                elif (groups := self._place.groups) is not None and self._contact.is_silent:
                    self._save_here(groups)
            except ShmqError as error:  # this host's segments are made anew just now, which is reported as well
                LOG.debug("who leads cannot be seen now: %s", error)
            except Exception:  # the next look matters more: members would never move again
                LOG.exception("a look at who leads failed; it is repeated")

    def _save_here(self, groups: TcpGroups) -> None:
        """Write progress down on this host while the leader does not answer; the slave says it to the leader later."""
        for share in groups.adopted:
            self._move_on(share.reader.spec, {queue.number: offset for queue, offset in share.reader.progress()})

    def _move_on(self, spec: ConsumerSpec, offsets: Mapping[int, int]) -> None:
        """Raise the offsets of a member's queues on this host."""
        store = self._wire.store
        for slot in self._here.queues_of(spec):
            offset = offsets.get(slot.queue_id, -1)
            if slot.offset_slot >= 0 and offset > store.offset_get(slot.offset_slot):
                store.offset_set(slot.offset_slot, offset)

    # -- queues
    def assignment(self, spec: ConsumerSpec) -> tuple[list[QueueSlot], list[QueueSlot]]:
        groups = self._place_of(spec).groups if spec.shares_queues else None
        if groups is not None:
            self._check(groups)
            return groups.assignment(spec)
        wanted, slots = self._here.assignment(spec)
        if self._kept and spec.shares_queues:
            self._bring(spec)
        return wanted, slots

    # -- readers and shares
    @property
    def keeps_readers(self) -> bool:
        return not self._place.reads_copy

    def open(
        self, owner: ReaderOwner, spec: ConsumerSpec, on_left: Callable[[int], None]
    ) -> tuple[QueueReader, QueueShare]:
        if not spec.shares_queues:
            return self._here.open(owner, spec, on_left)
        place, generation = self._place, self._wire.instance.generation
        mapped: MappedReader | None = None
        reader: QueueReader
        share: QueueShare
        if place.groups is None:
            reader, share = self._here.open(owner, spec, on_left)
        else:
            place.groups.drain()  # of the share before: its unlocking would come after our lock
            if place.reads_copy:
                reader = kept = self._here.reader(owner, spec)
                mapped = self._mapped(place.groups, kept, spec)
                share = place.groups.adopt(mapped, on_left)
            else:
                reader, share = place.groups.open(owner, spec, on_left)
        self._placed[_key(spec)] = _Placed(place, generation, weakref.ref(share), _weakly(mapped))
        return reader, share

    def _place_of(self, spec: ConsumerSpec) -> _Place:
        placed = self._placed.get(_key(spec))
        return _HERE if placed is None else placed.place

    def _mapped(self, groups: TcpGroups, reader: Any, spec: ConsumerSpec) -> MappedReader:
        # A host that leads pays nothing for these.
        from shmq.client.following.agreement import is_part
        from shmq.client.following.reader import Copy, MappedReader

        store, generation = self._wire.store, self._wire.instance.generation

        def is_current() -> bool:  # what was read in segments that were given up may have been cut off since
            is_there = self._place.groups is groups and self._leader.has(groups)
            return is_there and self._wire.instance.generation == generation

        return MappedReader(
            reader,
            spec,
            Copy(self._index_of, lambda index: store.queue(index).offset_max),
            offset_max=groups.questions.offset_max,
            is_part=partial(is_part, store, groups.questions),
            is_current=is_current,
            keep=partial(self._kept.keep, _key(spec)),
            kept=partial(self._kept.take, _key(spec), here=False),
        )

    def _index_of(self, queue: MessageQueue) -> int:
        store = self._wire.store
        topic = store.topic_find(queue.topic)
        return store.queue_index(topic, queue.queueId) if topic >= 0 else -1

    def why_unassigned(self, spec: ConsumerSpec, share: Any) -> str:
        groups = self._place_of(spec).groups
        if groups is None:
            return self._here.why_unassigned(spec, share)
        try:
            return groups.why_unassigned(spec, share)
        except ShmqError as error:
            return f"the leader could not say who is in the group: {error}"

    def _bring(self, spec: ConsumerSpec) -> None:
        """Move the offsets of this host on to where this member was at the leader that it comes from."""
        key = _key(spec)
        indexes = {slot.queue_id: slot.queue_index for slot in self._here.queues_of(spec)}
        kept = {number: self._kept.take(key, number, index, here=True) for number, index in indexes.items()}
        self._move_on(spec, {number: offset for number, offset in kept.items() if offset is not None})

    @property
    def pull_reader(self) -> Callable[..., Reader]:
        """Makes a reader without an owner, for a consumer that decides itself where it reads."""
        return self._here.pull_reader

    def hand_over(self, spec: ConsumerSpec, message: Message) -> Handed | None:
        place = self._place_of(spec)
        groups = self._here if place.groups is None or place.reads_copy else place.groups
        return groups.hand_over(spec, message)


def _weakly(mapped: MappedReader | None) -> Callable[[], MappedReader | None]:
    return (lambda: None) if mapped is None else weakref.ref(mapped)


def _key(spec: ConsumerSpec) -> Key:
    return spec.group, spec.topic
