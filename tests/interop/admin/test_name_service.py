"""Our name server and stock brokers, stock name servers and our broker, and both name servers side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.deadline import eventually
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.java import JavaClient
from tests.interop.peers.stock import StockBroker
from tests.interop.peers.wire import Frame, Wire, has_route
from tests.interop.target import Target, missing, start_ours
from tests.nameserver.live_nameserver import name_server

REGISTER_TIMEOUT = 40.0  # a stock broker registers every 30 s
LINES = ("4", "5")
LAST_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # a stock broker makes it when it first looks for transactions
Ask = Callable[..., Frame]


class Pair(NamedTuple):
    """One stock broker that is registered with a stock name server and with ours."""

    version: str
    stock: str
    ours: str
    broker: StockBroker


@pytest.fixture(scope="module", params=LINES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both name servers with the same broker in them."""
    with name_server() as server:
        try:
            broker = StockBroker(request.param, registers_also=server.address)
        except PeerMissing as reason:
            missing(reason)
        with broker:
            found = Pair(request.param, broker.name_server, server.address, broker)
            for address in (found.stock, found.ours):
                eventually(lambda at=address: has_route(at, LAST_TOPIC), "it has made its own topics", REGISTER_TIMEOUT)
            _wait_until_same(found)
            yield found


@pytest.fixture(autouse=True)
def level(request: pytest.FixtureRequest) -> None:
    """Begin where a test that failed half way has left nothing behind: both write, and both know the same."""
    if "pair" not in request.fixturenames:
        return
    pair: Pair = request.getfixturevalue("pair")
    with Wire(pair.broker.broker_address) as broker:
        for topic in (DELETED, ORDERED):
            _ask(broker, 215, {"topic": topic})
    for address in (pair.stock, pair.ours):
        with Wire(address) as wire:
            assert _ask(wire, 327, {"brokerName": pair.broker.broker_name}).code == 0
            for topic in (DELETED, ORDERED):
                _ask(wire, 216, {"topic": topic})
    _wait_until_same(pair)


def _wait_until_same(pair: Pair) -> None:
    """Wait until both name servers give the same routes: a broker tells one after the other what is new."""
    eventually(lambda: _all_routes(pair.ours) == _all_routes(pair.stock), "both know the same", REGISTER_TIMEOUT)


def _all_topics(address: str) -> list[str]:
    with Wire(address) as wire:
        return _topics(wire)


def _topics(wire: Wire) -> list[str]:
    return sorted(json.loads(_ask(wire, 206).body)["topicList"])


def _all_routes(address: str) -> dict[str, tuple[int, Any]]:
    """Every topic's route, as code and values; a topic that goes away meanwhile has the code that says so.

    What tests say of the order of a topic goes to each name server by itself, and no broker evens it out.
    """
    with Wire(address) as wire:
        replies = {topic: _ask(wire, 105, {"topic": topic}) for topic in _topics(wire)}
    found = {topic: (reply.code, _plain(reply.body) or {}) for topic, reply in replies.items()}
    for _, route in found.values():
        route.pop("orderTopicConf", None)
    return found


def _ask(wire: Wire, code: int, fields: dict[str, Any] | None = None, body: bytes = b"", **extra: Any) -> Frame:
    reply = wire.ask(code, fields, body, **extra)
    assert reply is not None
    return reply


def _creation(topic: str) -> dict[str, str]:
    """Fields of request 17 for a topic of three queues."""
    fields = {"topic": topic, "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
    return fields | {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}


def _plain(body: bytes) -> Any:
    """A body as values: the order of lists from hash tables means nothing, and fields of 5.x we do not claim go."""
    if not body:
        return None
    value = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))
    return _sorted({key: each for key, each in value.items() if key != "topicQueueMappingByBroker"})


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(each) for key, each in value.items() if key != "enableActingMaster"}
    if isinstance(value, list):
        return sorted((_sorted(each) for each in value), key=json.dumps)
    return value


