"""Owns which brokers a test runs against: ours, and the stock ones as proof that the test itself is right."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import pytest

from shmq.testing import Broker
from tests.interop.peers.cache import REQUIRE_VARIABLE, PeerMissing, is_required
from tests.interop.peers.stock import StockBroker

OURS = "ours"
STOCK_4 = "stock-4"
STOCK_5 = "stock-5"


class Target(NamedTuple):
    """A broker to test: which, and where; addresses are "127.0.0.1:port"."""

    kind: str
    name_server: str
    broker_address: str
    broker_name: str

    @property
    def is_ours(self) -> bool:
        """Whether it is shmq."""
        return self.kind == OURS


TARGETS = (OURS, STOCK_4, STOCK_5)
FILTERING: dict[str, object] = {"enablePropertyFilter": "true"}  # as ours does; off by default there


def missing(reason: PeerMissing) -> NoReturn:
    """Skip the test, or fail it where interop is required."""
    if is_required():
        pytest.fail(f"{REQUIRE_VARIABLE} is set, and a peer is missing: {reason}", pytrace=False)
    pytest.skip(str(reason))


@contextlib.contextmanager
def fresh_stock(version: str) -> Iterator[Target]:
    """Start a stock name server and broker of one line, "4" or "5"."""
    try:
        broker = StockBroker(version, settings=FILTERING)
    except PeerMissing as reason:
        missing(reason)
    with broker:
        yield Target(f"stock-{version}", broker.name_server, broker.broker_address, broker.broker_name)


@contextlib.contextmanager
def start_ours(**settings: Any) -> Iterator[Target]:
    """Start shmq with TCP on free ports."""
    with Broker(tcp=True, **settings) as broker:
        name_server = "" if settings.get("nameservers") else broker.name_server  # with others it embeds none
        yield Target(OURS, name_server, broker.broker_address, broker.name)
