"""Bodies of the name service in both forms.

Captured from a stock 4.9.7 name server with a stock 4.9.7 broker in it, over a bare socket: the answers to 105 for
TBW102 with request version 409, then 400, and to 106.
"""

from __future__ import annotations

import pytest

from shmq.errors import ProtocolError
from shmq.protocol.body import DataVersion, TopicConfig
from shmq.protocol.command import Command
from shmq.protocol.route import (
    BrokerData,
    BrokerVersion,
    ClusterInfo,
    QueueData,
    RegisteredTopics,
    TopicRoute,
    decode_route,
    encode_registration,
    encode_route,
    encode_standard,
    encode_unquoted,
    wants_standard_json,
)

ROUTE = TopicRoute(
    [BrokerData("broker-a", {0: "127.0.0.1:43997"}, "DefaultCluster")], [QueueData("broker-a", 8, 8, 7, 0)]
)
STANDARD = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:43997"},"brokerName":"broker-a","cluster":"DefaultCluster"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":7,"readQueueNums":8,"topicSysFlag":0,'
    b'"writeQueueNums":8}]}'
)
UNQUOTED = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:43997"},"brokerName":"broker-a","cluster":"DefaultCluster"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":7,"readQueueNums":8,"topicSysFlag":0,'
    b'"writeQueueNums":8}]}'
)
CLUSTERS = (
    b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:43997"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster"}},"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
)


def test_a_route_has_the_bytes_of_a_stock_name_server() -> None:
    assert encode_route(ROUTE, standard=True) == STANDARD
    assert encode_route(ROUTE, standard=False) == UNQUOTED


def test_a_cluster_info_has_the_bytes_of_a_stock_name_server() -> None:
    info = ClusterInfo({"broker-a": ROUTE.brokerDatas[0]}, {"DefaultCluster": ["broker-a"]})
    assert encode_unquoted(info) == CLUSTERS


def test_both_forms_are_read() -> None:
    assert decode_route(STANDARD) == decode_route(UNQUOTED) == ROUTE


def test_a_route_of_rocketmq_5_is_read() -> None:
    more = STANDARD.replace(b'"brokerAddrs"', b'"enableActingMaster":false,"zoneName":"z","brokerAddrs"')
    assert decode_route(more[:-1] + b',"topicQueueMappingByBroker":{}}') == ROUTE


def test_the_standard_form_is_ascii_and_neither_has_whitespace() -> None:
    route = TopicRoute(ROUTE.brokerDatas, ROUTE.queueDatas, orderTopicConf="ü:4")
    assert b'"orderTopicConf":"\\u00fc:4"' in encode_route(route, standard=True)
    for standard in (True, False):
        assert not any(byte in b" \t\r\n" for byte in encode_route(route, standard=standard))


def test_the_ids_of_a_cluster_info_are_in_order() -> None:
    info = ClusterInfo({"b": BrokerData("b", {10: "h:3", 2: "h:2", 0: "h:1"}, "C")}, {"C": ["b"]})
    assert encode_unquoted(info) == (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1",2:"h:2",10:"h:3"},"brokerName":"b","cluster":"C"}},'
        b'"clusterAddrTable":{"C":["b"]}}'
    )
    assert b'"0":"h:1"' in encode_standard(info)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"brokerDatas":1}', b'{"queueDatas":[{}]}'])
def test_what_is_no_route_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_route(body)


def test_the_reader_decides_the_form() -> None:
    for version, asked, expected in ((400, None, False), (401, None, True), (0, "TRUE", True), (0, "1", False)):
        ext = {"acceptStandardJsonOnly": asked} if asked is not None else {}
        assert wants_standard_json(Command(105, ext=ext, version=version)) is expected


def test_a_registration_has_the_form_of_a_stock_brokers() -> None:
    topics = RegisteredTopics({"T": TopicConfig("T", 4, 4)}, BrokerVersion(counter=1, timestamp=1700000000000))
    assert encode_registration(topics) == (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,"timestamp":1700000000000},'
        b'"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"T","topicSysFlag":0,"writeQueueNums":4}}}}'
    )


def test_a_version_of_rocketmq_5_has_one_number_more() -> None:
    assert issubclass(BrokerVersion, DataVersion)
    assert encode_standard(BrokerVersion(1, 2, stateVersion=3)) == b'{"counter":1,"stateVersion":3,"timestamp":2}'
    assert encode_standard(BrokerVersion(1, 2)) == b'{"counter":1,"timestamp":2}'
