"""One broker for the tests of commands, whose clock is never moved: they compare its times with the wall clock, and
other tests send the session's broker hours ahead."""

import itertools
import os
from collections.abc import Iterator

import pytest

from shmq.testing import Broker, SharedBroker

_serial = itertools.count()


@pytest.fixture(scope="session")
def broker_in_time() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def shmq_shared_broker(broker_in_time: Broker) -> SharedBroker:
    """That broker, with names of this test's own."""
    return SharedBroker(broker_in_time, f"{os.getpid()}-{next(_serial)}")
