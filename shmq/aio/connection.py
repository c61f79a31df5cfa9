"""The asyncio twin of a connection: it makes a sync connection in a thread and hands out faces of what that makes.

Invariant: every name of `shmq.Connection` is here and means the same; only what may wait is awaited, objects open on
use.
"""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from shmq.aio.admin import Admin
from shmq.aio.consumer import PullConsumer, SimpleConsumer, Subscription
from shmq.aio.listener import Listener, Listeners
from shmq.aio.message import Message, Slot
from shmq.aio.offload import SyncT, awaited, offload, taking
from shmq.aio.opening import Opening
from shmq.aio.producer import Producer
from shmq.aio.replier import replying
from shmq.aio.sending import Sending, SendingFace
from shmq.aio.topic import Topic
from shmq.aio.transaction import checker_for
from shmq.client import options
from shmq.client.connection import Connection as SyncConnection
from shmq.client.consumers.consumer import Subscription as SyncSubscription
from shmq.client.consumers.pull import PullConsumer as SyncPullConsumer
from shmq.client.consumers.simple import SimpleConsumer as SyncSimpleConsumer
from shmq.client.edge import edge
from shmq.client.keywords import RequestArguments, ReserveArguments, is_read_once
from shmq.client.kinds import check_wait
from shmq.client.place import Placed, RemotePlace, find
from shmq.client.position import PositionLike
from shmq.client.producers.producer import Producer as SyncProducer
from shmq.client.refusals import may_be_taken_elsewhere, seconds_left
from shmq.client.spec import consumer_spec
from shmq.client.topic import Codec
from shmq.errors import ConnectError, NotMaster, UsageError
from shmq.functions import check_runnable
from shmq.message import check_connection_name, check_group
from shmq.shm.place import Place
from shmq.waits import check_patches

if TYPE_CHECKING:
    from concurrent.futures import Future

    from shmq.client.keywords import Body
    from shmq.client.observers.observer import SpansWanted
    from shmq.client.transactions.transaction import TxState

ListenerT = TypeVar("ListenerT", bound=Callable[[Message], Awaitable[Any]])
ReplierT = TypeVar("ReplierT", bound="Callable[[Message], Awaitable[Body | None]]")
CheckerT = TypeVar("CheckerT", bound="Callable[[Message], TxState | Awaitable[TxState]]")
ValueT = TypeVar("ValueT")
Checkers = Iterable[tuple[str, Callable[..., Any]]]


@edge
def connect(
    url: str | None = None,
    *,
    timeout: float = options.CONNECT_TIMEOUT,
    trace: bool = False,
    spans: SpansWanted = False,
    name: str | None = None,
) -> Connection:
    """Return a connection that opens with `async with`, with `await`, or on first use; see `shmq.connect`.

    Example:
        >>> async with connect() as mq:                                        # doctest: +SKIP
        ...     await mq.send("orders", b"42 apples", tag="fruit")
    """
    return Connection(find(url), timeout=timeout, trace=trace, spans=spans, name=name)


