"""Asks name servers: keeps to one while it answers, goes on to the next when it is dead, and refreshes routes.

Everything runs on the I/O thread; `Routes` is the table, without sockets.

    unknown ──ask──▶ known ──30 s──▶ asked again in the background; the old one serves until the new one is there
       └──no route──▶ missing ──1 s──▶ asked again at the next use

Invariants:
    (1) one name server is asked as long as it answers; when it does not, the next one is, within the same deadline, and
        from then on, unless the first one was only silent for a moment;
    (2) a route that was known serves on when no name server answers; when they are silent, what needs it waits for a
        part of its own time, and no more for a second after that;
    (3) in a switch a broker of several hosts may leave the name servers for a moment, and so may the topic: the
        broker's queues stay `permitted`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from shmq.addresses import Address
from shmq.client.place import parse_address
from shmq.client.wire_tcp.network import Network, countdown, look_at
from shmq.client.wire_tcp.route import Route, decode_route, route_of_default
from shmq.errors import (
    BrokerNotRunning,
    ConnectError,
    PermissionDenied,
    ProtocolError,
    RemoteError,
    RequestTimeout,
    ShmqError,
    TopicNotFound,
    UsageError,
)
from shmq.message import TRACE_TOPIC, is_system_topic
from shmq.protocol.body import decode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import reply_of
from shmq.protocol.route import DEFAULT_TOPIC, MASTER_ID, ClusterInfo, TopicList

REFRESH: Final = 30.0
MISSING_FOR: Final = 1.0
SWITCH_FOR: Final = 2 * REFRESH + 60.0  # a switch, and a program that asks for routes that long before and after it
BORN_POLL: Final = 0.02
OLD_ROUTE_WAIT_SECONDS: Final = 1.0
"""The longest wait for a newer route than the one that is known, and how long that serves after silence."""
_OLD_ROUTE_SHARE: Final = 1 / 3
Answering = Callable[[int, Mapping[str, str]], Awaitable[Command]]


class Routes:
    """The routes of topics, with the time each was learned."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Route | None, float]] = {}
        self._last: dict[str, Route] = {}  # also of topics that name servers do not know at the moment
        self._groups: dict[str, dict[str, float]] = {}  # brokers of a topic, and when each last had several hosts

    def get(self, topic: str, now: float) -> Route | None:
        """Return a route that need not be asked for now."""
        route, learned = self._found.get(topic, (None, 0.0))
        return route if route is not None and now - learned < 2 * REFRESH else None

    def old(self, topic: str) -> Route | None:
        """Return what was known last."""
        return self._found.get(topic, (None, 0.0))[0]

    def groups(self, topic: str, now: float) -> set[str]:
        """Return the brokers of a topic that have several hosts, or no master, or had until some seconds ago.

        In a switch brokers leave the name servers, and come back in another role.
        """
        return {name for name, met in self._groups.get(topic, {}).items() if now - met < SWITCH_FOR}

    def is_missing(self, topic: str, now: float) -> bool:
        """Whether a name server said a moment ago that there is no such topic."""
        route, learned = self._found.get(topic, (None, -MISSING_FOR))
        return route is None and now - learned < MISSING_FOR

    def put(self, topic: str, route: Route | None, now: float) -> bool:
        """Note an answer; True when it differs from what was known."""
        before = self.old(topic)
        if route is not None:
            several = [name for name, hosts in route.brokers.items() if len(hosts) > 1 or MASTER_ID not in hosts]
            self._groups.setdefault(topic, {}).update(dict.fromkeys(several, now))
            away = self.groups(topic, now) - route.brokers.keys()
            earlier = self._last.get(topic, route)  # what is old in it is in no group any more
            route = route.with_permitted(queue for queue in earlier.permitted if queue.brokerName in away)
            self._last[topic] = route
        self._found[topic] = (route, now)
        return before != route

    def forget(self, topic: str) -> None:
        """Ask again at the next use, whatever is known."""
        route, _ = self._found.get(topic, (None, 0.0))
        self._found[topic] = (route, float("-inf"))

    def stale(self, now: float) -> list[str]:
        """Return the topics to be asked for again."""
        return [topic for topic, (_, learned) in self._found.items() if now - learned >= REFRESH]

    def all(self) -> list[Route]:
        """Return every route that is known; any thread may call."""
        return [route for route, _ in list(self._found.values()) if route is not None]


