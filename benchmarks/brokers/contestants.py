"""The brokers that are compared over TCP: ours, and stock ones from the cache of the tests with real peers.

(1) A broker is started when it is first asked for and runs until all are stopped; it has clients only while measured.
    One that flushes synchronously is a broker of its own.
(2) `registered` of ours has its name server in a process of its own, as a stock broker always has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Self

from benchmarks.brokers.pairs import STOCK_HEAP, STOCK_SETTINGS, stock_pair, synchronous_pair
from benchmarks.brokers.processes import memory_mib, processor_seconds
from shmq.testing import Broker
from tests.interop.peers.registry import SERVERS
from tests.interop.peers.stock import StockBroker
from tests.interop.peers.wire import Wire
from tests.nameserver.live_nameserver import name_server

OURS = "ours"
_ON_DISK = " on disk"
_REGISTERED = " registered"
_IN_PAIR = " in a pair"
QUEUES = 8  # at least as many as a new topic gets
GET_MAX_OFFSET = 30


def name_of(version: str) -> str:
    """Return what a line calls the stock broker of a version, "4" or "5"."""
    return SERVERS[version].replace("server-", "stock ")


def on_disk(name: str) -> str:
    """Return the name of the same broker, but with synchronous flush."""
    return name + _ON_DISK


def registered(name: str) -> str:
    """Return the name of the same broker where its name server is a process of its own."""
    return name + _REGISTERED if name == OURS else name


def in_pair(name: str) -> str:
    """Return the name of the same broker as a synchronous master with a slave."""
    return name + _IN_PAIR


@dataclass(frozen=True)
class Contestant:
    """A running broker: where it is, and which processes it is made of."""

    name_server: str
    broker_address: str
    pids: Callable[[], list[int]]

    @property
    def url(self) -> str:
        """The URL for our client."""
        return f"rocketmq://{self.name_server}"

    def stored(self, topic: str) -> int:
        """Return how many messages a topic's queues have."""
        with Wire(self.broker_address) as wire:
            replies = [wire.ask(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue)}) for queue in range(QUEUES)]
        return sum(int(reply.fields["offset"]) for reply in replies if reply is not None and reply.code == 0)

    def memory_mib(self) -> float:
        """Return the resident memory of its processes; a page that several of them share counts once."""
        return memory_mib(self.pids())

    def processor_seconds(self) -> float:
        """Return the processor time of its processes and of all that they started."""
        return processor_seconds(self.pids())


class Contestants:
    """Brokers by name: "ours", or the stock version "4" or "5"; `on_disk` of these with synchronous flush."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Contestant] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all of them."""
        self._running.clear()
        self._stack.close()

    def get(self, name: str) -> Contestant:
        """Return a running broker.

        Raises:
            PeerMissing: a stock broker cannot be had here; the text says why.
        """
        if name not in self._running:
            self._running[name] = self._start(name)
        return self._running[name]

    def _start(self, name: str) -> Contestant:
        if name.endswith(_IN_PAIR):
            return self._start_pair(name.removesuffix(_IN_PAIR))
        version, is_sync = name.removesuffix(_REGISTERED).removesuffix(_ON_DISK), name.endswith(_ON_DISK)
        if version == OURS:
            return self._start_ours(name.endswith(_REGISTERED), "sync" if is_sync else "async")
        settings = STOCK_SETTINGS | ({"flushDiskType": "SYNC_FLUSH"} if is_sync else {})
        stock = self._stack.enter_context(StockBroker(version, heap=STOCK_HEAP, settings=settings))
        return Contestant(stock.name_server, stock.broker_address, partial(list, stock.pids[1:]))

    def _start_ours(self, is_registered: bool, flush: str) -> Contestant:
        names = self._stack.enter_context(name_server()).address if is_registered else ""
        ours = self._stack.enter_context(Broker(tcp=True, small=False, flush=flush, nameservers=names))
        pids = lambda: [mark.pid for mark in ours.processes.values()]  # noqa: E731
        return Contestant(names or ours.name_server, ours.broker_address, pids)

    def _start_pair(self, version: str) -> Contestant:
        if version == OURS:
            ours = self._stack.enter_context(synchronous_pair())
            pids = lambda: [mark.pid for each in ours for mark in each.processes.values()]  # noqa: E731
            return Contestant(ours[0].name_server, ours[0].broker_address, pids)
        stock = self._stack.enter_context(stock_pair(version))
        pids = lambda: [*stock[0].pids[1:], *stock[1].pids]  # noqa: E731
        return Contestant(stock[0].name_server, stock[0].broker_address, pids)
