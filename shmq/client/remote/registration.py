"""Registers this client with its brokers: groups, subscriptions, and the heartbeat that keeps them known.

Invariants:
    (1) a subscription keeps its version as long as it says the same, so that a heartbeat changes nothing at the broker;
    (2) every broker of a topic that is read or written hears of us within 30 s, those of a new route at once;
    (3) members of a group read its retry topic, too; broadcast consumers do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

from shmq.addresses import Address
from shmq.client.keywords import DEFAULT_PRODUCER_GROUP
from shmq.client.spec import EVERYTHING, ConsumerSpec, Wanted, consumer_data
from shmq.client.wire_tcp.network import countdown
from shmq.client.wire_tcp.wire import TcpWire
from shmq.errors import ConnectError, RemoteError, RequestTimeout, ShmqError
from shmq.message import retry_topic, retry_topic_of
from shmq.protocol.body import ClientConfig, HeartbeatData, ProducerData, SubscriptionData, encode_body
from shmq.protocol.client_requests import goodbye, heartbeat
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.failure import reply_of

HEARTBEAT_INTERVAL: Final = 30.0


class Registration:
    """The groups of one client, as registered with all brokers."""

    def __init__(self, wire: TcpWire) -> None:
        self._wire = wire
        self._versions: dict[tuple[str | None, str, Wanted], int] = {}
        self.producer_groups: tuple[str, ...] = ()
        self._asks = False  # replies find a client as a producer, whose group does not matter
        self._introduced: dict[tuple[str, bool], dict[str, Address | None]] = {}  # to which masters
        self.specs: tuple[ConsumerSpec, ...] = ()

    def set(self, producer_groups: Iterable[str], specs: Iterable[ConsumerSpec]) -> None:
        """Remember what the next heartbeats say."""
        self.producer_groups = tuple(producer_groups)
        self.specs = tuple(specs)

    def without(self, group: str) -> None:
        """Forget a group."""
        self.set(
            (name for name in self.producer_groups if name != group),
            (spec for spec in self.specs if spec.group != group),
        )

    def version_of(self, spec: ConsumerSpec, topic: str) -> int:
        """Return the version of a subscription, made when it is first asked for."""
        wanted = spec.wanted if topic == spec.topic else EVERYTHING
        return self._versions.setdefault((spec.group, topic, wanted), self._wire.now_ms())

    def topics(self) -> list[str]:
        """Return every topic that is read."""
        found = dict.fromkeys(spec.topic for spec in self.specs)
        found.update(dict.fromkeys(retry_topic(spec.group) for spec in self.specs if _retries(spec)))  # type: ignore[arg-type]
        return list(found)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups whose members read a topic, as itself or as their retry topic."""
        named = ((spec.group, spec.topic) for spec in self.specs if spec.group)
        return list(
            dict.fromkeys(
                group for group, own in named if topic in (own, retry_topic(group), retry_topic_of(group, own))
            )
        )

    def data(self) -> HeartbeatData:
        """Return the body of a heartbeat."""
        return HeartbeatData(
            clientID=self._wire.client_id,
            consumerDataSet=consumer_data(self.specs, self._subscription, retries=True),
            producerDataSet=[ProducerData(group) for group in self._producers()],
        )

    def _producers(self) -> list[str]:
        unnamed = [DEFAULT_PRODUCER_GROUP] if self._asks and not self.producer_groups else []
        return [*self.producer_groups, *unnamed]

    def _subscription(self, spec: ConsumerSpec, topic: str) -> SubscriptionData:
        wanted = spec.wanted if topic == spec.topic else EVERYTHING
        return wanted.subscription(topic, self.version_of(spec, topic))

    # -- on the I/O thread
    async def register(self) -> None:
        """Let every broker of the topics that are read, and of those that were written, know what we are now."""
        left = countdown(self._wire.network.loop, self._wire.timeout)
        for topic in self.topics():
            await self._wire.names.route(topic, timeout=left())
        await self.check(left)
        await self.beat(timeout=left())

    async def introduce(self, topic: str, timeout: float, *, asks: bool = False) -> None:
        """Let the brokers of a topic know us as a producer now: the next heartbeat would come half a minute later.

        Brokers ask only members they have heard of how a transaction ended. A reply may come to any broker of the
        cluster, and that one looks for the client that `asks`.
        """
        left = countdown(self._wire.network.loop, timeout)
        route = await self._wire.names.writable_route(topic, timeout=left())
        masters = {name: route.master(name) for name in route.brokers}
        if self._introduced.get((topic, asks)) != masters:
            self._asks = self._asks or asks
            await self.beat(timeout=left())
            self._introduced[topic, asks] = masters

    async def check(self, left: Callable[[], float]) -> None:
        """Ask a broker of each topic that is read with an expression whether it filters by such ones.

        Args:
            left: how many seconds are left for it.

        Raises:
            FilterSyntaxError, RemoteError: it does not.
        """
        for spec in self.specs:
            key = (spec.group, spec.topic, spec.wanted)
            if spec.where is None or key in self._versions:
                continue  # told before
            try:
                await self._check(spec, left)
            except ShmqError as error:
                self._versions.pop(key, None)
                if isinstance(error, RemoteError) and error.code == Response.SYSTEM_ERROR:
                    error.hint = "a stock broker filters by SQL92 if its broker.conf says enablePropertyFilter=true"
                raise

    async def _check(self, spec: ConsumerSpec, left: Callable[[], float]) -> None:
        wire = self._wire
        route = await wire.names.readable_route(spec.topic, timeout=left())
        address = route.reader(route.readable[0].brokerName) if route.readable else None
        if address is None:
            return
        config = ClientConfig(wire.client_id, spec.group, self._subscription(spec, spec.topic))
        command = Command(code=Request.CHECK_CLIENT_CONFIG, body=encode_body(config))
        reply_of(await wire.network.request(address, command, left()))

    async def beat(self, only: Address | None = None, *, timeout: float | None = None) -> None:
        """Tell every broker in use (or one) what we are.

        Args:
            timeout: seconds for an answer, where they are not the connection's.

        Raises:
            ShmqError: a broker refused, or none could be reached.
        """
        data = self.data()
        if not data.consumerDataSet and not data.producerDataSet:
            return
        addresses = [only] if only is not None else self.addresses()
        seconds = self._wire.timeout if timeout is None else timeout
        told = (self._beat(address, data, seconds) for address in addresses)
        results = await asyncio.gather(*told, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, (ConnectError, RequestTimeout)) or len(failures) == len(addresses):
                raise failure

    async def _beat(self, address: Address, data: HeartbeatData, seconds: float) -> None:
        reply_of(await self._wire.network.request(address, heartbeat(data), seconds))

    def addresses(self) -> list[Address]:
        """Return the brokers to register with: all of the topics we read, the masters of those we write."""
        found: dict[Address, None] = {}
        for route in self._wire.names.routes.all():
            for broker_name, addresses in route.brokers.items():
                master = route.master(broker_name)
                for address in addresses.values():
                    if self.specs or address == master:
                        found[address] = None
        return list(found)

    async def leave(self, group: str | None) -> None:
        """Take back a group, or all of them; brokers that cannot be reached find out by themselves."""
        consumers = {spec.group for spec in self.specs if spec.group} if group is None else {group}
        producers = set(self._producers()) if group is None else {group} & set(self.producer_groups)
        if group is None:
            self.set((), ())
        else:
            self.without(group)
        wire = self._wire
        asks = [
            wire.network.request(address, self._goodbye(name, consumers, producers), 1.0)
            for address in wire.network.connected()
            if address not in wire.names.servers
            for name in sorted(consumers | producers)
        ]
        await asyncio.gather(*asks, return_exceptions=True)

    def _goodbye(self, group: str, *roles: Collection[str]) -> Command:
        return goodbye(self._wire.client_id, *(group if group in groups else "" for groups in roles))


def _retries(spec: ConsumerSpec) -> bool:
    return spec.group is not None and spec.model == "clustering"
