"""ADVANCE_CLOCK moves the clock from where its sender saw it, so what is sent again moves it no farther."""

from dataclasses import replace
from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import ShmqError
from shmq.protocol.codes import Request
from tests.broker.admin_client import Admin
from tests.broker.memory_log import MemoryLog


def admin_of(tables: Any, settings: BrokerSettings) -> Admin:
    return Admin(Broker(tables, settings, now_ms=0, log=MemoryLog(tables)))


def advance(admin: Admin, since: int, milliseconds: int) -> None:
    admin.ask(Request.ADVANCE_CLOCK, **{"from": str(since), "milliseconds": str(milliseconds)})


def test_a_move_that_is_sent_again_moves_the_clock_once(tables: Any, settings: BrokerSettings) -> None:
    admin = admin_of(tables, replace(settings, movable_clock=True))
    began_ms = tables.clock_ms
    for _ in range(2):
        advance(admin, 0, 1000)
    assert tables.clock_ms == began_ms + 1000
    advance(admin, 1000, 500)
    assert tables.clock_ms == began_ms + 1500
    advance(admin, 0, 1000)
    assert tables.clock_ms == began_ms + 1500, "it never goes back"


@pytest.mark.parametrize("movable", [False, True])
def test_the_clock_of_a_broker_that_is_no_tests_is_not_moved(
    tables: Any, settings: BrokerSettings, movable: bool
) -> None:
    admin = admin_of(tables, replace(settings, movable_clock=movable))
    began_ms = tables.clock_ms
    wrong = {} if movable else {"from": "0", "milliseconds": "1000"}
    assert isinstance(admin.fail(Request.ADVANCE_CLOCK, **wrong), ShmqError)
    assert tables.clock_ms == began_ms
