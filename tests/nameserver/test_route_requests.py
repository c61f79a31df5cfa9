"""What clients read of a name server, byte by byte: the Go client has no JSON parser for it."""

from __future__ import annotations

import json

import pytest

from shmq.protocol.codes import Codec, Request, Response
from tests.nameserver.desk import Desk, registration_body, topic_config

STANDARD = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster"}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
    b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
UNQUOTED = STANDARD.replace(b'{"0":', b"{0:").replace(b',"1":', b",1:")


def register_pair(desk: Desk) -> None:
    """A master and its slave."""
    body = registration_body(topic_config("orders"))
    assert desk.register(desk.connect("10.0.0.1"), body).code == Response.SUCCESS
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.2:10911", "haServerAddr": "10.0.0.2:10912"}
    assert desk.register(desk.connect("10.0.0.2"), body, **slave).code == Response.SUCCESS


@pytest.mark.parametrize(
    ("version", "ext", "expected"),
    [
        (317, {}, UNQUOTED),  # Go, Java 4.5.2
        (400, {}, UNQUOTED),
        (400, {"acceptStandardJsonOnly": "false"}, UNQUOTED),
        (0, {"acceptStandardJsonOnly": "true"}, STANDARD),
        (401, {}, STANDARD),  # Java 4.9.4
        (479, {"acceptStandardJsonOnly": "true"}, STANDARD),
    ],
)
def test_a_route_is_written_as_the_client_reads_it(
    desk: Desk, version: int, ext: dict[str, str], expected: bytes
) -> None:
    register_pair(desk)
    assert desk.route(desk.connect(), "orders", version=version, **ext).body == expected


def test_no_route_is_code_17_with_rocketmqs_words(desk: Desk) -> None:
    reply = desk.route(desk.connect(), "nowhere")
    assert (reply.code, reply.body) == (Response.TOPIC_NOT_EXIST, b"")
    assert reply.remark == (
        "No topic route info in name server for the topic: nowhere"
        "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
    )


def test_the_reply_has_the_header_encoding_of_the_request(desk: Desk) -> None:
    ext = {"topic": "t"}
    assert desk.ask(desk.connect(), Request.GET_ROUTEINFO_BY_TOPIC, ext, codec=Codec.BINARY).codec == Codec.BINARY


def test_an_order_configuration_travels_with_the_route(desk: Desk) -> None:
    register_pair(desk)
    admin = desk.connect()
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"}
    desk.ask(admin, Request.PUT_KV_CONFIG, fields)
    assert b'"filterServerTable":{},"orderTopicConf":"broker-a:4","queueDatas"' in desk.route(admin, "orders").body
    desk.ask(admin, Request.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=false\n")
    assert b"orderTopicConf" not in desk.route(admin, "orders").body


def test_the_cluster_info_has_ids_without_quotes_for_every_client(desk: Desk) -> None:
    register_pair(desk)
    assert desk.ask(desk.connect(), Request.GET_BROKER_CLUSTER_INFO).body == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
    )


def test_lists_of_topics(desk: Desk) -> None:
    topics = [topic_config("plain"), topic_config("unit", flags=1), topic_config("sub", flags=2)]
    desk.register(desk.connect("10.0.0.1"), registration_body(*topics, topic_config("both", flags=3)))
    other = {"brokerName": "broker-b", "brokerAddr": "10.0.0.3:10911", "clusterName": "Other"}
    desk.register(desk.connect("10.0.0.3"), registration_body(topic_config("plain"), topic_config("b")), **other)
    asker = desk.connect()

    def listed(code: int, **ext: str) -> list[str]:
        body = json.loads(desk.ask(asker, code, ext).body)
        assert body.keys() == {"topicList"}
        found: list[str] = body["topicList"]
        return found

    assert listed(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["b", "both", "plain", "sub", "unit"]
    assert listed(Request.GET_TOPICS_BY_CLUSTER, cluster="Other") == ["b", "plain"]
    assert listed(Request.GET_TOPICS_BY_CLUSTER, cluster="nowhere") == []
    assert listed(Request.GET_UNIT_TOPIC_LIST) == ["both", "unit"]
    assert listed(Request.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["both", "sub"]
    assert listed(Request.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["sub"]


def test_the_system_topics_are_named_as_clusters_and_brokers(desk: Desk) -> None:
    desk.embed("orders")
    reply = desk.ask(desk.connect(local="10.9.9.9"), Request.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    assert reply.body == b'{"brokerAddr":"10.9.9.9:10911","topicList":["DefaultCluster","default"]}'


def test_a_list_of_an_empty_name_server_is_an_empty_list(desk: Desk) -> None:
    for code in (Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Request.GET_SYSTEM_TOPIC_LIST_FROM_NS):
        assert desk.ask(desk.connect(), code).body == b'{"topicList":[]}'
    assert desk.ask(desk.connect(), Request.GET_BROKER_CLUSTER_INFO).body == (
        b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    )
