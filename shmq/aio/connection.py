"""The asyncio twin of a connection: it makes a sync connection in a thread and hands out faces of what that makes.

Invariant: every name of `shmq.Connection` is here and means the same; only what may wait is awaited, objects open on
use.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from shmq.aio.admin import Admin
from shmq.aio.consumer import PullConsumer, SimpleConsumer, Subscription
from shmq.aio.listener import Listener, Listeners
from shmq.aio.message import Message, Slot
from shmq.aio.offload import Face, offload
from shmq.aio.producer import Producer
from shmq.aio.replier import replying
from shmq.aio.sending import Sending
from shmq.aio.topic import Topic
from shmq.aio.transaction import checker_for
from shmq.client import options
from shmq.client.connection import Connection as SyncConnection
from shmq.client.connection import Decode
from shmq.client.consumers import simple
from shmq.client.place import RemotePlace, locate
from shmq.client.position import PositionLike
from shmq.client.producers.keywords import BatchArguments, RequestArguments, ReserveArguments, SendArguments
from shmq.client.producers.queue_selector import QueueSelector
from shmq.client.spec import Model, consumer_spec
from shmq.client.topic import Codec
from shmq.errors import UsageError
from shmq.message import check_group
from shmq.shm.core import Message as SyncMessage
from shmq.shm.core import Receipt
from shmq.shm.place import Place

if TYPE_CHECKING:
    from shmq.client.observers.observer import SpansWanted

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ValueT = TypeVar("ValueT")


def connect(
    url: str | None = None, *, timeout: float = options.CONNECT_TIMEOUT, trace: bool = False, spans: SpansWanted = False
) -> Connection:
    """Return a connection that opens with `async with`, with `await`, or on first use; see `shmq.connect`.

    Example:
        >>> async with connect() as mq:                                        # doctest: +SKIP
        ...     await mq.send("orders", b"42 apples", tag="fruit")
    """
    return Connection(locate(url), timeout=timeout, trace=trace, spans=spans)


class Connection(Face[SyncConnection]):
    """Everything a process does with one broker, from an event loop. Made by `shmq.aio.connect()`."""

    def __init__(
        self,
        place: Place | RemotePlace,
        *,
        timeout: float = options.CONNECT_TIMEOUT,
        trace: bool = False,
        spans: SpansWanted = False,
    ) -> None:
        super().__init__(self._connect)
        self.place = place
        self._timeout = timeout
        self._watching: dict[str, Any] = {"trace": trace, "spans": spans}
        self._sending: Sending | None = None
        self._listeners = Listeners()
        self._closed = False
        self._asked: set[str] = set()
        self._checkers: list[tuple[str, Callable[..., Any]]] = []

    async def _connect(self) -> SyncConnection:
        if self._closed:
            raise UsageError("the connection is closed", hint="connect again with shmq.aio.connect()")
        made = await offload(SyncConnection, self.place, timeout=self._timeout, **self._watching)
        loop = asyncio.get_running_loop()
        for group, function in self._checkers:
            await offload(made.transaction_checker(group), checker_for(loop, function))
        return made

    def _opened(self, made: SyncConnection) -> None:
        self._sending = Sending(made, made, self._timeout)

    def _link(self) -> SyncConnection:
        if self._made is None:
            raise UsageError("the connection is not open yet", hint="async with shmq.aio.connect() as mq:")
        return self._made

    async def _sender(self) -> Sending:
        await self._open()
        assert self._sending is not None
        return self._sending

    # -- what it is
    @property
    def url(self) -> str:
        """The URL that leads to this broker."""
        return self.place.url

    @property
    def is_remote(self) -> bool:
        """Whether the broker is reached over TCP."""
        return isinstance(self.place, RemotePlace)

    @property
    def broker_name(self) -> str:
        """The broker's name."""
        return self.place.broker_name

    @property
    def client_id(self) -> str:
        """Our name in groups; empty before the connection is open."""
        return self._made.client_id if self._made is not None else ""

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    # -- sending
    async def send(self, topic: str, body: Any, **arguments: Unpack[SendArguments]) -> Receipt:
        """Store one message and return where; see `shmq.Connection.send`."""
        return await (self._sending or await self._sender()).send(topic, body, **arguments)

    async def send_oneway(self, topic: str, body: Any, **arguments: Unpack[SendArguments]) -> None:
        """Store one message without a receipt and without waiting for durability."""
        await (self._sending or await self._sender()).send_oneway(topic, body, **arguments)

    async def recall(self, receipt: Receipt | str) -> None:
        """Take back a message that was sent with `delay=` or `deliver_at=`, before it is due."""
        await offload((await self._open()).recall, receipt)

    async def send_batch(self, topic: str, bodies: Sequence[Any], **arguments: Unpack[BatchArguments]) -> list[Receipt]:
        """Store all bodies into one queue, in order, and return their receipts."""
        return await (self._sending or await self._sender()).send_batch(topic, bodies, **arguments)

    def reserve(self, topic: str, size: int, **arguments: Unpack[ReserveArguments]) -> Slot:
        """Return room for a body inside the log: `async with mq.reserve(…) as slot:`."""
        self._link()
        assert self._sending is not None
        return self._sending.reserve(topic, size, **arguments)

    # -- requests and replies
    async def request(
        self, topic: str, body: Any, *, timeout: float | None = None, **arguments: Unpack[RequestArguments]
    ) -> Message:
        """Send a message that somebody is to answer, and return the answer; see `shmq.Connection.request`."""
        made = await self._open()
        seconds = self._timeout if timeout is None else timeout
        if made._observer is None:
            return await self._ask(made, topic, body, seconds, arguments)
        with made._observer.asking(topic, body, {**arguments}) as carrying:
            return await self._ask(made, topic, body, seconds, carrying)

    async def _ask(
        self, made: SyncConnection, topic: str, body: Any, timeout: float, arguments: Mapping[str, Any]
    ) -> Message:
        begin = functools.partial(made._live().requests.begin, topic, body, timeout, **arguments)
        # The first request may have to ask the broker for its topics.
        future = begin() if topic in self._asked else await offload(begin)
        reply = await asyncio.wrap_future(future)
        self._asked.add(topic)
        return Message(reply)

    def replier(
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        threads: int = 1,
        attempts_max: int = options.ATTEMPTS_MAX,
        codec: Decode | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Decorate a coroutine function that answers requests; see `shmq.Connection.replier`."""
        listen = self.listener(
            topic, group=group, tags=tags, where=where, threads=threads, attempts_max=attempts_max, codec=codec
        )

        def decorate(function: FunctionT) -> FunctionT:
            listen(replying(self._link, function))
            return function

        return decorate

    def transaction_checker(self, group: str) -> Callable[[FunctionT], FunctionT]:
        """Decorate a function, or a coroutine function, that says how a transaction of a producer group ended.

        To be done before the connection is used; see `shmq.Connection.transaction_checker`.
        """
        check_group(group)

        def decorate(function: FunctionT) -> FunctionT:
            if self._made is not None:
                raise UsageError("the connection is open already", hint="decorate the checker before its first use")
            self._checkers.append((group, function))
            return function

        return decorate

    # -- making things
    def producer(
        self,
        *,
        group: str | None = None,
        timeout: float | None = None,
        compression: str | None = None,
        queue_selector: QueueSelector | None = None,
    ) -> Producer:
        """Return a producer with a timeout of its own, and `send_nowait`; see `shmq.Connection.producer`."""

        async def make() -> Any:
            return await offload(
                (await self._open()).producer,
                group=group,
                timeout=timeout,
                compression=compression,
                queue_selector=queue_selector,
            )

        return Producer(group, self._timeout if timeout is None else timeout, self._link, make)

    def subscribe(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        auto_ack: bool = False,
        model: Model = "clustering",
        start: PositionLike | None = None,
        attempts_max: int | None = None,
        codec: Decode | None = None,
    ) -> Subscription:
        """Return an async iterable of messages; arguments as for `shmq.Connection.subscribe`."""
        call = functools.partial(
            SyncConnection.subscribe,
            topic=topic,
            group=group,
            tags=tags,
            where=where,
            auto_ack=auto_ack,
            model=model,
            start=start,
            attempts_max=attempts_max,
            codec=codec,
        )
        return Subscription(topic, group, self._maker(call))

    def simple_consumer(
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        invisible: float = options.INVISIBLE,
        start: PositionLike | None = None,
        attempts_max: int | None = None,
        codec: Decode | None = None,
        hidden_by: simple.HiddenBy = "broker",
    ) -> SimpleConsumer:
        """Return a consumer that takes batches and hides each message for `invisible` seconds."""
        call = functools.partial(
            SyncConnection.simple_consumer,
            topic=topic,
            group=group,
            tags=tags,
            where=where,
            invisible=invisible,
            start=start,
            attempts_max=attempts_max,
            codec=codec,
            hidden_by=hidden_by,
        )
        return SimpleConsumer(topic, group, invisible, self._maker(call))

    def pull_consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        start: PositionLike = "begin",
        codec: Decode | None = None,
    ) -> PullConsumer:
        """Return a consumer that reads every queue from where it is told."""
        call = functools.partial(
            SyncConnection.pull_consumer, topic=topic, group=group, tags=tags, where=where, start=start, codec=codec
        )
        return PullConsumer(topic, group, self._maker(call))

    async def browse(
        self,
        topic: str,
        *,
        key: str | None = None,
        id: str | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        limit: int = options.BROWSE_MAX,
    ) -> list[SyncMessage]:
        """Look at stored messages without consuming them; arguments as for `shmq.Connection.browse`."""
        call = functools.partial(
            SyncConnection.browse,
            topic=topic,
            key=key,
            id=id,
            since=since,
            until=until,
            queue_id=queue_id,
            offset=offset,
            tags=tags,
            where=where,
            limit=limit,
        )
        return await offload(call, await self._open())

    def topic(self, name: str, type: type[ValueT], *, codec: str | Codec[ValueT] = "json") -> Topic[ValueT]:
        """Return a typed topic: values in, values out."""
        return Topic(self, name, type, codec)

    def listener(
        self,
        topic: str,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        threads: int = 1,
        ordered: bool = False,
        start: PositionLike | None = None,
        attempts_max: int | None = None,
        codec: Decode | None = None,
    ) -> Callable[[FunctionT], FunctionT]:
        """Decorate a coroutine function that is called with each message once `run()` or `start()` was awaited.

        Args:
            threads: how many messages may be handled at once, as tasks.
        """
        spec = consumer_spec(
            topic, group, tags, "clustering", start, where=where, attempts_max=attempts_max, codec=codec
        )

        def decorate(function: FunctionT) -> FunctionT:
            self._listeners.add(Listener(spec, function, threads=threads, ordered=ordered))
            return function

        return decorate

    @property
    def admin(self) -> Admin:
        """Topics, groups, offsets, dead letters; the connection must be open."""
        made = self._link()
        return Admin(made.admin, is_remote=made.is_remote)

    # -- life
    async def run(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Run the listeners until cancelled or stopped; then drain for `timeout` seconds."""
        await self._listeners.run(await self._open(), timeout)

    async def start(self) -> None:
        """Run the listeners as tasks of this loop; returns at once."""
        self._listeners.start(await self._open())

    async def stop(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Stop the listeners: wait for running calls, give back what was not handled."""
        await self._listeners.stop(timeout)

    async def close(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Drain for at most `timeout` seconds, give unsettled messages back, and leave. Twice is harmless."""
        self._closed = True
        await self._listeners.stop(timeout)
        if self._made is not None:
            await offload(self._made.close, timeout)

    def __repr__(self) -> str:
        return f"<shmq.aio.Connection {self.url}{' closed' if self._closed else ''}>"

    def _maker(self, call: Callable[..., Any]) -> Callable[[], Any]:
        async def make() -> Any:
            return await offload(call, await self._open())

        return make