class Connection(SendingFace[SyncConnection], Placed):
    """Everything a process does with one broker, from an event loop. Made by `shmq.aio.connect()`."""

    def __init__(
        self,
        place: Place | RemotePlace,
        *,
        timeout: float = options.CONNECT_TIMEOUT,
        trace: bool = False,
        spans: SpansWanted = False,
        name: str | None = None,
    ) -> None:
        check_patches("queue", "shmq.aio")
        named = None if name is None else check_connection_name(name)
        self._made_with: dict[str, Any] = {"trace": trace, "spans": spans, "name": named}
        self._checkers: list[tuple[str, Callable[..., Any]]] = []
        make = functools.partial(SyncConnection, place, timeout=timeout, **self._made_with)
        super().__init__(functools.partial(_connecting, make, self._checkers))  # without us: a cycle stays open
        self.place = place
        self._timeout = timeout
        self._listeners = Listeners()
        self._openings: weakref.WeakSet[Opening[Any]] = weakref.WeakSet()
        self._asked: set[str] = set()

    async def _open(self) -> SyncConnection:
        if self._closed:
            raise UsageError("the connection is closed", hint="connect again with shmq.aio.connect()")
        return await super()._open()

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:  # type: ignore[override]
        # As the synchronous one: it opens anew in the process that it is handed to.
        spans = self._made_with["spans"] not in (None, False)
        return _reconnect, (self.place.secret_url, {**self._made_with, "timeout": self._timeout, "spans": spans})

    def _opened(self, made: SyncConnection) -> None:
        self._sending = Sending(made, made, self._timeout)

    def _link(self) -> SyncConnection:
        if self._made is None:
            raise UsageError("the connection is not open yet", hint="async with shmq.aio.connect() as mq:")
        return self._made

    # -- what it is
    @property
    def client_id(self) -> str:
        """Our name in groups; empty before the connection is open."""
        return self._made.client_id if self._made is not None else ""

    def reserve(self, topic: str, size: int, **arguments: Unpack[ReserveArguments]) -> Slot:
        """Return room for a body inside the log: `async with mq.reserve(…) as slot:`."""
        self._link()
        assert self._sending is not None
        return self._sending.reserve(topic, size, **arguments)

    # -- requests and replies
    async def request(
        self, topic: str, body: Body, *, timeout: float | None = None, **arguments: Unpack[RequestArguments]
    ) -> Message:
        """Send a request and return a replier's answer; see `shmq.Connection.request`."""
        made = await self._open()
        seconds = check_wait(timeout, self._timeout)
        if made._observer is None:
            return await self._ask(made, topic, body, seconds, arguments)
        with made._observer.asking(topic, body, {**arguments}) as carrying:
            return await self._ask(made, topic, body, seconds, carrying)

    async def _ask(
        self, made: SyncConnection, topic: str, body: Any, timeout: float, arguments: Mapping[str, Any]
    ) -> Message:
        deadline = time.monotonic() + timeout

        def begin() -> Future[Any]:
            session, left = made._reached(seconds_left(deadline))
            return session.requests.begin(topic, body, left, **arguments)

        try:
            # The first request may have to ask the broker for its topics, and another host may be slow to answer.
            is_at_hand = topic in self._asked and not made._live().is_led_elsewhere
            future = begin() if is_at_hand else await offload(begin)
            reply = await asyncio.wrap_future(future)
        except (NotMaster, ConnectError) as error:
            if not may_be_taken_elsewhere(error) or is_read_once(arguments.values()):
                raise
            again = functools.partial(made._ask, topic, body, **arguments)
            reply = await offload(lambda: again(timeout=seconds_left(deadline)))
        self._asked.add(topic)
        return Message(reply)

    @taking(SyncConnection.replier)
    def replier(self, **arguments: Any) -> Callable[[ReplierT], ReplierT]:
        """Decorate a coroutine function that answers requests; see `shmq.Connection.replier`."""
        listen = self.listener(**arguments)

        def decorate(function: ReplierT) -> ReplierT:
            listen(replying(self._link, function))
            return function

        return decorate

    def transaction_checker(self, group: str) -> Callable[[CheckerT], CheckerT]:
        """Decorate a function, or a coroutine function, that says how a transaction of a producer group ended.

        To be done before the connection is used; see `shmq.Connection.transaction_checker`.
        """
        check_group(group)

        def decorate(function: CheckerT) -> CheckerT:
            if self._made is not None:
                raise UsageError("the connection is open already", hint="decorate the checker before its first use")
            check_runnable(function)
            self._checkers.append((group, function))
            return function

        return decorate

    # -- making things
    @taking(SyncConnection.producer)
    def producer(self, *, group: str | None, timeout: float | None, **arguments: Any) -> Producer:
        """Return a producer with a timeout of its own, and `send_nowait`; see `shmq.Connection.producer`."""
        call = functools.partial(SyncConnection.producer, group=group, timeout=timeout, **arguments)
        prepare = self._preparing(call, SyncProducer.close)
        return Producer(group, check_wait(timeout, self._timeout), self._link, prepare)

    @taking(SyncConnection.subscribe)
    def subscribe(self, topic: str, **arguments: Any) -> Subscription:
        """Return an async iterable of messages; arguments as for `shmq.Connection.subscribe`."""
        call = functools.partial(SyncConnection.subscribe, topic=topic, **arguments)
        what = topic, arguments["group"]
        return Subscription(*what, self._preparing(call, SyncSubscription.close, what))

    @taking(SyncConnection.simple_consumer)
    def simple_consumer(self, topic: str, *, group: str, invisible: float, **arguments: Any) -> SimpleConsumer:
        """Return a consumer that takes batches and hides each message for `invisible` seconds."""
        call = functools.partial(
            SyncConnection.simple_consumer, topic=topic, group=group, invisible=invisible, **arguments
        )
        return SimpleConsumer(topic, group, invisible, self._preparing(call, SyncSimpleConsumer.close, (topic, group)))

    @taking(SyncConnection.pull_consumer)
    def pull_consumer(self, topic: str, **arguments: Any) -> PullConsumer:
        """Return a consumer that reads every queue from the offsets you set."""
        call = functools.partial(SyncConnection.pull_consumer, topic=topic, **arguments)
        return PullConsumer(topic, arguments["group"], self._preparing(call, SyncPullConsumer.close))

    browse = awaited(SyncConnection.browse)
    arrow = awaited(SyncConnection.arrow)

    def topic(self, name: str, type: type[ValueT], *, codec: str | Codec[ValueT] = "json") -> Topic[ValueT]:
        """Return a typed topic: values in, values out."""
        return Topic(self, name, type, codec)

    @taking(SyncConnection.listener)
    def listener(
        self, topic: str, *, group: str, threads: int, ordered: bool, start: PositionLike | None, **arguments: Any
    ) -> Callable[[ListenerT], ListenerT]:
        """Decorate a coroutine function that is called with each message once `run()` or `start()` was awaited.

        Args:
            threads: how many messages may be handled at once, as tasks.
        """
        tags = arguments.pop("tags")
        spec = consumer_spec(topic, group, tags, "clustering", start, **arguments)

        def decorate(function: ListenerT) -> ListenerT:
            self._listeners.add(Listener(spec, function, threads=threads, ordered=ordered))
            return function

        return decorate

    @property
    def admin(self) -> Admin:
        """Topics, groups, offsets, dead letters; the connection must be open."""
        made = self._link()
        return Admin(made.admin)

    # -- life
    async def run(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Run the listeners until cancelled or stopped; then drain for `timeout` seconds."""
        timeout = check_wait(timeout)
        await self._listeners.run(await self._open(), timeout)

    async def start(self) -> None:
        """Run the listeners as tasks of this loop; returns at once."""
        await self._listeners.start(await self._open())

    async def stop(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Stop the listeners: wait for running calls, give back what was not handled."""
        await asyncio.shield(self._listeners.stop(check_wait(timeout)))

    async def close(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Drain for at most `timeout` seconds, give unsettled messages back, and leave. Twice is harmless."""
        await asyncio.shield(self._close(check_wait(timeout)))

    async def _close(self, timeout: float) -> None:
        self._closed = True
        try:
            await self._listeners.stop(timeout)
        finally:
            await self._end(SyncConnection.close, timeout)

    def __repr__(self) -> str:
        return f"<shmq.aio.Connection {self.url}{' closed' if self._closed else ''}>"

    def _preparing(
        self, call: Callable[[SyncConnection], SyncT], close: Callable[[SyncT], object], what: object = None
    ) -> Callable[[], Coroutine[Any, Any, Opening[SyncT]]]:
        """Return what opens the connection if need be, and prepares a call with it that may wait."""

        async def prepare() -> Opening[SyncT]:
            made = await self._open()
            if what is not None:
                for other in [each for each in self._openings if each.what == what]:
                    await other.left()  # of a cancelled task; a connection reads a topic once for a group
            opening = Opening(functools.partial(call, made), close, what)
            self._openings.add(opening)
            return opening

        return prepare


async def _connecting(make: Callable[[], SyncConnection], checkers: Checkers) -> Opening[SyncConnection]:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "shmq.aio needs an event loop of asyncio, and none runs here",
            hint="asyncio.run(main()), or anyio on asyncio; with trio shmq itself: trio.to_thread.run_sync(mq.send, …)",
        ) from None
    return Opening(functools.partial(_connect, make, checkers, loop), SyncConnection.close)


def _connect(make: Callable[[], SyncConnection], checkers: Checkers, loop: asyncio.AbstractEventLoop) -> SyncConnection:
    """Make a connection and decorate its checkers, on a thread."""
    made = make()
    try:
        for group, function in checkers:
            made.transaction_checker(group)(checker_for(loop, function))
    except BaseException:
        made.close()
        raise
    return made


def _reconnect(url: str, made_with: dict[str, Any]) -> Connection:
    return connect(url, **made_with)
