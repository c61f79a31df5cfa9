"""The wire to the broker of this host: its control socket, and the segments of one generation mapped here.

`ShmQueues` reads its topics and queues from them; the broker is asked only to create a topic.

    attach    the control plane says who we are -> segments are checked and mapped -> the kernel counts us as present
    renew     after a reconnection: the next generation is mapped, or this one goes on under the new client slot; the
              generation before stays mapped until the one after this, since other threads may be inside
    close     the reverse; what is still exported (messages, views) keeps its own mapping of the log alive
    abandon   in a forked child: let go of everything without telling the broker anything, it all belongs to the parent

A broker that answers while its segments or its log are not where this process looks has another /dev/shm, IPC namespace
or file system. An error of its own says so at once: a hint to start the broker would lead the user astray.

Invariant: the segments belong to the owner of the socket that described them. `store` is another object after a
renewal, so parts ask for it each time and keep none.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from shmq.client import options
from shmq.client.edge import edge
from shmq.client.leader import TABLES_SECONDS, Leader
from shmq.client.position import Position, start_offset
from shmq.client.table_cache import TableCache
from shmq.client.wire import Question, QueueSlot, guarded
from shmq.client.wire_shm.control import ControlClient
from shmq.client.wire_shm.control_channel import Attachment
from shmq.client.wire_shm.topic_life import is_confirmed
from shmq.errors import (
    BrokerNotRunning,
    ConnectError,
    DamagedMessage,
    ForeignNamespace,
    NotMaster,
    RemoteError,
    RequestTimeout,
    SegmentError,
    ShmqError,
    TopicNotFound,
    UsageError,
)
from shmq.message import PERM_READ_WRITE, PERM_WRITE, check_open_topic, check_topic, is_system_topic, missing_topic
from shmq.protocol.codes import Response, Role, TopicFlush
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import Answer
from shmq.shm.core import Message, Reader, Store
from shmq.shm.instance import Instance
from shmq.shm.log_reach import hold_log
from shmq.shm.place import Place
from shmq.shm.presence import attach_presence, detach_presence
from shmq.shm.segment import are_here, open_store

_AWAY = (ConnectError, NotMaster, RequestTimeout)


_REPLACED_SECONDS = 3.0  # a broker that serves segments which are given up notices within a second


class ShmWire:
    """One attachment to a broker of this host; `timeout` in seconds."""

    is_local = True
    __slots__ = (
        "_counted",
        "_flushes",
        "_left",
        "client_id",
        "control",
        "instance",
        "place",
        "store",
        "timeout",
    )

    def __init__(self, place: Place, *, client_id: str, timeout: float) -> None:
        self.place = place
        self.client_id = client_id
        self.timeout = timeout
        self._counted = False
        self._left: Store | None = None  # of the generation before, which other threads may be using; then closed
        self._flushes: TableCache[int] = TableCache()
        self.control = ControlClient.connect(place, client_id=client_id, role=Role.BOTH, timeout=timeout)
        try:
            self.store: Store
            self.instance: Instance
            self.store, self.instance = self._map()
        except BaseException:
            self.control.close()
            raise

    def _map(self) -> tuple[Store, Instance]:
        control = self.control
        while True:
            attachment = control.attachment
            try:
                store = map_segments(attachment, alive=control.alive)
            except (SegmentError, ForeignNamespace):
                # They may have been replaced since the broker has named them.
                if are_here(attachment.instance) or not control.is_attached_anew(
                    attachment, min(self.timeout, _REPLACED_SECONDS)
                ):
                    raise
                continue
            self._counted = True
            store.use_client(attachment.client_slot, attachment.slot_generation)
            return store, attachment.instance

    @property
    def alive(self) -> bool:
        return self.control.alive

    @property
    def is_current(self) -> bool:
        """Whether the segments mapped here are those of the broker that answers."""
        return self.control.attachment.instance.generation == self.instance.generation

    @property
    def wait_durable(self) -> bool:
        """Whether a send is answered only once it is on disk (synchronous flush)."""
        return self.control.attachment.wait_durable

    def counts_on_disk(self, topic: str) -> bool:
        """Whether a message of a topic is answered only once it is on disk: as the topic says, else as the broker."""
        flush = self._flush_of(topic)
        return self.wait_durable if flush == TopicFlush.BROKER else flush == TopicFlush.SYNC

    def says_on_disk(self, topic: str) -> bool:
        """Whether the topic itself says so, whatever the broker does: then the core waits at each send."""
        return self._flush_of(topic) == TopicFlush.SYNC

    def _flush_of(self, topic: str) -> int:
        store = self.store
        flushes = self._flushes.of(store)
        flush = flushes.get(topic)
        if flush is None:
            index = store.topic_find(topic)
            if index < 0:
                return TopicFlush.BROKER
            flush = flushes[topic] = store.topic(index)["flush"]
        return flush

    def message_at(self) -> Callable[..., Message] | None:
        """Return what reads the message at a log position; None while the broker that answers has another log."""
        return self.store.message_at if self.is_current else None

    def now_ms(self) -> int:
        return self.store.clock_ms

    # -- requests
    def brokers(self, topic: str | None = None) -> list[str]:
        return [self.instance.broker_name] if topic is None or self.store.topic_find(topic) >= 0 else []

    def address(self, broker: str) -> str:
        """Return "": it is on this host."""
        return ""

    def request(self, question: Question, timeout: float | None = None) -> Command:
        _, code, ext, body = question  # there is one broker
        return self.control.request(code, ext, body, timeout)

    def begin(
        self,
        question: Question,
        then: Callable[[Answer], None],
        *,
        timeout: float | None = None,
        slave_may_answer: bool = False,
    ) -> None:
        """Ask the broker without waiting; an answer comes when it comes, or the link breaks."""
        leader = self.control.leader
        if leader is not None and leader.takes(question.code):
            leader.begin(question, then, timeout)
            return
        del slave_may_answer

        def answered(reply: Command | None) -> None:
            then(BrokerNotRunning("the connection broke before the answer came") if reply is None else reply)

        try:
            self.control.begin(question.code, question.ext or {}, question.body, then=answered)
        except ShmqError as error:  # it is away
            guarded(then, error)

    # -- life
    def renew(self) -> bool:
        """Map the next generation (True), or go on with this one under the new client slot."""
        attachment = self.control.attachment
        if self.is_current:
            self.store.use_client(attachment.client_slot, attachment.slot_generation)
            return False
        self._discount()
        left, self._left = self._left, self.store
        self.store, instance = self._map()
        if left is not None:
            left.close()
        self.instance = instance  # last: where these segments are called current, `store` are these
        self._flushes = TableCache()  # which keeps the segments of before
        return True

    def close(self) -> None:
        with contextlib.suppress(ShmqError, OSError):
            self.control.close()
        self._discount()
        self.store.close()
        if self._left is not None:
            self._left.close()

    def abandon(self) -> None:
        self.control.abandon()
        self._counted = False  # the kernel does not count the child for what its parent attached

    def _discount(self) -> None:
        if self._counted:
            self._counted = False
            detach_presence(self.instance)


def map_segments(attachment: Attachment, *, alive: bool) -> Store:
    """Return the mapped segments of an attachment, counted as attached; `alive` says whether its broker answers now.

    Raises:
        ForeignNamespace: they, or the log's files, are in a namespace that this process does not share.
        SegmentError, PermissionDenied, VersionMismatch: as `open_store`.
    """
    instance = attachment.instance
    try:
        store = open_store(instance, writable=True, uid=attachment.broker_uid)
    except SegmentError as error:
        if not alive or are_here(instance):
            raise
        raise ForeignNamespace(
            f'broker "{instance.broker_name}" answers, but its segments are not in the shared memory of this process',
            hint="share its IPC namespace and its /dev/shm (docker: --ipc=container:<broker>), or connect over TCP",
        ) from error
    try:
        hold_log(instance, store)
    except ShmqError:
        store.close()
        raise
    attach_presence(instance)
    return store


def _not_come(topic: str, leader: str, seconds: float) -> ConnectError:
    if leader:
        return ConnectError(
            f'topic "{topic}" is at the master {leader}, and did not come to this host within {seconds:g} s',
            hint="shmq cluster status says how the copy of the master goes on, and what to do",
        )
    return ConnectError(
        f'topic "{topic}" was created, but did not appear in shared memory within {seconds:g} s',
        hint="see `shmq health`",
    )


class ShmQueues:
    """Topics and queues; see `shmq.client.wire.Queues`."""

    __slots__ = ("_wire",)

    def __init__(self, wire: ShmWire) -> None:
        self._wire = wire

    def version(self, topic: str) -> int | None:
        store = self._wire.store
        version = store.table_version  # read first: a change in between is looked at again
        return version if store.topic_find(topic) >= 0 else None

    # -- topics
    @edge
    def resolve(self, topic: str) -> int:
        """Return the index of a topic, creating it if the broker creates topics on first use.

        Raises:
            TopicNotFound: it does not exist and may not be created.
            InvalidName: no topic can have this name.
        """
        index = self.find(topic)
        if index >= 0:
            return index
        attachment = self._wire.control.attachment
        if not attachment.auto_create or is_system_topic(topic):
            raise self.topic_not_found(topic, may_be_made=not is_system_topic(topic))
        return self.put_topic(topic, queues=attachment.default_queues, only_if_missing=True)

    def find(self, topic: str) -> int:
        """Return the index of a topic, -1 where there is none; one that the leader has made just now is waited for."""
        index = self._wire.store.topic_find(topic)
        if index >= 0:
            return index
        check_topic(topic)
        leader = self._wire.control.leader
        return self.wait_for_topic(topic) if leader is not None and leader.has_topic(topic) else -1

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
        """Let the broker create or change a topic and return its index once it is in shared memory.

        One that is only to be there need not be on slaves yet: what is sent to it waits for them by itself.
        """
        control = self._wire.control
        try:
            control.create_topic(topic, queues=queues, perm=PERM_READ_WRITE, only_if_missing=only_if_missing)
        except RemoteError as error:
            if not only_if_missing or error.code not in (Response.FLUSH_DISK_TIMEOUT, Response.FLUSH_SLAVE_TIMEOUT):
                raise
        return self.wait_for_topic(topic)

    def wait_for_topic(self, topic: str) -> int:
        """Return the index of a topic that the broker has made, once it is in shared memory.

        Raises:
            ConnectError: it does not come, as nothing of what the master stores comes to this host, or the broker is
                slow.
        """
        wire = self._wire
        leader = wire.control.leader
        follows = leader is not None and leader.is_elsewhere
        master = wire.store.leader if follows else ""  # now: a switch may clear it while this waits
        comes_later = leader is not None and follows and not leader.copying.stands_still
        seconds = wire.timeout + (TABLES_SECONDS if comes_later else 0.0)
        deadline = time.monotonic() + seconds
        while (index := wire.store.topic_find(topic)) < 0:
            if time.monotonic() >= deadline:
                raise _not_come(topic, master, seconds)
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
    def write_queues(self, topic: str, *, with_master: bool = False) -> Sequence[int]:
        entry = self._wire.store.topic(self.resolve(topic))
        return range(entry["write_queues"] if entry["perm"] & PERM_WRITE else 0)

    def read_queues(self, topic: str, *, must_exist: bool = False) -> list[QueueSlot]:
        if must_exist and self.find(topic) < 0:
            raise self.topic_not_found(topic, may_be_made=False)
        return self._slots(self.resolve(topic))

    def read_queues_here(self, topic: str) -> list[QueueSlot]:
        """Return the readable queues of a topic as this host's tables have them now; the leader is not asked.

        Raises:
            TopicNotFound: it is not there.
        """
        index = self._wire.store.topic_find(topic)
        if index < 0:
            raise self.topic_not_found(topic, may_be_made=False)
        return self._slots(index)

    def _slots(self, topic_index: int) -> list[QueueSlot]:
        entry = self._wire.store.topic(topic_index)
        return [QueueSlot(queue_id, index) for queue_id, index in enumerate(entry["queues"][: entry["read_queues"]])]

    def bounds(self, topic: str, queue: QueueSlot) -> tuple[int, int]:
        row = self._wire.store.queue(queue.queue_index)
        return row.offset_min, row.offset_max

    def place_in(self, topic: str, queue: QueueSlot, position: Position) -> int:
        return start_offset(self._wire.store, queue.queue_index, position)

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(self._wire.instance.broker_name, queue_id, topic)

    def queue_id(self, queue: MessageQueue) -> int:
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

    @property
    def is_copy(self) -> bool:
        return self._leader is not None

    def born(self, topic: str) -> int:
        store = self._wire.store
        index = store.topic_find(topic)
        if index < 0:
            raise self.topic_not_found(topic, may_be_made=False)
        return int(store.topic(index)["born_position"])

    def is_to_come(self, topic: str) -> bool:
        store = self._wire.store
        index = store.topic_find(topic)
        return self.is_copy and index >= 0 and is_confirmed(store, index)

    @property
    def _leader(self) -> Leader | None:
        """The leader, if that is another host: groups are its."""
        leader = self._wire.control.leader
        return leader if leader is not None and leader.is_elsewhere and leader.owns_groups else None

    def committed(self, group: str, topic: str) -> dict[int, int]:
        if (leader := self._leader) is not None:
            with contextlib.suppress(*_AWAY):
                return leader.session.queues.committed(group, topic)
        store = self._wire.store
        offsets = {queue_id: store.offset_get(slot) for queue_id, slot in self.offset_slots(group, topic).items()}
        return {queue_id: offset for queue_id, offset in offsets.items() if offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        if (leader := self._leader) is not None:
            with contextlib.suppress(*_AWAY):
                return leader.commit(group, topic, offsets)
        slots = self.offset_slots(group, topic)
        unknown = sorted(offsets.keys() - slots.keys())
        if unknown:
            raise UsageError(f"topic {topic} has no queue {unknown[0]}", hint="see queues()")
        for queue_id, offset in offsets.items():
            self._wire.store.offset_set(slots[queue_id], offset)
