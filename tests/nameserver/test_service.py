"""The name server that stands beside a real broker, over real sockets."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from shmq.addresses import parse_address
from shmq.exit_code import ExitCode
from shmq.protocol.codes import Request, Response
from shmq.shm.addresses import read_addresses
from tests.bridge.live_bridge import LiveBridge, RawPeer, running, wait_until


@pytest.fixture
def bridge() -> Iterator[LiveBridge]:
    with running(tcp=True) as live:
        yield live


def name_server(bridge: LiveBridge) -> closing[RawPeer]:
    return closing(RawPeer(parse_address(read_addresses(bridge.place.addresses_path)["nameserver"])))


def route(peer: RawPeer, topic: str) -> dict[str, Any] | None:
    reply = peer.ask(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if reply.code == Response.TOPIC_NOT_EXIST:
        return None
    found: dict[str, Any] = json.loads(reply.body)
    return found


def test_a_topic_is_in_the_routes_from_its_creation_to_its_deletion(bridge: LiveBridge) -> None:
    client = bridge.connect("local")
    with name_server(bridge) as peer:
        assert route(peer, "orders") is None
        client.create_topic("orders", queues=3)
        found = route(peer, "orders")
        assert found is not None and found["queueDatas"][0]["writeQueueNums"] == 3
        host, port = bridge.address
        assert found["brokerDatas"] == [
            {"brokerAddrs": {"0": f"{host}:{port}"}, "brokerName": "test", "cluster": "DefaultCluster"}
        ]
        client.delete_topic("orders")
        assert route(peer, "orders") is None


@pytest.mark.parametrize("auto_create", [True, False])
def test_the_default_topic_is_announced_where_topics_are_created_on_first_use(auto_create: bool) -> None:
    with running(tcp=True, auto_create=auto_create, default_queues=5) as bridge, name_server(bridge) as peer:
        found = route(peer, "TBW102")
        assert (found is not None) == auto_create
        if found is not None:
            assert found["queueDatas"][0]["perm"] == 7 and found["queueDatas"][0]["readQueueNums"] == 5


def test_an_advertised_host_keeps_the_brokers_port() -> None:
    with running(tcp=True, advertise="mq.example") as bridge, name_server(bridge) as peer:
        found = route(peer, "TBW102")
        assert found is not None
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": f"mq.example:{bridge.address[1]}"}


def test_a_killed_bridge_comes_back_at_the_same_name_server_port_with_its_configuration(bridge: LiveBridge) -> None:
    fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "test:8"}
    with name_server(bridge) as peer:
        assert peer.ask(Request.PUT_KV_CONFIG, fields).code == Response.SUCCESS
    before = read_addresses(bridge.place.addresses_path)
    bridge.end(signal.SIGKILL)
    bridge.start()
    assert read_addresses(bridge.place.addresses_path) == before
    with name_server(bridge) as peer:
        assert peer.ask(Request.GET_KV_CONFIG, fields).ext == {"value": "test:8"}


def test_a_registered_broker_is_gone_when_its_connection_closes(bridge: LiveBridge) -> None:
    fields = {
        "brokerName": "other",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
    }
    with name_server(bridge) as asker:
        with name_server(bridge) as broker:
            assert broker.ask(Request.REGISTER_BROKER, fields).code == Response.SUCCESS
            assert b'"other"' in asker.ask(Request.GET_BROKER_CLUSTER_INFO).body
        wait_until(lambda: b'"other"' not in asker.ask(Request.GET_BROKER_CLUSTER_INFO).body)


def test_a_stopped_bridge_leaves_no_address(bridge: LiveBridge) -> None:
    assert bridge.end()[0] == ExitCode.DONE
    assert read_addresses(bridge.place.addresses_path) == {}
