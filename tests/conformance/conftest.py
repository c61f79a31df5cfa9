"""One suite over both transports: every test here runs through shared memory and through TCP, at the same broker.

A rule that holds on one way only does not belong here.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, eventually

TRANSPORTS = ("shm", "tcp")
QUEUES = 4
PATIENCE = DEADLINE_SECONDS

Named = Callable[[str], str]
_serial = itertools.count(1)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The broker of all tests of this folder."""
    with Broker(tcp=True, timeout=90.0) as broker:
        yield broker


@pytest.fixture(autouse=True)
def _own_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What broadcast consumers keep goes with the test."""
    monkeypatch.setenv("SHMQ_OFFSETS_DIR", str(tmp_path / "offsets"))


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Which way the test's connections go."""
    return str(request.param)


def url_of(broker: Broker, transport: str) -> str:
    """Return what to give to `shmq.connect()`."""
    return broker.url if transport == "shm" else f"rocketmq://{broker.name_server}"


@pytest.fixture
def url(broker: Broker, transport: str) -> str:
    """What to give to `shmq.connect()`."""
    return url_of(broker, transport)


@pytest.fixture
def connect(url: str) -> Iterator[Callable[..., shmq.Connection]]:
    """Make connections of the test's transport; they are closed behind it."""
    made: list[shmq.Connection] = []

    def make(**arguments: Any) -> shmq.Connection:
        made.append(shmq.connect(url, **{"timeout": 10.0, **arguments}))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


@pytest.fixture
def mq(connect: Callable[..., shmq.Connection]) -> shmq.Connection:
    """A connection of the test's transport."""
    return connect()


@pytest.fixture
def named() -> Named:
    """Give names that no other test has."""
    number = next(_serial)
    return lambda name: f"{name}-{number}"


@pytest.fixture
def topic(mq: shmq.Connection, named: Named) -> str:
    """A topic with four queues."""
    name = named("orders")
    mq.admin.create_topic(name, queues=QUEUES)
    return name


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Any]:
    """Wait until a condition is true, and return its value; fail when it is not in time."""
    return eventually
