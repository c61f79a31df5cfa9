"""The wire to a RocketMQ cluster: one network thread, the name servers, and what is known of brokers and queues.

    any thread ──request · begin · call──▶ I/O thread ──▶ name servers: which broker has what
               ◀──answers─────────────────            ──▶ brokers: requests, and the requests they make of this client

Features register what they serve with `serve(code, handler)`; the wire itself knows none of them.

Invariants:
    1. What is called from outside ends within the wire's timeout, or the one given.
    2. A forked child abandons everything; the parent notices nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from shmq.addresses import Address
from shmq.client.place import RemotePlace
from shmq.client.wire import Question, QueueSlot, guarded, ignore
from shmq.client.wire_tcp.channel import Channel
from shmq.client.wire_tcp.name_service import Answering, NameService
from shmq.client.wire_tcp.network import Network, closed_meanwhile, countdown
from shmq.client.wire_tcp.route import QueueNumbers, Route
from shmq.errors import BrokerNotRunning, NotMaster, RequestTimeout, ShmqError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.failure import Answer, failure_reply, reply_of

ResultT = TypeVar("ResultT")
Handler = Callable[["Channel", Command], Command | None]
"""Serves a broker's request on the I/O thread; None when the answer comes later, or none is wanted."""

LEAVE_TIMEOUT = 2.0
"""How long close() waits for offsets and goodbyes, in seconds."""