class NameService:
    """The name servers of one place."""

    def __init__(
        self,
        network: Network,
        servers: Iterable[Address],
        on_change: Callable[[Route], None],
        *,
        timeout: float,
        answer: Answering | None = None,
    ) -> None:
        """
        Args:
            timeout: seconds for an answer, where a question does not say them.
            answer: answers in place of the name servers, which then are the addresses of one broker.
        """
        self._network = network
        self._timeout = timeout
        self._servers = list(servers)
        self._answer = answer
        self._current = 0  # which is asked first
        self.current = self._servers[0]
        """The name server that answered last."""
        # A shorter silence may be a pause. Another server may know less: masters of before, for instance.
        self._patience = min(OLD_ROUTE_WAIT_SECONDS / 2, 0.9 * timeout / len(self._servers))
        self._on_change = on_change
        self._asking: dict[str, tuple[asyncio.Task[Route | None], float]] = {}  # and until when
        self._born: set[str] = set()
        self._silent_until = float("-inf")  # what is known serves until then
        self._masters: dict[str, Address] = {}  # all of them, at the time of:
        self._masters_told = float("-inf")
        self.routes = Routes()

    @property
    def servers(self) -> list[Address]:
        """All name servers."""
        return self._servers if self._answer is None else []

    async def ask(self, code: int, ext: dict[str, str] | None = None, *, timeout: float | None = None) -> Command:
        """Ask the current name server, then the others; return the answer, whatever its code.

        Raises:
            BrokerNotRunning: none of them answered.
            PermissionDenied: TLS was refused.
        """
        if self._answer is not None:
            return await self._answer(code, ext or {})
        loop = self._network.loop
        seconds = self._timeout if timeout is None else timeout
        deadline = loop.time() + seconds
        failures: list[ShmqError] = []
        stays_at: int | None = None
        for step in range(len(self._servers)):
            index = (self._current + step) % len(self._servers)
            asked_at = loop.time()
            share = (deadline - asked_at) / (len(self._servers) - step)
            if share <= 0:
                break
            try:
                command = Command(code=code, ext=dict(ext or {}))
                reply = await self._network.request(self._servers[index], command, share)
            except (ConnectError, RequestTimeout) as error:
                failures.append(error)
                if stays_at is None and loop.time() - asked_at >= share and share < self._patience:
                    stays_at = index
                continue
            self._current = index if stays_at is None else stays_at
            self.current = self._servers[index]
            return reply
        if len(failures) == 1 and isinstance(failures[0], ConnectError):
            raise failures[0]
        raise _no_name_server("; ".join(map(str, failures)) or f"no answer within {seconds:g} s")

    async def route(self, topic: str, *, timeout: float | None = None) -> Route | None:
        """Return the route of a topic; None when there is none."""
        now = self._network.loop.time()
        known = self.routes.get(topic, now)
        if known is not None or self.routes.is_missing(topic, now):
            return known
        old = self.routes.old(topic)
        if old is None or now < self._silent_until:
            return old or await self.refresh(topic, timeout=timeout)
        patience = (self._timeout if timeout is None else timeout) * _OLD_ROUTE_SHARE
        route = await self.refresh(topic, timeout=min(OLD_ROUTE_WAIT_SECONDS, patience))
        ended = self._network.loop.time()
        if route is old and ended - now >= min(OLD_ROUTE_WAIT_SECONDS, patience) / 2:  # they did not refuse
            self._silent_until = ended + OLD_ROUTE_WAIT_SECONDS
        return route

    async def refresh(self, topic: str, *, timeout: float | None = None) -> Route | None:
        """Ask for a route now; at most one question for each topic is on its way."""
        loop, seconds = self._network.loop, self._timeout if timeout is None else timeout
        ends_at = loop.time() + seconds
        while (asked := self._asking.get(topic)) is not None:
            task, asked_until = asked
            await asyncio.wait({task}, timeout=ends_at - loop.time())
            if task.done() and (task.exception() is None or loop.time() < asked_until or ends_at <= loop.time()):
                return task.result()
            if not task.done():  # it may have been asked for longer
                if (known := self.routes.old(topic)) is not None:
                    return known
                raise _no_name_server(f"no answer within {seconds:g} s")
        task = loop.create_task(self._ask_route(topic, ends_at - loop.time()))
        self._asking[topic] = task, ends_at
        task.add_done_callback(lambda _: self._asking.pop(topic, None))
        task.add_done_callback(look_at)
        return await asyncio.shield(task)

    async def _ask_route(self, topic: str, timeout: float) -> Route | None:
        try:
            reply = await self.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, timeout=timeout)
        except (ConnectError, RequestTimeout):
            if (known := self.routes.old(topic)) is not None:
                return known
            raise
        route: Route | None = None
        if reply.code == Response.REQUEST_CODE_NOT_SUPPORTED:
            raise UsageError(
                f"{self.current} is no name server: it answers, and knows no routes",
                hint="is it a broker? The URL has the address of its name server: rocketmq://HOST:9876",
            )
        if reply.code != Response.TOPIC_NOT_EXIST:
            route = decode_route(topic, reply_of(reply).body)
        has_changed = self.routes.put(topic, route, self._network.loop.time())
        route = self.routes.old(topic)
        if has_changed and route is not None:
            self._on_change(route)
        return route

    async def readable_route(self, topic: str, *, timeout: float, may_be_made: bool = True) -> Route:
        """Return where a topic is read; one that this connection has just created is waited for.

        Args:
            may_be_made: whether an error says how it is created: not for a deletion or a reset of offsets.

        Raises:
            TopicNotFound: it does not exist.
        """
        left = countdown(self._network.loop, timeout)
        route = await self.route(topic, timeout=left())
        while route is None and topic in self._born and left() > BORN_POLL:
            await asyncio.sleep(BORN_POLL)
            route = await self.refresh(topic, timeout=left())
        self._born.discard(topic)
        if route is None:
            raise await self.not_found(topic, timeout=left(), may_be_made=may_be_made)
        return route

    async def writable_route(self, topic: str, *, timeout: float) -> Route:
        """Return where a topic is written; that of the default topic when the topic does not exist yet.

        Raises:
            TopicNotFound: it does not exist, and no broker creates topics by itself.
            BrokerNotRunning: its broker has no master now.
        """
        left = countdown(self._network.loop, timeout)
        route, default = await self.route(topic, timeout=left()), None
        if route is None and (topic == TRACE_TOPIC or not is_system_topic(topic)):
            # Brokers register both at once. The topic's may have come back since that answer, or have left since the
            # default topic came: a message group would go to another queue than its own.
            default = await self.refresh(DEFAULT_TOPIC, timeout=left())
            route = await self.refresh(topic, timeout=left())
        if route is not None and route.writable:
            return route
        if route is None and default is not None and default.writable:
            self.routes.forget(topic)  # it exists as soon as the first message is stored
            self._born.add(topic)
            return route_of_default(topic, default)
        without = [] if route is None else [name for name, hosts in route.brokers.items() if MASTER_ID not in hosts]
        if without:
            self.routes.forget(topic)  # a switch is under way: the next use asks anew
            raise no_master(without[0])
        raise await self.not_found(topic, timeout=left(), exists=route is not None)

    async def not_found(
        self, topic: str, *, timeout: float, exists: bool = False, may_be_made: bool = True
    ) -> TopicNotFound | BrokerNotRunning:
        """Return the error for a topic that cannot be used, with the nearest names that exist."""
        from shmq.message import missing_topic

        servers = ",".join(map(str, self._servers))
        if exists:
            return TopicNotFound(f'topic "{topic}" has no queue that may be written now', hint="are its brokers up?")
        names: list[str] = []
        left = countdown(self._network.loop, timeout)
        with contextlib.suppress(ShmqError):
            names = await self.topics(timeout=left())
            if not names and not (await self.clusters(timeout=left())).brokerAddrTable:
                return no_broker()
        then = f"create it with: shmq topic create {topic}" if may_be_made else "see: shmq topic list -a"
        return missing_topic(topic, f"at {servers}", names, then)

    async def topics(self, *, timeout: float) -> list[str]:
        """Return the names of all topics."""
        reply = reply_of(await self.ask(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, timeout=timeout))
        return sorted(set(decode_body(reply.body, TopicList, dialect_bytes_max=1 << 20).topicList))

    async def broker_names(self, *, timeout: float) -> list[str]:
        """Return the names of all brokers, or those that an account that may not list them can see.

        Raises:
            PermissionDenied: there is no such account.
        """
        left = countdown(self._network.loop, timeout)
        try:
            return list((await self.clusters(timeout=left())).brokerAddrTable)
        except (PermissionDenied, RemoteError):
            # The list is for administrators. The default topic is on every broker that creates topics by itself.
            route = await self.route(DEFAULT_TOPIC, timeout=left())
            return list(route.brokers) if route is not None else []

    def known_master(self, broker_name: str) -> Address | None:
        """Return the address of the master of a broker name if it is known; from any thread."""
        return next((found for each in self.routes.all() if (found := each.master(broker_name)) is not None), None)

    async def master(self, broker_name: str, *, timeout: float, slave_may_answer: bool = False) -> Address:
        """Return the address of the master of a broker name, from a route that is known, else asked for.

        Args:
            slave_may_answer: return the address of a slave while there is no master.

        Raises:
            BrokerNotRunning: no name server knows it.
        """
        left = countdown(self._network.loop, timeout)
        told = self._masters if self._network.loop.time() - self._masters_told < MISSING_FOR else {}
        found = told.get(broker_name) or await self._routed_master(broker_name, left)
        if found is None and slave_may_answer:
            found = next((each for route in self.routes.all() if (each := route.reader(broker_name)) is not None), None)
        if found is None:
            found = (await self.masters(timeout=left())).get(broker_name)
        if found is None:
            raise no_master(broker_name)
        return found

    async def _routed_master(self, broker_name: str, left: Callable[[], float]) -> Address | None:
        for route in self.routes.all():
            if route.master(broker_name) is not None:
                latest = await self.route(route.topic, timeout=left())  # the same, unless it was forgotten
                if latest is not None and (address := latest.master(broker_name)) is not None:
                    return address
        return None

    async def masters(self, *, timeout: float) -> dict[str, Address]:
        """Return {broker name: master} of all brokers.

        Raises:
            BrokerNotRunning: no broker is registered.
        """
        found: dict[str, Address] = {}
        for name, broker in (await self.clusters(timeout=timeout)).brokerAddrTable.items():
            if (text := broker.brokerAddrs.get(MASTER_ID)) is not None:
                try:
                    found[name] = parse_address(text)
                except UsageError as error:
                    raise ProtocolError(f"broker {name} has an impossible address: {error}") from error
        if not found:
            raise no_broker()
        self._masters, self._masters_told = found, self._network.loop.time()
        return found

    async def may_switch(self, topic: str, *, timeout: float) -> bool:
        """Whether another host may become the master of a topic's broker soon: it has several, or had until now."""
        names = self.routes.groups(topic, self._network.loop.time())
        if not names or self.routes.old(topic) is not None:
            return bool(names)
        left = countdown(self._network.loop, timeout)
        try:  # where all masters are there, and still not the topic, it was deleted
            are_there = (await self.masters(timeout=left())).keys() >= names
            return not are_there or await self.refresh(topic, timeout=left()) is not None
        except ShmqError:
            return True

    def forget_master(self, broker_name: str) -> None:
        """Ask anew at the next use where a broker is, which could not be reached where it was."""
        self._masters = {name: address for name, address in self._masters.items() if name != broker_name}
        for route in self.routes.all():
            if route.master(broker_name) is not None:
                self.routes.forget(route.topic)

    async def clusters(self, *, timeout: float) -> ClusterInfo:
        """Return all brokers."""
        reply = reply_of(await self.ask(Request.GET_BROKER_CLUSTER_INFO, timeout=timeout))
        return decode_body(reply.body, ClusterInfo, dialect_bytes_max=1 << 20)


def _no_name_server(said: str) -> BrokerNotRunning:
    return BrokerNotRunning(f"no name server answers: {said}", hint="is it running? host:port in the URL are its")


def no_broker() -> BrokerNotRunning:
    """Return the error for name servers that know no broker: it has not started yet, or changes its role just now."""
    return BrokerNotRunning("no broker is registered at the name server", hint="is the broker up?")


def no_master(broker_name: str) -> BrokerNotRunning:
    """Return the error for a broker without a master, of which none is known to any name server."""
    hint = "is it up, and registered at the name servers?"
    return BrokerNotRunning(f"broker {broker_name} has no master now", hint=hint)
