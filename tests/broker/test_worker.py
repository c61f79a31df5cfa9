"""Bridges beside the primary one: what they serve themselves, what they relay, and what they know of groups."""

import json
from dataclasses import replace
from typing import Any

import pytest

from shmq.addresses import Address
from shmq.daemon.broker.administration.config import take_tunables
from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.clients.relays import RelayedGroups
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.worker import WorkerLogic
from shmq.daemon.logic.effects import Effect, Forward, Notify, Reply
from shmq.daemon.logic.requests import Peer
from shmq.errors import UsageError
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, FLAG_REPLY, Command

OWNER = 1000
REMOTE, LOCAL = Address("10.0.0.9", 4), Address("127.0.0.1", 10911)
PULL = {
    "consumerGroup": "g",
    "topic": "orders",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subVersion": "5",
}
SEND = dict(zip("abcdefghi", ("p", "orders", "TBW102", "4", "0", "0", "0", "0", ""), strict=True))


class Pair:
    """The logic of a primary bridge and of another one, over the same tables and log."""

    def __init__(self, tables: Any, log: Any, settings: BrokerSettings) -> None:
        self.tables, self.log = tables, log
        tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
        self.queue = tables.topic("orders").queues[0]
        self.primary = Broker(tables, replace(settings, instance={"uid": OWNER}), now_ms=0, log=log)
        self.groups = RelayedGroups()
        self.worker = WorkerLogic(tables, log, settings, self.groups)
        self.worker.connected(1, None, 0, remote=REMOTE, local=LOCAL)

    def process(self, connection_id: int, *, uid: int = OWNER) -> None:
        """A process of the host connects to the control socket of the primary bridge."""
        self.primary.connected(connection_id, Peer(connection_id, uid, uid, 1, 1), 0)

    def ask(self, logic: Any, connection_id: int, code: int, ext: Any = None, body: bytes = b"", **more: Any) -> Any:
        effects = logic.handle(connection_id, Command(code=code, opaque=3, ext=ext or {}, body=body, **more), 0)
        return effects

    def beat(self, connection_id: int, tags: str = "*", group: str = "g", version: int = 5) -> list[Effect]:
        beat = HeartbeatData(f"c{connection_id}", [ConsumerData(group, [SubscriptionData("orders", tags, version)])])
        effects: list[Effect] = self.ask(self.primary, connection_id, Request.HEART_BEAT, body=encode_body(beat))
        return effects


@pytest.fixture
def pair(tables: Any, log: Any, settings: BrokerSettings) -> Pair:
    return Pair(tables, log, settings)


def code_of(effects: Any) -> int:
    (reply,) = effects
    assert isinstance(reply, Reply)
    return reply.command.code


def changes(effects: list[Effect]) -> list[tuple[int, Command]]:
    return [
        (effect.connection_id, effect.command)
        for effect in effects
        if isinstance(effect, Notify) and effect.command.code == Request.GROUP_CHANGED
    ]


