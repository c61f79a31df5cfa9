"""Owns one connection to a RocketMQ cluster: its network, routes, registration and readers, and their upkeep.

It does not know what users can make of it; it is what `shmq.client.wire.Session` asks for, over TCP.

    every 30 s   routes and heartbeats        every 20 s   locks of ordered consumers        every 5 s   offsets

Rules:
    (1) what is called from outside ends within the session's timeout, or the one given;
    (2) offsets are also committed when a queue is left and at close, before the group is left;
    (3) a forked child abandons everything; the parent notices nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from shmq.client.callback import guarded
from shmq.client.pop.remote_poppers import Poppers
from shmq.client.pop.remote_reader import PopReader
from shmq.client.pop.share import PopShare
from shmq.client.producers.recall import recall
from shmq.client.producers.unique_id import UniqueIds
from shmq.client.requests.remote import RemoteRequests
from shmq.client.search import remote as lookup
from shmq.client.transactions.remote import RemoteTransactions
from shmq.client.wanted import Wanted
from shmq.client.wire import Answer, MessageReader, QueueShare, QueueSlot
from shmq.client.wire_tcp import assignment
from shmq.client.wire_tcp import choice as choosing
from shmq.client.wire_tcp import send_back as returning
from shmq.client.wire_tcp.duties import Duties
from shmq.client.wire_tcp.faults import FaultTable
from shmq.client.wire_tcp.group_reader import GroupReader
from shmq.client.wire_tcp.name_service import NameService
from shmq.client.wire_tcp.network import Network
from shmq.client.wire_tcp.outgoing import DEFAULT_PRODUCER_GROUP
from shmq.client.wire_tcp.process_queue import ProcessQueue
from shmq.client.wire_tcp.pull_reader import PullReader
from shmq.client.wire_tcp.pull_request import Pulled, PullQuestion, pull_command, read_pulled
from shmq.client.wire_tcp.queue_service import QueueService
from shmq.client.wire_tcp.registration import Registration
from shmq.client.wire_tcp.route import QueueNumbers, Route
from shmq.client.wire_tcp.selection import QueueSelector
from shmq.client.wire_tcp.sender import RemoteSender
from shmq.client.wire_tcp.share import RemoteShare
from shmq.client.wire_tcp.upkeep import Upkeep
from shmq.errors import BrokerNotRunning, RequestTimeout, ShmqError
from shmq.message import TRACE_TOPIC
from shmq.protocol.allocation import strategy_of
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import error_of
from shmq.protocol.trace import TRACE_GROUP

if TYPE_CHECKING:
    from shmq.client.place import Address, RemotePlace
    from shmq.client.position import Position
    from shmq.client.search.browse import KeyQuery
    from shmq.client.spec import ConsumerSpec
    from shmq.shm.core import Message, Receipt

ResultT = TypeVar("ResultT")

LEAVE_TIMEOUT = 2.0
"""How long close() waits for offsets and goodbyes."""


class RemoteSession:
    """Everything of a remote connection that dies with it or a fork."""

    def __init__(self, place: RemotePlace, *, client_id: str, timeout: float) -> None:
        self.place = place
        self.client_id = client_id
        self.timeout = timeout
        self.allocate = strategy_of(place.options.allocation)
        self.numbers = QueueNumbers()
        self.selector = QueueSelector(FaultTable() if place.options.avoid_slow else None)
        self.registration = Registration(self)
        self.duties = Duties(self)
        self.shares: list[RemoteShare] = []
        self._readers: list[GroupReader] = []
        self._poppers = Poppers(self)
        self._leaving: set[Future[None]] = set()
        self._on_members_changed: Callable[[str], None] = _ignore
        self._on_reconnect: Callable[[], None] = _nothing
        self._on_error: Callable[[ShmqError], None] = _ignore
        self.network = Network(
            place.options,
            connect_timeout=timeout,
            on_request=self.duties.serve,
            on_reconnect=self._reconnected,
        )
        self.names = NameService(self.network, place.name_servers, self._route_changed)
        self.queues = QueueService(self.network, self.names)
        self.requests = RemoteRequests(self)
        self.transactions = RemoteTransactions(self)
        self.upkeep = Upkeep(self)
        try:
            self.network.call(self._open(), timeout)
        except BaseException:
            self.network.stop(LEAVE_TIMEOUT)
            raise

    async def _open(self) -> None:
        names = await self.names.broker_names(timeout=self.timeout)
        self.numbers.learn_names(names)  # all at once, so that numbers are the same in every process
        channel = await self.network.channel(self.names.current, self.timeout)
        self.ids = UniqueIds(channel.local_host)
        self.upkeep.start()

    # -- what it is
    @property
    def alive(self) -> bool:
        """Whether somebody answered lately."""
        return bool(self.network.connected())

    def now_ms(self) -> int:
        """Return the time of the wall clock in ms since the epoch."""
        return round(time.time() * 1000)

    def call(self, work: Any, timeout: float | None = None) -> Any:
        """Run a coroutine on the I/O thread and return its result."""
        return self.network.call(work, self.timeout if timeout is None else timeout)

    def wait(self, future: Future[ResultT], timeout: float) -> ResultT:
        """Return the result of something begun, which ends by itself within `timeout` seconds."""
        try:
            return future.result(timeout + 1.0)
        except TimeoutError as error:
            if isinstance(error, ShmqError) or future.done():
                raise
            future.cancel()
            raise RequestTimeout(
                f"nothing came back within {timeout:g} s", hint="see where the process is stuck"
            ) from error

    def watch(
        self,
        *,
        on_members_changed: Callable[[str], None],
        on_reconnect: Callable[[], None],
        on_error: Callable[[ShmqError], None],
    ) -> None:
        """Say whom to tell, on the I/O thread."""
        self._on_members_changed, self._on_reconnect, self._on_error = on_members_changed, on_reconnect, on_error

    # -- life
    def renew(self) -> bool:
        """A broker that is back has forgotten us, but everything here is as it was."""
        return False

    def close(self) -> None:
        """Commit, say goodbye and end the I/O thread; never raises."""
        try:
            if not self.network.is_own_thread:
                self._drain()
                self.network.call(self.registration.leave(None), LEAVE_TIMEOUT)
        except (ShmqError, RuntimeError):
            pass  # brokers find out by themselves
        self.network.stop(LEAVE_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, and of nothing else."""
        self.network.abandon()

    def _drain(self) -> None:
        deadline = time.monotonic() + LEAVE_TIMEOUT
        for future in list(self._leaving):
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except (ShmqError, TimeoutError):
                continue  # the offset is an older one now: messages come twice, none is lost

    # -- requests
    def brokers(self, topic: str) -> list[str]:
        """Return the names of the brokers that have a topic, sorted."""
        route = self.call(self.names.route(topic, timeout=self.timeout))
        return sorted(route.brokers) if route is not None else []

    def request(
        self,
        broker: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float | None = None,
    ) -> Command:
        """Ask the master of a broker name, and return its answer."""
        seconds = self.timeout if timeout is None else timeout
        reply: Command = self.call(
            self._ask(broker, Command(code=code, ext=dict(ext or {}), body=body), seconds), seconds
        )
        if (error := error_of(reply)) is not None:
            raise error
        return reply

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
        """Ask without waiting; `then` is called on the I/O thread."""
        command = Command(code=code, ext=dict(ext or {}), body=body)

        async def ask() -> None:
            answer: Answer
            try:
                answer = await self._ask(broker, command, self.timeout if timeout is None else timeout)
            except ShmqError as error:
                answer = error
            guarded(then, answer)

        try:
            self.network.submit(ask())
        except ShmqError as error:  # the connection is closed
            guarded(then, error)

    async def _ask(self, broker: str, command: Command, timeout: float) -> Command:
        started = self.network.loop.time()
        address = await self.names.master(broker, timeout=timeout)
        return await self.network.request(address, command, max(0.001, timeout + started - self.network.loop.time()))

    def message_queue(self, topic: str, queue_id: int) -> MessageQueue:
        """Return the broker's name of a queue that users know by its number."""
        return self.numbers.queue(topic, queue_id)

    # -- groups
    def register(self, producer_groups: Sequence[str], specs: Sequence[ConsumerSpec]) -> None:
        """Say to every broker in use which groups this client is a member of."""
        self.registration.set(producer_groups, specs)
        self.call(self._register())

    async def _register(self) -> None:
        for topic in self.registration.topics():
            await self.names.route(topic, timeout=self.timeout)
        await self.registration.check()
        await self.registration.beat()

    def unregister(self, group: str) -> None:
        """Leave a group, after its offsets were committed."""
        self._drain()
        self.call(self.registration.leave(group))

    def sender(self, timeout: float, *, group: str | None = None, compression: str | None = None) -> RemoteSender:
        """Return something that sends; `timeout` in seconds, `compression` as the URL says when None."""
        return RemoteSender(self, timeout, group or "", compression or self.place.options.compression)

    def write_queues(self, topic: str) -> Sequence[int]:
        """Return the ids of the queues of a topic that may be written."""
        return self.call(choosing.write_queues(self, topic))  # type: ignore[no-any-return]

    def fastest_queue(self, topic: str) -> int | None:
        """Return a queue of the broker that answered fastest lately; None when none has answered yet."""
        return self.call(choosing.fastest_queue(self, topic))  # type: ignore[no-any-return]

    def recall(self, topic: str, handle: str, group: str) -> None:
        """Take a timed message back, at the broker that holds it."""
        self.call(recall(self, topic, handle, group or DEFAULT_PRODUCER_GROUP))

    def report(self, broker_name: str, latency: float, *, failed: bool = False) -> None:
        """Note how a send to a broker went."""
        self.selector.report(broker_name, latency, self.network.loop.time(), failed=failed)

    def store_trace(self, body: bytes, keys: Sequence[str]) -> None:
        """Store a message in the trace topic, which is made if need be."""
        self.sender(self.timeout, group=TRACE_GROUP).send(TRACE_TOPIC, body, keys=keys)

    def host_of(self, receipt: Receipt) -> str:
        """Say where a broker stored a message, as "host:port"; "" when that is not known."""
        return choosing.host_of(self, receipt)

    def reply(self, message: Message, body: Any) -> bool:
        """Bring a reply to whoever asked; False when the requester is not there any more."""
        return self.requests.reply(message, body)

    # -- consumers
    def resolve(self, topic: str) -> int:
        """Ask for the route of a topic; a consumer may wait for a topic that does not exist yet."""
        route = self.call(self.names.route(topic, timeout=self.timeout))
        return len(route.readable) if route is not None else 0

    def reader(self, owner: Any, spec: ConsumerSpec) -> MessageReader:
        """Return the reader of a consumer."""
        if spec.invisible is not None and self.call(self._poppers.prepare(spec)):
            return self._poppers.open(owner, spec)
        reader = GroupReader(self, owner, spec)
        self._readers = [*(known for known in self._readers if not known.stopped), reader]
        return reader

    @property
    def readers(self) -> list[GroupReader]:
        """The readers that are not closed."""
        return [reader for reader in self._readers if not reader.stopped]

    def reader_for(self, group: str | None, topic: str, default: GroupReader) -> GroupReader:
        """Return the reader of a group's topic; `default` when this connection has none."""
        for reader in self.readers:
            if (reader.spec.group, reader.spec.topic) == (group, topic):
                return reader
        return default

    def share(self, reader: Any, spec: ConsumerSpec, on_left: Callable[[int], None]) -> QueueShare:
        """Return the share that decides what a reader reads."""
        if isinstance(reader, PopReader):
            return PopShare()
        share = RemoteShare(self, reader, spec, on_left)
        self.shares = [*(known for known in self.shares if not known.ended), share]
        return share

    def assignment(self, spec: ConsumerSpec, client_id: str) -> tuple[list[QueueSlot], list[QueueSlot]]:
        """Return the queues a consumer is to read, and all of them."""
        if self._poppers.of(spec):
            slots = self.call(self._poppers.all_queues(spec))
            return slots, slots
        wanted, everything = self.call(assignment.assignment(self, spec, client_id))
        return wanted, everything

    def why_unassigned(self, spec: ConsumerSpec, share: Any, client_id: str) -> str:
        """Say why a consumer has no queue."""
        return str(self.call(assignment.why_unassigned(self, spec, share, client_id)))

    def queue_of(self, spec: ConsumerSpec, number: int) -> MessageQueue:
        """Return the queue of a number, of the topic or of the group's retry topic."""
        return self.numbers.queue(spec.topic, number, group=spec.group)

    def slot(self, queue: MessageQueue, *, retry: bool = False) -> QueueSlot:
        """Return a queue as consumers know it."""
        number = self.numbers.number(queue, retry=retry)
        return QueueSlot(number, number)

    def release(self, spec: ConsumerSpec, queues: Sequence[ProcessQueue]) -> None:
        """Commit the offsets of queues that were left, and give up their locks, in the background."""
        if spec.group is None or spec.model != "clustering":
            return
        # Only progress is written: a member that had a queue for a moment must not undo what another one wrote since.
        ends = {queue.queue: queue.committed if queue.committed != queue.known_offset else -1 for queue in queues}
        self.expect(self.network.submit(returning.release(self, spec, ends)))

    def expect(self, work: Future[None]) -> None:
        """Let a group's end wait for something that was begun."""
        self._leaving.add(work)
        work.add_done_callback(self._leaving.discard)

    def hand_back(
        self,
        spec: ConsumerSpec,
        message: Message,
        after: float | None,
        *,
        failed: Callable[[Message], None],
    ) -> bool:
        """Let the broker deliver a message again."""
        return returning.hand_back(self, spec, message, after, failed=failed)

    def bury(self, spec: ConsumerSpec, message: Message, reason: str, *, failed: Callable[[Message], None]) -> bool:
        """Let the broker bury a message."""
        if any(popper.bury(message, reason) for popper in self._poppers.of(spec)):
            return True
        return returning.bury(self, spec, message, reason, failed=failed)

    # -- consumers that decide themselves where they read
    def pull_reader(
        self, tags: Sequence[str], codec: Callable[[bytes], Any] | None, where: str | None = None
    ) -> PullReader:
        """Return a reader for a pull consumer."""
        return PullReader(self, wanted=Wanted(tuple(tags), where), codec=codec)

    def read_queues(self, topic: str, *, must_exist: bool = False) -> list[QueueSlot]:
        """Return the readable queues of a topic; looking never creates one here.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return self.call(self._read_queues(topic))  # type: ignore[no-any-return]

    async def _read_queues(self, topic: str) -> list[QueueSlot]:
        route = await self.names.readable_route(topic, timeout=self.timeout)
        self.numbers.learn(route)
        return sorted(map(self.slot, route.readable))

    def bounds(self, topic: str, queue: QueueSlot) -> tuple[int, int]:
        """Return the first offset stored in a queue, and the one behind the last."""
        named = self.numbers.queue(topic, queue.queue_index)
        return self.call(self.queues.bounds(named, self.timeout))  # type: ignore[no-any-return]

    def place_in(self, topic: str, queue: QueueSlot, position: Position) -> int:
        """Return the offset a position means in a queue now."""
        named = self.numbers.queue(topic, queue.queue_index)
        return self.call(self.queues.place_in(named, position, self.timeout))  # type: ignore[no-any-return]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return {queue: committed offset}, without queues the group never committed."""
        return self.call(self._committed(group, topic))  # type: ignore[no-any-return]

    async def _committed(self, group: str, topic: str) -> dict[int, int]:
        route = await self.names.route(topic, timeout=self.timeout)
        if route is None:
            return {}
        self.numbers.learn(route)
        found = await self.queues.committed_exactly(group, route.readable, self.timeout)
        return {self.numbers.number(queue): offset for queue, offset in found.items()}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Write offsets down for a group."""
        self.call(self._commit(group, {self.numbers.queue(topic, number): at for number, at in offsets.items()}))

    async def _commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        await asyncio.gather(*(returning.commit(self, group, queue, offset) for queue, offset in offsets.items()))

    def find_by_key(self, query: KeyQuery) -> list[Message]:
        """Return the messages of a topic that have a key, in any order."""
        return self.call(lookup.find_by_key(self, query))  # type: ignore[no-any-return]

    def find_by_place(self, topic: str, message_id: str) -> Message | None:
        """Return the message an offset message id leads to, None when it leads to none of this topic."""
        return self.call(lookup.find_by_place(self, topic, message_id))  # type: ignore[no-any-return]

    # -- on the I/O thread
    async def pull(self, question: PullQuestion, broker_id: int, timeout: float) -> Pulled:
        """Ask for messages of a queue, and say what the answer means."""
        route = await self.names.route(question.queue.topic, timeout=self.timeout)
        address = route.reader(question.queue.brokerName, broker_id) if route is not None else None
        if address is None:
            raise BrokerNotRunning(
                f"broker {question.queue.brokerName} of topic {question.queue.topic} is not registered now",
                hint="is it up?",
            )
        started = self.network.loop.time()
        reply = await self.network.request(address, pull_command(question), timeout)
        return read_pulled(reply, question, self.network.loop.time() - started)

    def members_changed(self, group: str) -> None:
        """A broker says that a group has other members now."""
        self._on_members_changed(group)

    def _route_changed(self, route: Route) -> None:
        self.numbers.learn(route)
        if self.upkeep.is_running:
            self.upkeep.beat_soon()
            for group in self.registration.groups_of(route.topic):
                self._on_members_changed(group)

    def _reconnected(self, address: Address) -> None:
        if address not in self.names.servers:
            self.upkeep.beat_soon()
            self._on_reconnect()


def _nothing() -> None:
    return


def _ignore(_: object) -> None:
    return
