"""What brokers ask: register, still alive, who else, goodbye, and nothing in another's name."""

from __future__ import annotations

import json

import pytest

from shmq.daemon.logic.effects import Report
from shmq.daemon.nameserver.settings import NameServerSettings
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, Command
from tests.nameserver.desk import Desk, registration_body, topic_config

MASTER = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "DefaultCluster", "brokerId": "0"}
SLAVE = MASTER | {"brokerAddr": "10.0.0.2:10911", "haServerAddr": "10.0.0.2:10912", "brokerId": "1"}
ORDERS = registration_body(topic_config("orders"))
ORDER_CONF = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"}


def has_route(desk: Desk, topic: str) -> bool:
    return desk.route(desk.connect(), topic).code == Response.SUCCESS


def test_a_master_gets_nothing_but_the_order_configuration(desk: Desk) -> None:
    broker = desk.connect("10.0.0.1")
    reply = desk.register(broker, ORDERS)
    assert (reply.code, reply.ext, reply.body) == (Response.SUCCESS, {}, b"")
    desk.ask(broker, Request.PUT_KV_CONFIG, ORDER_CONF)
    assert desk.register(broker, ORDERS).body == b'{"table":{"orders":"broker-a:4"}}'
    desk.ask(broker, Request.UPDATE_NAMESRV_CONFIG, body=b"returnOrderTopicConfigToBroker=false")
    assert desk.register(broker, ORDERS).body == b""


def test_a_slave_gets_its_master_as_soon_as_there_is_one(desk: Desk) -> None:
    slave = desk.connect("10.0.0.2")
    assert desk.register(slave, ORDERS, **SLAVE).ext == {}
    desk.register(desk.connect("10.0.0.1"), ORDERS)
    assert desk.register(slave, ORDERS, **SLAVE).ext == {
        "haServerAddr": "10.0.0.1:10912",
        "masterAddr": "10.0.0.1:10911",
    }


def test_a_slave_of_the_embedded_broker_is_sent_where_it_reached_us(desk: Desk) -> None:
    desk.embed("orders", name="broker-a")
    reply = desk.register(desk.connect("10.0.0.2", local="10.0.0.9"), b"", **SLAVE)
    assert reply.ext == {"masterAddr": "10.0.0.9:10911"}