@pytest.mark.parametrize("version", [317, 400, 401, 409])
def test_routes_are_those_of_a_stock_name_server_byte_by_byte(pair: Pair, version: int) -> None:
    topics = _all_topics(pair.stock)
    assert "TBW102" in topics
    with Wire(pair.stock) as stock, Wire(pair.ours) as ours:
        for topic in topics:
            expected = _ask(stock, 105, {"topic": topic}, version=version)
            found = _ask(ours, 105, {"topic": topic}, version=version)
            assert (found.code, found.fields, found.remark) == (expected.code, expected.fields, expected.remark)
            if pair.version == "4":
                assert found.body == expected.body
            else:
                assert _plain(found.body) == _plain(expected.body)
                assert (b'{"0":' in found.body) == (b'{"0":' in expected.body)


DELETED = "deleted_in_the_name_servers"
REQUESTS: list[tuple[int, dict[str, str] | None]] = [
    (105, {"topic": "no_such_topic"}),
    (106, None),
    (206, None),
    (224, {"cluster": "DefaultCluster"}),
    (224, {"cluster": "nowhere"}),
    (304, None),
    (311, None),
    (312, None),
    (313, None),
    (101, {"namespace": "n", "key": "k"}),
    (219, {"namespace": "n"}),
    (100, {"namespace": "n", "key": "k", "value": "v; ü"}),
    (101, {"namespace": "n", "key": "k"}),
    (219, {"namespace": "n"}),
    (102, {"namespace": "n", "key": "k"}),
    (102, {"namespace": "n", "key": "k"}),
    (101, {"namespace": "n", "key": "k"}),
    (205, {"brokerName": "broker-a"}),
    (105, {"topic": "TBW102"}),
    (327, {"brokerName": "broker-a"}),
    (105, {"topic": "TBW102"}),
    (205, {"brokerName": "absent"}),
    (216, {"topic": "no_such_topic"}),
    (105, {"topic": DELETED}),
    (216, {"topic": DELETED}),
    (105, {"topic": DELETED}),
]


def test_the_same_requests_have_the_same_answers(pair: Pair) -> None:
    _leave_in_the_name_servers_alone(DELETED, pair)
    with Wire(pair.stock) as stock, Wire(pair.ours) as ours:
        for code, fields in REQUESTS:
            expected, found = _ask(stock, code, fields), _ask(ours, code, fields)
            where = f"{code} {fields}"
            assert (found.code, found.fields) == (expected.code, expected.fields), where
            assert _plain(found.body) == _plain(expected.body), where
            assert (found.remark or "").split("\n")[0] == (expected.remark or "").split("\n")[0], where


def _leave_in_the_name_servers_alone(topic: str, pair: Pair) -> None:
    """Make a topic that the broker has forgotten: no registration brings back what a test deletes in the two."""
    with Wire(pair.broker.broker_address) as broker:
        assert _ask(broker, 17, _creation(topic)).code == 0
        eventually(
            lambda: has_route(pair.ours, topic) and has_route(pair.stock, topic), "both know it", REGISTER_TIMEOUT
        )
        assert _ask(broker, 215, {"topic": topic}).code == 0


def test_a_client_of_our_name_server_reaches_the_stock_broker(
    pair: Pair, java: Callable[[str], JavaClient], named: Callable[[str], str]
) -> None:
    client, name, topic = java(pair.version), named("producer"), named("topic")
    client.do("producer", name=name, group=name, nameServer=pair.ours)
    sent = client.do("send", name=name, topic=topic, bodies=["one", "two"])
    assert [each["status"] for each in sent] == ["SEND_OK", "SEND_OK"]
    assert {each["broker"] for each in sent} == {pair.broker.broker_name}
    eventually(lambda: has_route(pair.ours, topic), "a topic made on first use is registered", REGISTER_TIMEOUT)
    client.do("producer-close", name=name)


