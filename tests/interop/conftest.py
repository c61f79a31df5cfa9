"""What the tests with real peers share: stock brokers, ours, and clients of every language, each started once.

A peer that cannot be had skips its tests with the reason; SHMQ_REQUIRE_INTEROP=1 makes that a failure.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn

import pytest

from tests.interop.coverage import record
from tests.interop.pair import Pair
from tests.interop.peers.cache import REQUIRE_VARIABLE, PeerMissing, is_required
from tests.interop.peers.java import LineClient
from tests.interop.peers.programs import CLIENTS
from tests.interop.peers.stock import StockBroker
from tests.interop.target import TARGETS, Target, start_ours

_serial = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(*features): rows of docs/compatibility.md that a test stands for")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.failed or (report.when == "call" and report.passed):
        record(item, report.passed)


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
    with start_ours() as target:
        yield target


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    """Each broker in turn: ours, and the stock ones, which show that the test itself is right."""
    found: Target = request.getfixturevalue(request.param.replace("-", "_"))
    return found


@pytest.fixture(scope="session")
def client_of() -> Iterator[Callable[[str], LineClient]]:
    """Call it with "java-4", "go", …: one process of each serves the whole session, replaced when it died."""
    running: dict[str, LineClient] = {}

    def client(name: str) -> LineClient:
        if name not in running or not running[name].is_alive:
            try:
                running[name] = CLIENTS[name]()
            except PeerMissing as reason:
                _missing(reason)
        return running[name]

    yield client
    for each in running.values():
        each.close()


@pytest.fixture
def pair(request: pytest.FixtureRequest, client_of: Callable[[str], LineClient], named: Callable[[str], str]) -> Pair:
    """The client and the broker of the parameter, "java-4@ours"."""
    client, broker = request.param.split("@")
    return Pair(client, client_of(client), request.getfixturevalue(broker.replace("-", "_")), named)


@pytest.fixture
def mqadmin(client_of: Callable[[str], LineClient]) -> Callable[..., str]:
    """Call it as mqadmin("4", "topicList", "-n", …): it returns what the command prints."""
    return lambda version, *words: str(client_of(f"java-{version}").do("mqadmin", words=list(words)))


@pytest.fixture
def named() -> Callable[[str], str]:
    """Make a name that nothing else in this session has."""
    return lambda stem: f"{stem}_{os.getpid()}_{next(_serial)}"
