"""Subscriptions that cannot be served: what is said of them in the log and in the roster."""

from dataclasses import replace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Reply, Report
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from tests.broker.memory_log import MemoryLog


@pytest.fixture
def told(tables: Any, settings: BrokerSettings) -> Broker:
    broker = Broker(tables, replace(settings, serves_tcp=True), now_ms=0, log=MemoryLog(tables))
    broker.connected(1, None, 0, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911))
    broker.tick(0)
    return broker


def beat_of(broker: Broker, expression: str, kind: str = "TAG") -> tuple[list[str], int]:
    """Say what a TCP client subscribes to; return the lines for the log, and the answer's code."""
    entry = SubscriptionData("orders", expression, 1, expressionType=kind)
    body = encode_body(HeartbeatData("c@1", [ConsumerData("g", [entry])]))
    effects = broker.handle(1, Command(code=Request.HEART_BEAT, body=body), 0)
    reports = [effect.text for effect in effects if isinstance(effect, Report)]
    (code,) = [effect.command.code for effect in effects if isinstance(effect, Reply)]
    return reports, code


@pytest.mark.parametrize(
    ("expression", "kind", "is_taken", "reason"),
    [
        ("x" * 32_768, "TAG", False, "32768 characters; 32767 are allowed"),
        ("a = 'x'" + " OR a = 'y'" * 1000, "SQL92", False, "8192 are allowed"),
        ("a = ", "SQL92", True, "its subscription to orders: "),
        ("||", "TAG", True, "names no tag"),
        ("x", "LUA", True, "does not support consumer to filter message by LUA"),
    ],
)
def test_what_makes_a_subscription_unusable_is_logged_once_and_shown(
    told: Broker, expression: str, kind: str, is_taken: bool, reason: str
) -> None:
    (line,), code = beat_of(told, expression, kind)
    assert 'group "g" gets nothing for its member c@1 (10.0.0.9:4)' in line and reason in line
    assert (code == Response.SUCCESS) is is_taken
    assert beat_of(told, expression, kind)[0] == []
    roster = told.roster(1)
    assert roster is not None
    (refused,) = roster.refused
    assert (refused.group, refused.client_id, refused.address) == (
        "g",
        "c@1",
        "10.0.0.9:4",
    ) and reason in refused.reason
    assert beat_of(told, "x" * 32_767) == ([], Response.SUCCESS)
    roster = told.roster(2)
    assert roster is not None and roster.refused == ()
