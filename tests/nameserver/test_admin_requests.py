"""What administrators change: write permissions and topics, until the broker says otherwise."""

from __future__ import annotations

import json

from shmq.protocol.codes import Request, Response
from tests.nameserver.desk import Desk, registration_body, topic_config


def perms(desk: Desk, *topics: str) -> list[int]:
    asker = desk.connect()
    return [json.loads(desk.route(asker, topic).body)["queueDatas"][0]["perm"] for topic in topics]


def test_write_permission_is_wiped_and_added_for_all_topics_of_a_broker(desk: Desk) -> None:
    broker, admin = desk.connect("10.0.0.1"), desk.connect()
    desk.register(broker, registration_body(topic_config("a"), topic_config("b", perm=7)))
    fields = {"brokerName": "broker-a"}
    assert desk.ask(admin, Request.WIPE_WRITE_PERM_OF_BROKER, fields).ext == {"wipeTopicCount": "2"}
    assert perms(desk, "a", "b") == [4, 5]
    assert desk.ask(admin, Request.ADD_WRITE_PERM_OF_BROKER, fields).ext == {"addTopicCount": "2"}
    assert perms(desk, "a", "b") == [6, 6]
    desk.register(broker, registration_body(topic_config("a", perm=4), counter=2))
    assert perms(desk, "a", "b") == [4, 6]


def test_of_an_unknown_broker_nothing_is_changed(desk: Desk) -> None:
    reply = desk.ask(desk.connect(), Request.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "absent"})
    assert (reply.code, reply.ext) == (Response.SUCCESS, {"wipeTopicCount": "0"})


def test_a_deleted_topic_is_gone_until_the_broker_registers_another_version(desk: Desk) -> None:
    broker, admin = desk.connect("10.0.0.1"), desk.connect()
    body = registration_body(topic_config("orders"))
    desk.register(broker, body)
    for fields, code in (
        ({"topic": "orders", "clusterName": "Other"}, Response.SUCCESS),
        ({"topic": "orders", "clusterName": "DefaultCluster"}, Response.TOPIC_NOT_EXIST),
    ):
        assert desk.ask(admin, Request.DELETE_TOPIC_IN_NAMESRV, fields).code == Response.SUCCESS
        assert desk.route(admin, "orders").code == code
    desk.register(broker, body)
    assert desk.route(admin, "orders").code == Response.TOPIC_NOT_EXIST
    desk.register(broker, registration_body(topic_config("orders"), counter=2))
    assert desk.route(admin, "orders").code == Response.SUCCESS
    desk.ask(admin, Request.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    assert desk.route(admin, "orders").code == Response.TOPIC_NOT_EXIST