@pytest.mark.parametrize("line", LINES)
def test_a_stock_broker_with_our_name_server_alone_registers_serves_and_is_gone_with_its_connection(
    line: str, java: Callable[[str], JavaClient], named: Callable[[str], str]
) -> None:
    client, name = java(line), named("producer")
    with name_server() as server:
        try:
            broker = StockBroker(line, registers_with=server.address)
        except PeerMissing as reason:
            missing(reason)
        with broker:
            client.do("producer", name=name, group=name, nameServer=server.address)
            sent = client.do("send", name=name, topic=named("topic"), bodies=["one"])
            assert [each["status"] for each in sent] == ["SEND_OK"]
            client.do("producer-close", name=name)
        eventually(lambda: not has_route(server.address, "TBW102"), "its connection closes")


ORDERED = "mqadmin_ordered"
MQADMIN: list[tuple[str, ...]] = [
    ("topicList",),
    ("topicRoute", "-t", "TBW102"),
    ("topicClusterList", "-t", "TBW102"),
    ("updateTopic", "-c", "DefaultCluster", "-t", ORDERED, "-r", "4", "-w", "4", "-o", "true"),
    ("topicRoute", "-t", ORDERED),
    ("updateOrderConf", "-m", "get", "-t", ORDERED),
    ("updateOrderConf", "-m", "put", "-t", ORDERED, "-v", "broker-a:2"),
    ("updateOrderConf", "-m", "get", "-t", ORDERED),
    ("updateOrderConf", "-m", "delete", "-t", ORDERED),
    ("updateKvConfig", "-s", "space", "-k", "key", "-v", "value"),
    ("deleteKvConfig", "-s", "space", "-k", "key"),
    ("wipeWritePerm", "-b", "broker-a"),
    ("addWritePerm", "-b", "broker-a"),
    ("deleteTopic", "-c", "DefaultCluster", "-t", ORDERED),
]


def test_mqadmin_prints_the_same(pair: Pair, mqadmin: Callable[..., str]) -> None:
    def printed(address: str, words: tuple[str, ...]) -> list[str]:
        text = mqadmin(pair.version, words[0], "-n", address, *words[1:]).replace(address, "NAMES")
        return sorted(line.rstrip() for line in text.splitlines() if "orderTopicConf" not in line)

    for words in MQADMIN:
        _wait_until_same(pair)
        assert printed(pair.ours, words) == printed(pair.stock, words), words


def test_mqadmin_reads_and_changes_our_settings_and_nothing_else(pair: Pair, mqadmin: Callable[..., str]) -> None:
    def told(*words: str) -> str:
        return mqadmin(pair.version, words[0], "-n", pair.ours, *words[1:])

    shown = told("getNamesrvConfig")
    assert re.search(r"orderMessageEnable\s+= +true", shown) and "Path" not in shown
    told("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
    assert re.search(r"orderMessageEnable\s+= +false", told("getNamesrvConfig"))
    refused = told("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/tmp/x")
    assert "Can not update config in black list" in refused
    told("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")


@pytest.mark.parametrize("line", LINES)
def test_our_broker_is_known_to_a_stock_name_server(line: str, request: pytest.FixtureRequest) -> None:
    stock: Target = request.getfixturevalue(f"stock_{line}")
    with start_ours(nameservers=stock.name_server) as ours:
        assert ours.name_server == ""
        eventually(lambda: ours.broker_name in _brokers(stock.name_server), "it registers", REGISTER_TIMEOUT)
        with Wire(ours.broker_address) as broker:
            assert _ask(broker, 17, _creation("ours_only")).code == 0
        eventually(lambda: has_route(stock.name_server, "ours_only"), "a new topic is registered", 5.0)
        with Wire(stock.name_server) as wire:
            route = json.loads(_ask(wire, 105, {"topic": "ours_only"}).body)
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": ours.broker_address}
        assert route["queueDatas"][0] == {
            "brokerName": ours.broker_name,
            "perm": 6,
            "readQueueNums": 3,
            "topicSysFlag": 0,
            "writeQueueNums": 3,
        }
    eventually(lambda: ours.broker_name not in _brokers(stock.name_server), "it takes leave")


def _brokers(address: str) -> dict[str, Any]:
    with Wire(address) as wire:
        found: dict[str, Any] = _plain(_ask(wire, 106).body)["brokerAddrTable"]
        return found
