"""Owns one attachment to one generation of segments: control plane, mapped store, presence, and topic look-ups.

It does not know producers or consumers; a connection drops a whole session and opens the next one after a fork, or when
the broker has given its segments up.

    attach    control plane says who we are -> segments are checked and mapped -> the kernel counts us as present
    close     the reverse; what is still exported (messages, views) keeps its own mapping alive
    abandon   in a forked child: let go of everything without telling the broker anything, it all belongs to the parent

Rules:
    (1) the segments must belong to the owner of the socket that described them;
    (2) a topic is looked up in shared memory first; the control plane is asked only to create one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shmq.client import options
from shmq.client.callback import guarded
from shmq.client.consumers.assignment import reason_unassigned
from shmq.client.pop.local_poppers import Poppers
from shmq.client.pop.local_reader import LocalPopReader
from shmq.client.pop.share import PopShare
from shmq.client.producers.keywords import SpecialSend
from shmq.client.redelivery import send_back as handing
from shmq.client.requests.local import LocalRequests, reply_locally
from shmq.client.search import local as lookup
from shmq.client.wanted import Wanted
from shmq.client.wire import Answer, QueueSlot
from shmq.client.wire_shm.control import REQUEST_TIMEOUT, ControlClient
from shmq.client.wire_shm.mapping import map_segments
from shmq.client.wire_shm.registration import consumer_data
from shmq.client.wire_shm.share import Share, start_offset
from shmq.errors import BrokerNotRunning, ConnectError, ShmqError, TopicNotFound, UsageError
from shmq.message import TRACE_TOPIC, check_topic, is_system_topic, nearest
from shmq.protocol.allocation import strategy_of
from shmq.protocol.codes import Role
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import Message, Producer, Reader, Receipt, Store
from shmq.shm.place import Place
from shmq.shm.presence import detach_presence
from shmq.shm.segment import Instance

if TYPE_CHECKING:
    from shmq.client.position import Position
    from shmq.client.producers.compressed_sender import CompressingSender
    from shmq.client.search.browse import KeyQuery
    from shmq.client.spec import ConsumerSpec
    from shmq.client.transactions.local import LocalTransactions

PERM_READ_WRITE = 6
PERM_WRITE = 2


class Session:
    """Everything of a connection that dies with a generation or a fork."""

    __slots__ = (
        "_allocate",
        "_counted",
        "_internal",
        "_making",
        "_requests",
        "_specs",
        "_transactions",
        "client_id",
        "control",
        "instance",
        "place",
        "poppers",
        "store",
        "timeout",
    )

    def __init__(self, place: Place, *, client_id: str, timeout: float) -> None:
        self.place = place
        self.timeout = timeout
        self._allocate = strategy_of(place.allocation)
        self.control = ControlClient.connect(place, client_id=client_id, role=Role.BOTH, timeout=timeout)
        self._counted = False
        self._specs: tuple[ConsumerSpec, ...] = ()
        self._internal: Producer | None = None
        self.client_id = client_id
        self._requests: LocalRequests | None = None
        self._transactions: LocalTransactions | None = None
        self._making = threading.Lock()
        self.poppers = Poppers(self)
        try:
            self.instance: Instance = self.control.attachment.instance
            self.store: Store = self._map()
        except BaseException:
            self.control.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the control plane answers."""
        return self.control.alive

    @property
    def is_current(self) -> bool:
        """Whether the segments mapped here are those of the broker that answers."""
        return self.control.attachment.instance.generation == self.instance.generation

    @property
    def wait_durable(self) -> bool:
        """Whether a send is answered only once it is on disk (synchronous flush)."""
        return self.control.attachment.wait_durable

    def _map(self) -> Store:
        store = map_segments(self.control)
        self._counted = True
        store.use_client(self.control.attachment.client_slot)
        return store

    @property
    def internal_producer(self) -> Producer:
        """The producer for what the client itself stores, such as answers and traces."""
        if self._internal is None:
            self._internal = self.core_producer(self.timeout)
        return self._internal

    def core_producer(self, timeout: float, *, wait_durable: bool | None = None) -> Producer:
        """Return a new core producer; `timeout` in seconds."""
        waits = self.wait_durable if wait_durable is None else wait_durable
        special = SpecialSend(self)
        return special.bind(
            Producer(self.store, resolve=self.resolve, timeout=timeout, wait_durable=waits, special=special)
        )

    @property
    def requests(self) -> LocalRequests:
        """What sends requests and reads replies; made when it is first asked for."""
        found = self._requests
        if found is None:
            with self._making:
                if self._requests is None:
                    self._requests = LocalRequests(self, self.client_id)
                found = self._requests
        return found

    @property
    def transactions(self) -> LocalTransactions:
        """What begins and ends transactions; made when it is first asked for."""
        if self._transactions is None:
            from shmq.client.transactions.local import LocalTransactions

            with self._making:
                if self._transactions is None:
                    self._transactions = LocalTransactions(self)
        return self._transactions

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        """Store a message in the trace topic, which is made if need be."""
        self.create(TRACE_TOPIC, queues=1)
        self.internal_producer.send_oneway(TRACE_TOPIC, body, keys=keys)

    def host_of(self, receipt: Receipt) -> str:
        """Say where a broker stored a message, as "host:port"."""
        from shmq.client.observers.trace import local_host_of  # only who traces pays for it

        return local_host_of(receipt)

    def reply(self, message: Message, body: Any) -> bool:
        """Bring a reply to whoever asked; False when the requester is not there any more."""
        return reply_locally(self, self.internal_producer, message, body)

    def sender(
        self, timeout: float, *, group: str | None = None, compression: str | None = None
    ) -> Producer | CompressingSender:
        """Return a new core producer, or what packs bodies before; its group is known by the registration."""
        producer = self.core_producer(timeout)
        if compression in (None, "none"):
            return producer
        from shmq.client.producers.compressed_sender import CompressingSender  # only who packs pays for it

        return CompressingSender(self, producer, compression, timeout)

    def write_queues(self, topic: str) -> Sequence[int]:
        """Return the ids of the queues of a topic that may be written."""
        entry = self.store.topic(self.resolve(topic))
        return range(entry["write_queues"] if entry["perm"] & PERM_WRITE else 0)

    def fastest_queue(self, topic: str) -> int | None:
        """Return None: shared memory is equally near everywhere."""
        return None

    def recall(self, topic: str, handle: str, group: str) -> None:
        """Take a timed message back."""
        self.control.recall(topic, handle, group)

    def resolve(self, topic: str) -> int:
        """Return the index of a topic, creating it if the broker creates topics on first use.

        Raises:
            TopicNotFound: it does not exist and may not be created.
            InvalidName: no topic can have this name.
        """
        index = self.store.topic_find(topic)
        if index >= 0:
            return index
        check_topic(topic)
        if not self.control.attachment.auto_create or is_system_topic(topic):
            raise self.topic_not_found(topic)
        return self.put_topic(topic, queues=self.control.attachment.default_queues, only_if_missing=True)

    def create(self, topic: str, *, queues: int) -> int:
        """Return the index of a topic, asking the broker to make it if there is none, whatever its default is."""
        index = self.store.topic_find(topic)
        return index if index >= 0 else self.put_topic(topic, queues=queues, only_if_missing=True)

    def put_topic(self, topic: str, *, queues: int, kind: str = "normal", only_if_missing: bool = False) -> int:
        """Let the broker create or change a topic and return its index once it is in shared memory."""
        self.control.create_topic(
            topic, queues=queues, perm=PERM_READ_WRITE, kind=kind, only_if_missing=only_if_missing
        )
        deadline = time.monotonic() + self.timeout
        while (index := self.store.topic_find(topic)) < 0:
            if time.monotonic() >= deadline:
                raise ConnectError(
                    f'topic "{topic}" was created, but did not appear in shared memory within {self.timeout:g} s',
                    hint="see `shmq health`",
                )
            time.sleep(options.CREATE_POLL)
        return index

    def topic_not_found(self, topic: str) -> TopicNotFound:
        """Return the error for a topic that does not exist, with the nearest names that do."""
        names = [str(entry["name"]) for entry in self.store.topics()]
        near = " or ".join(f'"{name}"' for name in nearest(topic, names))
        meant = f"did you mean {near}? " if near else ""
        return TopicNotFound(
            f'topic "{topic}" does not exist on broker "{self.place.broker_name}"',
            hint=f"{meant}create it with: shmq topic create {topic}",
        )

    def watch(
        self,
        *,
        on_members_changed: Callable[[str], None],
        on_reconnect: Callable[[], None],
        on_error: Callable[[ShmqError], None],
    ) -> None:
        """Say whom the control plane reports to, on its own thread: a group, a reconnection, a refusal."""
        self.control.on_members_changed = on_members_changed
        self.control.on_reconnect = on_reconnect
        self.control.on_error = on_error

    def renew(self) -> bool:
        """After a reconnection: map the next generation (True), or go on with this one under the new client slot."""
        attachment = self.control.attachment
        if self.is_current:
            self.store.use_client(attachment.client_slot)
            return False
        self._discount()
        self._internal = None
        self._end_requests()
        self.instance = attachment.instance
        self.store = self._map()
        return True

    # -- requests
    def brokers(self, topic: str) -> list[str]:
        """Return the broker's name if it has a topic."""
        return [self.instance.broker_name] if self.store.topic_find(topic) >= 0 else []

    def request(
        self,
        broker: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float | None = None,
    ) -> Command:
        """Ask the broker, and return its answer."""
        del broker  # there is one
        return self.control.request(code, ext, body, REQUEST_TIMEOUT if timeout is None else timeout)

    def begin(
        self,
        broker: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        then: Callable[[Answer], None],
        timeout: float | None = None,
    ) -> None:
        """Ask the broker without waiting; an answer comes when it comes, or the link breaks."""
        del broker, timeout

        def answered(reply: Command | None) -> None:
            then(BrokerNotRunning("the connection broke before the answer came") if reply is None else reply)

        try:
            self.control.begin(code, ext or {}, body, then=answered)
        except ShmqError as error:  # it is away
            guarded(then, error)

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return the broker's name of a queue: its id is the same here."""
        return MessageQueue(self.instance.broker_name, queue_id, topic)

    # -- groups
    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        """Tell the broker which groups this client is a member of."""
        self._specs = tuple(specs)
        self.control.heartbeat(producer_groups, consumer_data(specs))

    def unregister(self, group: str) -> None:
        """Leave a group."""
        self.control.unregister(group)

    def reader(self, owner: Any, spec: ConsumerSpec) -> Reader | LocalPopReader:
        """Return the core's reader for a consumer, or one that asks the broker for messages it hides."""
        if spec.invisible is not None:
            return self.poppers.open(owner, spec)
        return Reader(
            self.store,
            owner=owner,
            auto_ack=spec.auto_ack,
            tags=spec.tags or None,
            where=spec.wanted.filter,
            codec=spec.codec,
            spin_us=options.SPIN_US,
            slice=options.ITERATION_SLICE,
        )

    def share(self, reader: Any, spec: ConsumerSpec, on_left: Callable[[int], None]) -> Share | PopShare:
        """Return the share that decides what such a reader reads."""
        if isinstance(reader, LocalPopReader):
            return PopShare()
        return Share(store=self.store, reader=reader, topic=spec.topic, start=spec.start, on_left=on_left)

    def assignment(self, spec: ConsumerSpec, client_id: str) -> tuple[list[QueueSlot], list[QueueSlot]]:
        """Return the queues a consumer is to read, and all of them."""
        if spec.model != "clustering" or spec.group is None or spec.invisible is not None:
            slots = self.read_queues(spec.topic)
            return slots, slots
        slots = sorted(QueueSlot(*entry) for entry in self.control.offset_slots(spec.group, spec.topic))
        named = {MessageQueue(self.instance.broker_name, slot.queue_id, spec.topic): slot for slot in slots}
        members = self.control.members(spec.group, spec.topic)
        wanted = [named[queue] for queue in self._allocate(members, client_id, list(named))]  # as TCP members do
        if handing.reads_retries(spec, self._specs):
            wanted += handing.retry_share(self, spec.group, members, client_id, self._allocate)
        return wanted, slots

    def why_unassigned(self, spec: ConsumerSpec, share: Any, client_id: str) -> str:
        """Say why a consumer has no queue."""
        return reason_unassigned(self, spec, share, client_id)

    def hand_back(
        self, spec: ConsumerSpec, message: Message, after: float | None, *, failed: Callable[[Message], None]
    ) -> bool:
        """Let the broker deliver a message again; it is settled then. False when the member has to."""
        return handing.hand_back(self, spec, message, after)

    def bury(self, spec: ConsumerSpec, message: Message, reason: str, *, failed: Callable[[Message], None]) -> bool:
        """Let the broker store the dead-letter copy of a message; False when the caller has to settle it."""
        if self.poppers.bury(spec, message, reason):
            return True
        handing.bury(self, spec, message, reason)
        return False

    # -- consumers that decide themselves where they read
    def pull_reader(
        self, tags: Sequence[str], codec: Callable[[bytes], Any] | None, where: str | None = None
    ) -> Reader:
        """Return a reader without an owner."""
        return Reader(
            self.store,
            tags=tags or None,
            where=Wanted(where=where).filter,
            codec=codec,
            spin_us=options.SPIN_US,
            slice=options.ITERATION_SLICE,
        )

    def read_queues(self, topic: str, *, must_exist: bool = False) -> list[QueueSlot]:
        """Return the readable queues of a topic; one that must exist is not created.

        Raises:
            TopicNotFound: there is none of this name, and none may be created.
        """
        if must_exist and self.store.topic_find(topic) < 0:
            raise self.topic_not_found(topic)
        entry = self.store.topic(self.resolve(topic))
        return [QueueSlot(queue_id, index) for queue_id, index in enumerate(entry["queues"][: entry["read_queues"]])]

    def bounds(self, topic: str, queue: QueueSlot) -> tuple[int, int]:
        """Return the first offset stored in a queue, and the one behind the last."""
        return self.store.queue(queue.queue_index)[:2]

    def place_in(self, topic: str, queue: QueueSlot, position: Position) -> int:
        """Return the offset a position means in a queue now."""
        return start_offset(self.store, queue.queue_index, position)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return {queue id: committed offset}, without queues the group never committed."""
        offsets = {entry[0]: self.store.offset_get(entry[2]) for entry in self.control.offset_slots(group, topic)}
        return {queue_id: offset for queue_id, offset in offsets.items() if offset >= 0}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write offsets down for a group."""
        slots = {entry[0]: entry[2] for entry in self.control.offset_slots(group, topic)}
        unknown = sorted(offsets.keys() - slots.keys())
        if unknown:
            raise UsageError(f"topic {topic} has no queue {unknown[0]}", hint="see queues()")
        for queue_id, offset in offsets.items():
            self.store.offset_set(slots[queue_id], offset)

    def find_by_key(self, query: KeyQuery) -> list[Message]:
        """Return the messages of a topic that have a key, in any order."""
        return lookup.find_by_key(self, query)

    def find_by_place(self, topic: str, message_id: str) -> Message | None:
        """Return the message an offset message id leads to, None when it leads to none of this topic."""
        return lookup.find_by_place(self, topic, message_id)

    def close(self) -> None:
        """Say goodbye to the broker and let the segments go; never raises."""
        self._end_requests()
        with contextlib.suppress(ShmqError, OSError):
            self.control.close()
        self._discount()

    def abandon(self) -> None:
        """Forget everything in a forked child; the parent's registration stays as it is."""
        self.control.abandon()
        self._counted = False  # the kernel does not count the child for what its parent attached

    def _end_requests(self) -> None:
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.close()

    def _discount(self) -> None:
        if self._counted:
            self._counted = False
            detach_presence(self.instance)