def test_no_client_speaks_for_the_embedded_broker(desk: Desk) -> None:
    desk.embed("orders", name="broker-a", address="10.0.0.1:10911")
    asker = desk.connect("127.0.0.1")
    for fields in (MASTER, MASTER | {"brokerId": "1"}):
        reply = desk.register(asker, ORDERS, **fields)
        assert reply.code == Response.NO_PERMISSION and "embedded" in (reply.remark or "")
    assert desk.ask(asker, Request.UNREGISTER_BROKER, MASTER).code == Response.NO_PERMISSION
    body = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}'
    assert desk.ask(asker, Request.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t"}, body).code == Response.NO_PERMISSION
    assert has_route(desk, "orders") and not has_route(desk, "t")


@pytest.mark.parametrize(("host", "is_taken"), [("10.0.0.1", True), ("127.0.0.1", True), ("10.0.0.66", False)])
def test_only_its_host_and_ours_unregister_a_broker(desk: Desk, host: str, is_taken: bool) -> None:
    desk.register(desk.connect("10.0.0.1"), ORDERS)
    reply = desk.ask(desk.connect(host), Request.UNREGISTER_BROKER, MASTER)
    assert (reply.code == Response.SUCCESS, not has_route(desk, "orders")) == (is_taken, is_taken)


def test_unregistering_who_is_unknown_succeeds(desk: Desk) -> None:
    assert desk.ask(desk.connect(), Request.UNREGISTER_BROKER, MASTER).code == Response.SUCCESS


def test_a_registration_may_be_oneway(desk: Desk) -> None:
    broker = desk.connect("10.0.0.1")
    ext = {**MASTER, "haServerAddr": "10.0.0.1:10912"}
    effects = desk.server.handle(broker, Command(103, flag=FLAG_ONEWAY, ext=ext, body=ORDERS), desk.now_ms)
    assert [type(effect) for effect in effects] == [Report] and has_route(desk, "orders")


def test_a_broker_is_reported_when_it_is_new(desk: Desk) -> None:
    broker = desk.connect("10.0.0.1")
    ext = {**MASTER, "haServerAddr": "10.0.0.1:10912"}
    body = registration_body(topic_config("orders"), topic_config("bad name"))
    for expected in (1, 0):
        effects = desk.server.handle(broker, Command(103, ext=ext, body=body), desk.now_ms)
        reports = [effect.text for effect in effects if isinstance(effect, Report)]
        assert len(reports) == expected and all("1 topics left out" in text for text in reports)


def test_a_version_is_compared_and_an_equal_one_counts_as_a_sign_of_life(desk: Desk) -> None:
    broker = desk.connect("10.0.0.1")
    known, other = (b'{"counter":%d,"timestamp":1700000000000}' % counter for counter in (1, 2))
    unknown = desk.ask(broker, Request.QUERY_DATA_VERSION, MASTER, known)
    assert (unknown.ext, unknown.body) == ({"changed": "true"}, b"")
    desk.register(broker, ORDERS)
    for asked, changed in ((known, "false"), (other, "true")):
        reply = desk.ask(broker, Request.QUERY_DATA_VERSION, MASTER, asked)
        assert (reply.ext, reply.body) == ({"changed": changed}, known)
    for asked, survives in ((known, True), (other, False)):
        desk.now_ms += 100_000
        desk.ask(broker, Request.QUERY_DATA_VERSION, MASTER, asked)
        desk.server.tick(desk.now_ms)
        desk.now_ms += 30_000
        desk.server.tick(desk.now_ms)
        assert has_route(desk, "orders") == survives


def test_a_heartbeat_renews_its_own_broker_only(desk: Desk) -> None:
    broker, stranger = desk.connect("10.0.0.1"), desk.connect("10.0.0.66")
    desk.register(broker, ORDERS)
    desk.now_ms += 100_000
    desk.ask(broker, Request.BROKER_HEARTBEAT, MASTER)
    desk.now_ms += 100_000
    desk.ask(stranger, Request.BROKER_HEARTBEAT, MASTER)
    assert desk.server.tick(desk.now_ms) == []
    desk.now_ms += 20_001
    assert desk.server.tick(desk.now_ms) == [
        Report("broker broker-a (0, 10.0.0.1:10911) of DefaultCluster is gone: it was silent")
    ]
    assert desk.ask(broker, Request.BROKER_HEARTBEAT, MASTER).code == Response.SUCCESS


def test_a_scan_happens_every_ten_seconds(desk: Desk) -> None:
    desk.register(desk.connect("10.0.0.1"), ORDERS)
    desk.server.tick(desk.now_ms + 119_999)
    assert desk.server.tick(desk.now_ms + 129_998) == []
    assert len(desk.server.tick(desk.now_ms + 129_999)) == 1


def test_one_topic_may_be_registered_by_itself(desk: Desk) -> None:
    broker = desk.connect("10.0.0.1")
    queue = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 3}
    stray = queue | {"brokerName": "absent"}
    body = json.dumps({"queueDatas": [queue, stray]}).encode()
    ask = (Request.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t"}, body)
    assert desk.ask(broker, *ask).code == Response.SUCCESS and not has_route(desk, "t")
    desk.register(broker, ORDERS)
    assert desk.ask(desk.connect("10.0.0.66"), *ask).code == Response.NO_PERMISSION
    assert desk.ask(broker, *ask).code == Response.SUCCESS
    assert json.loads(desk.route(broker, "t").body)["queueDatas"] == [queue]


def test_the_members_of_a_broker_are_listed(desk: Desk) -> None:
    desk.register(desk.connect("10.0.0.1"), ORDERS)
    desk.register(desk.connect("10.0.0.2"), ORDERS, **SLAVE)
    asker = desk.connect()
    fields = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
    assert desk.ask(asker, Request.GET_BROKER_MEMBER_GROUP, fields).body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"}}'
    )
    unknown = desk.ask(asker, Request.GET_BROKER_MEMBER_GROUP, fields | {"brokerName": "absent"})
    assert json.loads(unknown.body)["brokerMemberGroup"]["brokerAddrs"] == {}


@pytest.mark.parametrize(
    ("host", "address", "is_taken"),
    [
        ("10.0.0.1", "10.0.0.1:10911", True),
        ("10.0.0.1", "10.0.0.2:10911", False),
        ("10.0.0.1", "mq.example:10911", False),
        ("fd00::1", "[fd00::1]:10911", True),
        ("127.0.0.1", "172.17.0.2:10911", True),  # a broker of this host names one of its own addresses
    ],
)
def test_addresses_have_to_match_only_where_that_is_wanted(host: str, address: str, is_taken: bool) -> None:
    strict, usual = Desk(NameServerSettings(match_addresses=True)), Desk()
    assert usual.register(usual.connect(host), ORDERS, brokerAddr=address).code == Response.SUCCESS
    reply = strict.register(strict.connect(host), ORDERS, brokerAddr=address)
    assert reply.code == (Response.SUCCESS if is_taken else Response.NO_PERMISSION)


def test_a_broken_body_changes_nothing(desk: Desk) -> None:
    broker = desk.connect("10.0.0.1")
    for body, more in ((b"{", {}), (b"\x78\x9c", {"compressed": "true"}), (ORDERS, {"bodyCrc32": "1"})):
        assert desk.register(broker, body, **more).code == Response.SYSTEM_ERROR
    assert desk.ask(broker, Request.GET_BROKER_CLUSTER_INFO).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


def test_full_tables_refuse_more_and_keep_what_they_have() -> None:
    desk = Desk(NameServerSettings(topics_max=2, brokers_max=2, members_max=1))
    broker = desk.connect("10.0.0.1")
    desk.register(broker, ORDERS)
    more = registration_body(*map(topic_config, ("a", "b")), counter=2)
    assert "3 topics" not in (desk.register(broker, more).remark or "") and not has_route(desk, "a")
    assert desk.register(desk.connect("10.0.0.2"), ORDERS, **SLAVE).code == Response.SYSTEM_ERROR
    for name, code in (("b", Response.SUCCESS), ("c", Response.SYSTEM_ERROR)):
        assert desk.register(broker, b"", brokerName=name, brokerAddr=f"{name}:1").code == code
    assert has_route(desk, "orders")
