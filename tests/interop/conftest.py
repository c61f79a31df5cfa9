"""What the tests with real peers share: stock brokers, ours, and clients of every language, each started once.

A peer that cannot be had skips its tests with the reason; SHMQ_REQUIRE_INTEROP=1 makes that a failure.

A test that runs a stock client against a stock broker says nothing about shmq: it proves that the test itself expects
the right thing. The peers' versions are fixed, so `--all` leaves these proofs out too, and SHMQ_INTEROP_LONG=1 adds
them; run them whenever such a test is written or changed.

Every test here is one of a peer: the suite `peers` (tests/suites.py).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.interop.coverage import record
from tests.interop.pair import Pair
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.java import JavaClient, LineClient
from tests.interop.peers.programs import CLIENTS
from tests.interop.target import STOCK_4, STOCK_5, TARGETS, Target, fresh_stock, missing, start_ours

LONG = os.environ.get("SHMQ_INTEROP_LONG", "") not in ("", "0")
_serial = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "covers(*features): rows of docs/compatibility.md that a test stands for")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Try each client on the stock broker of its own line only, and that only where it is asked for."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.peer)
    chosen = [item for item in items if not _is_left_out(getattr(item, "callspec", None))]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = sorted(chosen, key=_comes_last)


def _comes_last(item: pytest.Item) -> bool:
    """The document is compared with what the other tests found, so they run first."""
    return item.path.name == "test_compatibility.py"


def _is_left_out(callspec: Any) -> bool:
    parameters = callspec.params if callspec is not None else {}
    broker = parameters.get("target")
    if "java_version" in parameters:
        is_crossed = (broker, parameters["java_version"]) in {(STOCK_4, "5"), (STOCK_5, "4")}
        return is_crossed or (broker in (STOCK_4, STOCK_5) and not LONG)
    return parameters.get("pair", "").endswith((f"@{STOCK_4}", f"@{STOCK_5}")) and not LONG


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
    report = (yield).get_result()
    if report.failed or (report.when == "call" and report.passed):
        record(item, report.passed)


@pytest.fixture(scope="session")
def stock_4() -> Iterator[Target]:
    """A stock name server and broker of the 4.9 line."""
    with fresh_stock("4") as target:
        yield target


@pytest.fixture(scope="session")
def stock_5() -> Iterator[Target]:
    """A stock name server and broker of 5.3.3."""
    with fresh_stock("5") as target:
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
                missing(reason)
        return running[name]

    yield client
    for each in running.values():
        each.close()


@pytest.fixture(scope="session")
def java(client_of: Callable[[str], LineClient]) -> Callable[[str], JavaClient]:
    """Call it with "4" or "5" for the Java client of that line."""
    return lambda version: cast(JavaClient, client_of(f"java-{version}"))


@pytest.fixture
def java_client(java: Callable[[str], JavaClient], java_version: str) -> JavaClient:
    """The Java client of the test's parameter `java_version`."""
    return java(java_version)


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
