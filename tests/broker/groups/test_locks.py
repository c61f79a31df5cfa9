"""Locks on queues for ordered consumption: one holder, renewal, expiry, and local owners first."""

import json
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.groups.locks import LOCK_LIFE_MS
from shmq.daemon.broker.settings import BrokerSettings
from shmq.protocol.codes import Request
from shmq.protocol.command import FLAG_ONEWAY, Command


class Group:
    """One connection that speaks for any client of group `g`."""

    def __init__(self, tables: Any, log: Any, settings: BrokerSettings) -> None:
        self.tables = tables
        self.broker = Broker(tables, settings, now_ms=0, log=log)
        self.broker.connected(1, None, 0, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911))
        tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
        tables.group_put("g")

    def ask(self, code: int, client: str, *queue_ids: int, now_ms: int = 0, **changes: Any) -> Command:
        queues = [{"brokerName": "default", "queueId": queue, "topic": "orders"} for queue in queue_ids]
        body = {"clientId": client, "consumerGroup": "g", "mqSet": queues} | changes
        (effect,) = self.broker.handle(1, Command(code=code, body=json.dumps(body).encode()), now_ms)
        return effect.command  # type: ignore[union-attr]

    def lock(self, client: str, *queue_ids: int, **more: Any) -> list[int]:
        reply = self.ask(Request.LOCK_BATCH_MQ, client, *queue_ids, **more)
        assert reply.code == 0
        return [queue["queueId"] for queue in json.loads(reply.body)["lockOKMQSet"]]

    def unlock(self, client: str, *queue_ids: int, **more: Any) -> None:
        assert self.ask(Request.UNLOCK_BATCH_MQ, client, *queue_ids, **more).code == 0


@pytest.fixture
def group(tables: Any, log: Any, settings: BrokerSettings) -> Group:
    return Group(tables, log, settings)


def test_a_queue_has_one_holder_who_may_ask_again(group: Group) -> None:
    assert group.lock("a", 0) == [0]
    assert group.lock("b", 0, 1) == [1]
    assert group.lock("a", 0, 1) == [0]


def test_a_lock_ends_by_its_holder_or_its_age(group: Group) -> None:
    group.lock("a", 0, 1)
    group.unlock("b", 0)
    assert group.lock("b", 0) == []
    group.unlock("a", 0)
    assert group.lock("b", 0) == [0]
    assert group.lock("b", 1, now_ms=LOCK_LIFE_MS) == []
    assert group.lock("b", 1, now_ms=LOCK_LIFE_MS + 1) == [1]


def test_renewal_counts_from_when_it_was_asked_for(group: Group) -> None:
    group.lock("a", 0)
    group.lock("a", 0, now_ms=50_000)
    assert group.lock("b", 0, now_ms=LOCK_LIFE_MS + 1) == []
    assert group.lock("b", 0, now_ms=LOCK_LIFE_MS + 50_001) == [0]


def test_a_queue_that_a_local_member_owns_is_not_given_away(group: Group) -> None:
    slot = group.tables.offset_put(group.tables.group("g"), group.tables.topic("orders").queues[0])
    group.tables.owned.add(slot)
    assert group.lock("a", 0, 1) == [1]
    group.tables.owned.clear()
    assert group.lock("a", 0) == [0]


def test_a_broker_that_is_started_again_knows_who_holds_what(group: Group, log: Any, settings: BrokerSettings) -> None:
    group.lock("a", 0, 1)
    group.broker = Broker(group.tables, settings, now_ms=1000, log=log)
    group.broker.connected(1, None, 1000, remote=Address("10.0.0.9", 4), local=Address("127.0.0.1", 10911))
    assert group.lock("b", 0, 1, now_ms=1000) == []
    assert group.lock("a", 0, 1, now_ms=1000) == [0, 1]


def test_only_what_exists_can_be_locked(group: Group) -> None:
    assert group.lock("a", 0, 2, 99) == [0]
    assert group.lock("a", 0, consumerGroup="absent") == []
    assert group.ask(Request.LOCK_BATCH_MQ, "", 0).code == 1


def test_unlocking_may_be_oneway(group: Group) -> None:
    group.lock("a", 0)
    body = {"clientId": "a", "consumerGroup": "g", "mqSet": [{"brokerName": "", "queueId": 0, "topic": "orders"}]}
    command = Command(code=Request.UNLOCK_BATCH_MQ, flag=FLAG_ONEWAY, body=json.dumps(body).encode())
    assert group.broker.handle(1, command, 0) == []
    assert group.lock("b", 0) == [0]