def test_sends_and_offsets_need_no_other_bridge(pair: Pair) -> None:
    assert code_of(pair.ask(pair.worker, 1, 310, SEND, b"x")) == Response.SUCCESS
    assert [record.body for _, record, _ in pair.log.records[pair.queue]] == [b"x"]
    (reply,) = pair.ask(pair.worker, 1, Request.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
    assert reply.command.ext == {"offset": "1"}


@pytest.mark.parametrize(
    "code", [Request.HEART_BEAT, Request.LOCK_BATCH_MQ, Request.GET_ALL_TOPIC_CONFIG, Request.UNREGISTER_CLIENT]
)
def test_everything_else_goes_to_the_primary_as_it_is(pair: Pair, code: int) -> None:
    ext = {"clientID": "c"} if code == Request.UNREGISTER_CLIENT else {}
    (forward,) = pair.ask(pair.worker, 1, code, ext, b"body")
    assert isinstance(forward, Forward)
    assert (forward.connection_id, forward.command.code, forward.command.body) == (1, code, b"body")


def test_a_clients_answer_to_the_primary_goes_there_too(pair: Pair) -> None:
    (forward,) = pair.ask(pair.worker, 1, 0, flag=FLAG_REPLY)
    assert isinstance(forward, Forward)


@pytest.mark.parametrize("code", [9999, Request.ATTACH, Request.RELAY, Request.WATCH_GROUPS])
def test_nothing_private_gets_through(pair: Pair, code: int) -> None:
    assert code_of(pair.ask(pair.worker, 1, code)) == Response.REQUEST_CODE_NOT_SUPPORTED
    assert pair.ask(pair.worker, 1, code, flag=FLAG_ONEWAY) == []


def test_a_pull_whose_subscription_is_not_known_yet_goes_to_the_primary(pair: Pair) -> None:
    pair.log.append(pair.tables.topic("orders"), 0, NewRecord(b"x"))
    (forward,) = pair.ask(pair.worker, 1, 11, PULL)
    assert isinstance(forward, Forward)
    pair.process(7)
    (reply, *_) = pair.ask(pair.primary, 7, Request.WATCH_GROUPS)
    pair.groups.replace(reply.command.body)
    pair.process(8)
    pair.ask(pair.primary, 8, Request.RELAY, {"remote": "10.0.0.9:5", "local": "127.0.0.1:10911"}, flag=FLAG_ONEWAY)
    ((connection_id, notice),) = changes(pair.beat(8))
    assert connection_id == 7 and notice.is_oneway
    pair.groups.update(notice.body)
    assert code_of(pair.ask(pair.worker, 1, 11, PULL)) == Response.SUCCESS
    (forward,) = pair.ask(pair.worker, 1, 11, PULL | {"subVersion": "6"})  # the newer heartbeat is on its way
    assert isinstance(forward, Forward)


def test_a_held_pull_is_woken_by_what_this_bridge_and_others_store(pair: Pair) -> None:
    suspended = PULL | {"sysFlag": "6", "subscription": "*"}
    assert pair.ask(pair.worker, 1, 11, suspended) == []
    assert pair.worker.wanted.queues == {pair.queue: 0}
    pair.worker.connected(2, None, 0, remote=REMOTE, local=LOCAL)
    effects = pair.ask(pair.worker, 2, 310, SEND, b"x")
    assert [effect.connection_id for effect in effects] == [2, 1]
    assert pair.ask(pair.worker, 1, 11, suspended | {"queueOffset": "1"}) == []
    pair.log.append(pair.tables.topic("orders"), 0, NewRecord(b"y"))
    assert [effect.connection_id for effect in pair.worker.arrived([pair.queue], 0)] == [1]
    assert pair.worker.wanted.is_nothing


def test_a_relayed_connection_is_a_tcp_client_with_that_clients_address(pair: Pair) -> None:
    pair.process(8)
    ext = {"remote": "10.0.0.9:5", "local": "127.0.0.1:10911"}
    assert pair.ask(pair.primary, 8, Request.RELAY, ext, flag=FLAG_ONEWAY) == []
    assert pair.primary.is_attached(8)
    assert code_of(pair.ask(pair.primary, 8, Request.STATUS)) == Response.REQUEST_CODE_NOT_SUPPORTED
    (reply,) = pair.ask(pair.primary, 8, 310, SEND | {"e": "99"})
    assert "Producer: 10.0.0.9:5" in str(reply.command.remark)


def test_the_addresses_of_an_ipv6_client_are_what_its_bridge_saw(pair: Pair) -> None:
    pair.process(8)
    seen = Address("fe80::1%eth0", 5)
    pair.ask(pair.primary, 8, Request.RELAY, {"remote": str(seen), "local": "[::1]:10911"}, flag=FLAG_ONEWAY)
    (reply,) = pair.ask(pair.primary, 8, 310, SEND | {"e": "99"})
    assert f"Producer: {seen}" in str(reply.command.remark)
    (reply,) = pair.ask(pair.primary, 8, 310, SEND)
    assert reply.command.ext["msgId"].startswith("00000000000000000000000000000001")


@pytest.mark.parametrize(
    "ext",
    [{}, {"remote": "x", "local": "127.0.0.1:1"}, {"remote": ":1", "local": "a:1"}, {"remote": "a:b", "local": ""}],
)
def test_an_address_that_is_none_is_refused(pair: Pair, ext: dict[str, str]) -> None:
    pair.process(8)
    assert code_of(pair.ask(pair.primary, 8, Request.RELAY, ext)) == Response.SYSTEM_ERROR
    assert not pair.primary.is_attached(8)


@pytest.mark.parametrize("code", [Request.RELAY, Request.WATCH_GROUPS])
def test_only_the_brokers_own_processes_may_relay(pair: Pair, code: int) -> None:
    pair.process(9, uid=OWNER + 1)
    reply = pair.ask(pair.primary, 9, code, {"remote": "10.0.0.9:5", "local": "127.0.0.1:1"})
    assert code_of(reply) == Response.NO_PERMISSION


def settings_told(effects: list[Effect]) -> list[tuple[int, Command]]:
    return [
        (effect.connection_id, effect.command)
        for effect in effects
        if isinstance(effect, Notify) and effect.command.code == Request.SETTINGS_CHANGED
    ]


def test_a_relayed_client_without_an_account_changes_no_settings(pair: Pair) -> None:
    pair.process(8)
    pair.ask(pair.primary, 8, Request.RELAY, {"remote": "10.0.0.9:5", "local": "127.0.0.1:10911"}, flag=FLAG_ONEWAY)
    reply = pair.ask(pair.primary, 8, Request.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=2048")
    assert code_of(reply) == Response.NO_PERMISSION


def test_changed_settings_reach_every_bridge_and_those_that_come_later(pair: Pair, settings: BrokerSettings) -> None:
    pair.process(7)
    pair.ask(pair.primary, 7, Request.WATCH_GROUPS)
    pair.process(8)
    effects = pair.ask(pair.primary, 8, Request.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=2048")
    ((connection_id, notice),) = settings_told(effects)
    assert connection_id == 7 and notice.is_oneway
    take_tunables(settings, notice.ext)
    assert code_of(pair.ask(pair.worker, 1, 310, SEND, bytes(2049))) == Response.MESSAGE_ILLEGAL
    pair.process(9)
    (reply, *_) = pair.ask(pair.primary, 9, Request.WATCH_GROUPS)
    assert reply.command.ext["maxMessageSize"] == "2048"


def test_settings_of_another_bridge_are_taken_as_a_whole_or_not_at_all(settings: BrokerSettings) -> None:
    with pytest.raises(UsageError, match="maxMessageSize"):
        take_tunables(settings, {"autoCreateTopicEnable": "false", "maxMessageSize": "5"})
    assert settings.auto_create
    take_tunables(settings, {"autoCreateTopicEnable": "false", "brokerName": "x"})
    assert not settings.auto_create and settings.broker_name != "x"


def test_groups_are_reported_when_they_change_and_when_they_end(pair: Pair) -> None:
    pair.process(7)
    pair.primary.connected(8, None, 0, remote=REMOTE, local=LOCAL)
    pair.ask(pair.primary, 7, Request.WATCH_GROUPS)
    ((_, notice),) = changes(pair.beat(8, "A || B"))
    pair.groups.update(notice.body)
    group = pair.groups.consumer_group("g")
    assert group is not None and group.model == "CLUSTERING"
    assert (group.table["orders"].subString, group.table["orders"].subVersion) == ("A || B", 5)
    ((_, notice),) = changes(pair.primary.disconnected(8, 0))
    pair.groups.update(notice.body)
    assert pair.groups.consumer_group("g") is None
    pair.primary.disconnected(7, 0)
    pair.primary.connected(9, None, 0, remote=REMOTE, local=LOCAL)
    assert changes(pair.beat(9)) == []


def test_a_new_link_begins_with_all_groups_and_forgets_the_others(pair: Pair) -> None:
    gone = {"groups": [{"name": "gone", "model": "CLUSTERING", "table": {}}]}
    pair.groups.replace(json.dumps(gone).encode())
    pair.primary.connected(8, None, 0, remote=REMOTE, local=LOCAL)
    pair.beat(8)
    pair.process(7)
    (reply, *_) = pair.ask(pair.primary, 7, Request.WATCH_GROUPS)
    pair.groups.replace(reply.command.body)
    assert pair.groups.consumer_group("gone") is None and pair.groups.consumer_group("g") is not None


def test_what_a_gone_connection_waited_for_is_forgotten(pair: Pair) -> None:
    assert pair.ask(pair.worker, 1, 11, PULL | {"sysFlag": "6", "subscription": "*"}) == []
    pair.worker.disconnected(1, 0)
    assert pair.worker.wanted.is_nothing and pair.worker.disconnected(1, 0) == []
    assert pair.ask(pair.worker, 1, 310, SEND) == []
