"""The name server's dispatch: one reply a request, the embedded broker, the clock."""

from __future__ import annotations

import json

import pytest

from shmq.daemon.logic.effects import Report
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import FLAG_ONEWAY, FLAG_REPLY, Command
from tests.nameserver.desk import Desk


def test_a_client_is_given_the_address_it_reached(desk: Desk) -> None:
    desk.embed("orders")
    for local, expected in (
        ("127.0.0.1", "127.0.0.1:10911"),
        ("192.168.7.2", "192.168.7.2:10911"),
        ("::1", "[::1]:10911"),
    ):
        body = json.loads(desk.route(desk.connect(local=local), "orders").body)
        assert body["brokerDatas"] == [
            {"brokerAddrs": {"0": expected}, "brokerName": "default", "cluster": "DefaultCluster"}
        ]


def test_an_advertised_address_is_given_to_all_clients(desk: Desk) -> None:
    desk.embed("orders", address="mq.example:20911")
    body = json.loads(desk.route(desk.connect(local="10.1.1.1"), "orders").body)
    assert body["brokerDatas"][0]["brokerAddrs"] == {"0": "mq.example:20911"}


def test_the_embedded_brokers_list_is_complete(desk: Desk) -> None:
    client = desk.connect()
    desk.embed("orders", "bills", version=1)
    desk.embed("bills", version=2)
    assert desk.route(client, "orders").code == Response.TOPIC_NOT_EXIST
    assert desk.route(client, "bills").code == Response.SUCCESS


def test_the_embedded_broker_with_a_known_version_changes_nothing(desk: Desk) -> None:
    client = desk.connect()
    desk.embed("orders")
    desk.ask(client, Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "default"})
    desk.embed("orders")
    assert json.loads(desk.route(client, "orders").body)["queueDatas"][0]["perm"] == 4
    desk.embed("orders", version=2)
    assert json.loads(desk.route(client, "orders").body)["queueDatas"][0]["perm"] == 6


def test_the_embedded_broker_never_expires(desk: Desk) -> None:
    desk.embed("orders")
    desk.now_ms += 10**9
    assert desk.server.tick(desk.now_ms) == []
    assert desk.route(desk.connect(), "orders").code == Response.SUCCESS


@pytest.mark.parametrize("code", [1, 34, 10, 9999, 30001])
def test_an_unknown_code_is_answered(desk: Desk, code: int) -> None:
    reply = desk.ask(desk.connect(), code)
    assert (reply.code, reply.remark) == (3, f" request type {code} not supported")


def test_oneway_requests_replies_and_unknown_connections_are_not_answered(desk: Desk) -> None:
    client = desk.connect()
    for command in (
        Command(Request.GET_ROUTEINFO_BY_TOPIC, flag=FLAG_ONEWAY),
        Command(Request.GET_ROUTEINFO_BY_TOPIC, flag=FLAG_ONEWAY, ext={"topic": "t"}),
        Command(9999, flag=FLAG_ONEWAY),
        Command(0, flag=FLAG_REPLY),
    ):
        assert desk.server.handle(client, command, 0) == []
    assert desk.server.handle(77, Command(Request.GET_ROUTEINFO_BY_TOPIC, ext={"topic": "t"}), 0) == []


def test_a_missing_field_is_an_error_reply(desk: Desk) -> None:
    reply = desk.ask(desk.connect(), Request.GET_ROUTEINFO_BY_TOPIC)
    assert (reply.code, reply.remark) == (Response.SYSTEM_ERROR, "the custom field <topic> is null")


def test_the_end_of_a_connection_is_reported_with_what_it_registered(desk: Desk) -> None:
    broker = desk.connect("10.0.0.1")
    desk.register(broker, b"")
    assert desk.server.disconnected(broker, desk.now_ms) == [
        Report("broker broker-a (0, 10.0.0.1:10911) of DefaultCluster is gone: its connection closed")
    ]
    assert desk.server.disconnected(broker, desk.now_ms) == []