class TcpWire:
    """Requests to the brokers of one cluster, from any thread; `timeout` in seconds."""

    is_local = False

    def __init__(self, place: RemotePlace, *, client_id: str, timeout: float, answer: Answering | None = None) -> None:
        """
        Args:
            answer: answers what name servers are asked, in their place.
        """
        self.place = place
        self.client_id = client_id
        self.timeout = timeout
        self.numbers = QueueNumbers()
        self.on_route: Callable[[Route], None] = ignore
        self.on_masters: Callable[[Collection[str]], None] = ignore
        self.on_broker_back: Callable[[Collection[str]], None] = ignore
        self._masters: dict[str, Address] = {}  # the last one of each broker
        self._handlers: dict[int, Handler] = {}
        self.network = Network(
            place.options, connect_timeout=timeout, on_request=self._serve, on_reconnect=self._reconnected
        )
        self.names = NameService(self.network, place.name_servers, self._route_changed, timeout=timeout, answer=answer)
        try:
            self.local_host: str = self.network.call(self._open(), timeout)
        except BaseException:
            self.network.stop(LEAVE_TIMEOUT)
            raise

    async def _open(self) -> str:
        left = countdown(self.network.loop, self.timeout)
        names = await self.names.broker_names(timeout=left())
        self.numbers.learn(names)  # all at once, so that numbers are the same in every process
        channel = await self.network.channel(self.names.current, left())
        return channel.local_host

    @property
    def alive(self) -> bool:
        return bool(self.network.connected())

    def now_ms(self) -> int:
        return round(time.time() * 1000)

    # -- requests
    def brokers(self, topic: str | None = None) -> list[str]:
        if topic is None:
            masters = self.call(self.names.masters(timeout=self.timeout))
            self.numbers.learn(masters)
            return sorted(masters)
        route = self.call(self.names.route(topic, timeout=self.timeout))
        return sorted(route.brokers) if route is not None else []

    def address(self, broker: str) -> str:
        return str(self.names.known_master(broker) or "")

    def refresh(self, topic: str) -> tuple[int, int]:
        """Ask the name servers for a topic now; return how many queues may be read and written, 0 when it is gone."""
        route = self.call(self.names.refresh(topic))
        return (len(route.readable), len(route.writable)) if route is not None else (0, 0)

    def tell_name_servers(self, code: int, ext: Mapping[str, str]) -> None:
        """Ask every name server for a change; the first refusal is raised."""
        self.call(self._tell_name_servers(Command(code=code, ext=dict(ext))))

    async def _tell_name_servers(self, command: Command) -> None:
        ask = self.network.request
        for reply in await asyncio.gather(*(ask(each, command, self.timeout) for each in self.names.servers)):
            reply_of(reply)

    def request(self, question: Question, timeout: float | None = None) -> Command:
        seconds = self.timeout if timeout is None else timeout
        return self.call(self._answered(question, seconds), seconds)

    async def _answered(self, question: Question, timeout: float) -> Command:
        reply = await self.ask(question, timeout)
        try:
            return reply_of(reply)
        except NotMaster:
            self.names.forget_master(question.broker)
            raise

    def begin(
        self,
        question: Question,
        then: Callable[[Answer], None],
        *,
        timeout: float | None = None,
        slave_may_answer: bool = False,
    ) -> None:
        """Ask without waiting; `then` is called on the I/O thread."""
        seconds = self.timeout if timeout is None else timeout

        async def ask() -> None:
            answer: Answer
            try:
                answer = await self.ask(question, seconds, slave_may_answer=slave_may_answer)
            except ShmqError as error:
                answer = error
            guarded(then, answer)

        try:
            self.network.submit(ask())
        except ShmqError as error:  # the connection is closed
            guarded(then, error)

    async def ask(self, question: Question, timeout: float, *, slave_may_answer: bool = False) -> Command:
        """On the I/O thread: ask the master of a broker name, and return its answer whatever its code is."""
        started = self.network.loop.time()
        address = await self.names.master(question.broker, timeout=timeout, slave_may_answer=slave_may_answer)
        remaining = max(0.001, timeout + started - self.network.loop.time())
        try:
            return await self.network.request(address, question.command, remaining)
        except (BrokerNotRunning, RequestTimeout):
            self.names.forget_master(question.broker)
            raise

    def call(self, work: Coroutine[Any, Any, ResultT], timeout: float | None = None) -> ResultT:
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
            stuck = RequestTimeout(f"nothing came back within {timeout:g} s", hint="see where the process is stuck")
            stuck.maybe_stored = True
            raise stuck from error
        except CancelledError as error:
            raise closed_meanwhile() from error

    # -- what brokers ask of this client
    def serve(self, code: int, handler: Handler) -> None:
        """Let a handler answer requests of a code."""
        self._handlers[code] = handler

    def _serve(self, channel: Channel, request: Command) -> None:
        handler = self._handlers.get(request.code, _not_supported)
        try:
            reply = handler(channel, request)
        except ShmqError as error:
            reply = failure_reply(request, error)
        if reply is not None and not request.is_oneway:
            channel.answer(reply)

    def _route_changed(self, route: Route) -> None:
        self.numbers.learn(route.brokers)  # first, so the route's queues have numbers wherever it is used
        self._look_at_masters(route)
        self.on_route(route)

    def _look_at_masters(self, route: Route) -> None:
        moved = set()
        for name in route.brokers:
            master, before = route.master(name), self._masters.get(name)
            if master is None or master == before:
                continue
            self._masters[name] = master
            if before is not None:
                moved.add(name)
                self.network.give_up_held(before)
                for known in self.names.routes.all():
                    if known.master(name) == before:
                        self.names.routes.forget(known.topic)
        if moved:
            self.on_masters(moved)

    def _reconnected(self, address: Address) -> None:
        if address not in self.names.servers:
            self.on_broker_back([name for name, master in self._masters.items() if master == address])

    # -- queues
    def slot(self, queue: MessageQueue, *, retry: bool = False) -> QueueSlot:
        """Return a queue as consumers know it; `retry`: of a group's retry topic."""
        number = self.numbers.number(queue, retry=retry)
        return QueueSlot(number, number)

    # -- the end
    def close(self) -> None:
        self.network.stop(LEAVE_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, and of nothing else."""
        self.network.abandon()


def _not_supported(_channel: Channel, request: Command) -> Command:
    text = f" request type {request.code} not supported"
    return request.reply(Response.REQUEST_CODE_NOT_SUPPORTED, remark=text)
