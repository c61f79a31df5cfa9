"""What the tests with real peers share: stock brokers, ours, and clients of every language, each started once.

A peer that cannot be had skips its tests with the reason; SHMQ_REQUIRE_INTEROP=1 makes that a failure.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from tests.interop.peers.cache import REQUIRE_VARIABLE, PeerMissing, is_required
from tests.interop.peers.java import JavaClient
from tests.interop.peers.stock import StockBroker
from tests.interop.target import TARGETS, Target, has_tcp, start_ours

_serial = itertools.count(1)


def _missing(reason: PeerMissing) -> NoReturn:
    if is_required():
        pytest.fail(f"{REQUIRE_VARIABLE} is set, and a peer is missing: {reason}", pytrace=False)
    pytest.skip(str(reason))


@contextlib.contextmanager
def _stock(version: str) -> Iterator[Target]:
    try:
        broker = StockBroker(version)
    except PeerMissing as reason:
        _missing(reason)
    with broker:
        yield Target(f"stock-{version}", broker.name_server, broker.broker_address, broker.broker_name)


@pytest.fixture(scope="session")
def stock_4() -> Iterator[Target]:
    """A stock name server and broker of the 4.9 line."""
    with _stock("4") as target:
        yield target


@pytest.fixture(scope="session")
def stock_5() -> Iterator[Target]:
    """A stock name server and broker of 5.3.3."""
    with _stock("5") as target:
        yield target


@pytest.fixture(scope="session")
def ours() -> Iterator[Target]:
    """`shmq serve` with its embedded name server, over TCP."""
    if not has_tcp():
        pytest.skip("shmq.testing.Broker has no TCP yet")
    with start_ours() as target:
        yield target


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    """Each broker in turn: ours, and the stock ones, which show that the test itself is right."""
    found: Target = request.getfixturevalue(request.param.replace("-", "_"))
    return found


@pytest.fixture(scope="session")
def java() -> Iterator[Callable[[str], JavaClient]]:
    """Call it with "4" or "5" for the Java client of that line; one process a line serves the whole session."""
    running: dict[str, JavaClient] = {}

    def client(version: str) -> JavaClient:
        if version not in running or not running[version].is_alive:
            try:
                running[version] = JavaClient(version)
            except PeerMissing as reason:
                _missing(reason)
        return running[version]

    yield client
    for each in running.values():
        each.close()


@pytest.fixture
def java_client(java: Callable[[str], JavaClient], java_version: str) -> JavaClient:
    """The Java client of the test's parameter `java_version`."""
    return java(java_version)


@pytest.fixture
def mqadmin(java: Callable[[str], JavaClient]) -> Callable[..., str]:
    """Call it as mqadmin("4", "topicList", "-n", …): it returns what the command prints."""
    return lambda version, *words: java(version).mqadmin(*words)


@pytest.fixture
def named() -> Callable[[str], str]:
    """Make a name that nothing else in this session has."""
    return lambda stem: f"{stem}_{os.getpid()}_{next(_serial)}"
