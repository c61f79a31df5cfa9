"""What a member may ask for, as the broker says; and that a group's mode outlives the broker."""

import json
from typing import Any

import pytest

from shmq.daemon.broker.settings import BrokerSettings
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from tests.broker.pop.pop_client import PopClient


@pytest.fixture
def client(tables: Any, settings: BrokerSettings) -> PopClient:
    client = PopClient(tables, settings, queues=4)
    for number, name in ((1, "a"), (2, "b"), (3, "c")):
        beat(client, number, name)
    return client


def beat(client: PopClient, connection: int, name: str) -> None:
    data = ConsumerData("g", [SubscriptionData("orders", "*", 1)])
    client.ask(Request.HEART_BEAT, body=encode_body(HeartbeatData(name, [data])), connection=connection)


def query(client: PopClient, name: str, **changes: Any) -> list[tuple[int, str]] | None:
    body = {
        "clientId": name,
        "consumerGroup": "g",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "orders",
    }
    reply: Command = client.ask(Request.QUERY_ASSIGNMENT, body=json.dumps(body | changes).encode())
    assert reply.code == 0
    found = json.loads(reply.body).get("messageQueueAssignments")
    if found is None:
        return None
    assert {each["messageQueue"]["brokerName"] for each in found} <= {"default"}
    return [(each["messageQueue"]["queueId"], each["mode"]) for each in found]


def set_mode(client: PopClient, **changes: Any) -> Command:
    body = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, "topic": "orders"} | changes
    reply: Command = client.ask(Request.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())
    return reply


def test_members_that_pull_share_the_queues(client: PopClient) -> None:
    assert [query(client, name) for name in "abc"] == [[(0, "PULL"), (1, "PULL")], [(2, "PULL")], [(3, "PULL")]]
    assert query(client, "b", strategyName="AVG_BY_CIRCLE") == [(1, "PULL")]


def test_members_that_pop_may_ask_for_any_queue(client: PopClient) -> None:
    assert set_mode(client).code == 0
    assert [query(client, name) for name in "abc"] == [[(-1, "POP")]] * 3


def test_members_may_pop_their_own_share_and_that_of_some_others(client: PopClient) -> None:
    set_mode(client, popShareQueueNum=1)
    assert query(client, "b") == [(2, "POP"), (3, "POP")]
    assert query(client, "c") == [(3, "POP"), (0, "POP"), (1, "POP")]


def test_all_read_everything_when_broadcasting(client: PopClient) -> None:
    assert query(client, "a", messageModel="BROADCASTING") == [(number, "PULL") for number in range(4)]


@pytest.mark.parametrize("changes", [{"topic": "nosuch"}, {"consumerGroup": "h"}, {"strategyName": "OTHER"}])
def test_where_it_is_unknown_a_member_keeps_what_it_has(client: PopClient, changes: dict[str, Any]) -> None:
    assert query(client, "a", **changes) is None


def test_a_mode_outlives_the_broker_and_can_be_taken_back(client: PopClient) -> None:
    set_mode(client)
    client.start()
    beat(client, 1, "a")
    assert query(client, "a") == [(-1, "POP")]
    reply = client.ask(Request.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(reply.body)["messageRequestModeMap"]["orders"]["g"]["mode"] == "POP"
    set_mode(client, mode="PULL")
    assert query(client, "a") == [(number, "PULL") for number in range(4)]


BAD = {
    "a retry topic": ({"topic": "%RETRY%g"}, Response.NO_PERMISSION),
    "no such topic": ({"topic": "nosuch"}, Response.TOPIC_NOT_EXIST),
    "another mode": ({"mode": "PUSH"}, Response.INVALID_PARAMETER),
    "a group with dots": ({"consumerGroup": "../g"}, Response.MESSAGE_ILLEGAL),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mode_that_cannot_be_is_refused_and_nothing_changes(client: PopClient, name: str) -> None:
    changes, code = BAD[name]
    end = client.log.end
    assert set_mode(client, **changes).code == code
    assert client.log.end == end
