"""What was answered is true for all clients: the next request of any, at any address, finds it."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shmq.properties import encode_properties
from shmq.protocol.codes import Request, Response
from shmq.testing import Broker
from tests.interop.peers.wire import Frame, Wire, has_route
from tests.nameserver.live_nameserver import LiveNameServer, name_server

ROUNDS = 20
TOPIC = {"defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}


@pytest.fixture(scope="module", params=[1, 2], ids=["one bridge", "two bridges"])
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[Broker, list[LiveNameServer]]]:
    """A broker with two name servers elsewhere, and one that is not there."""
    with ExitStack() as stack:
        servers = [stack.enter_context(name_server()) for _ in range(2)]
        named = ";".join([*(server.address for server in servers), "127.0.0.1:1"])
        broker = stack.enter_context(Broker(tcp=True, nameservers=named, bridges=request.param))
        yield broker, servers


_serial = itertools.count(1)


def ask(wire: Wire, code: int, fields: dict[str, str], body: bytes = b"") -> Frame:
    reply = wire.ask(code, fields, body)
    assert reply is not None
    return reply


def send(wire: Wire, topic: str, **properties: str) -> Frame:
    fields = dict(zip("abcdefgh", ("p", topic, "TBW102", "4", "0", "0", "0", "0"), strict=True))
    return ask(wire, Request.SEND_MESSAGE_V2, fields | {"i": encode_properties(properties)}, b"m")


def routes(servers: list[LiveNameServer], topic: str) -> list[bool]:
    return [has_route(server.address, topic) for server in servers]


def test_a_topic_is_at_the_name_servers_before_its_creation_is_answered(
    cluster: tuple[Broker, list[LiveNameServer]],
) -> None:
    broker, servers = cluster
    for _ in range(ROUNDS):
        topic = f"made_{next(_serial)}"
        with Wire(broker.broker_address) as wire:
            fields = {"topic": topic, "readQueueNums": "2", "writeQueueNums": "2", **TOPIC}
            assert ask(wire, Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
            assert routes(servers, topic) == [True, True]
            fields |= {"perm": "4"}
            assert ask(wire, Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
            for server in servers:
                with Wire(server.address) as names:
                    assert b'"perm":4' in ask(names, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body
            assert ask(wire, Request.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == Response.SUCCESS
            assert routes(servers, topic) == [False, False]


def test_topics_of_a_list_are_there_too(cluster: tuple[Broker, list[LiveNameServer]]) -> None:
    broker, servers = cluster
    names = [f"listed_{next(_serial)}" for _ in range(3)]
    one = '{"topicName":"%s","readQueueNums":1,"writeQueueNums":1,"perm":6,"topicFilterType":"SINGLE_TAG"}'
    body = f'{{"topicConfigList":[{",".join(one % name for name in names)}]}}'
    with Wire(broker.broker_address) as wire:
        assert ask(wire, Request.UPDATE_AND_CREATE_TOPIC_LIST, {}, body.encode()).code == Response.SUCCESS
    assert all(all(routes(servers, name)) for name in names)


def test_a_topic_that_a_send_has_made_is_at_the_name_servers_when_the_send_is_answered(
    cluster: tuple[Broker, list[LiveNameServer]],
) -> None:
    broker, servers = cluster
    for _ in range(ROUNDS):
        topic = f"sent_{next(_serial)}"
        with Wire(broker.broker_address) as wire:  # a connection to any of the bridges
            assert send(wire, topic).code == Response.SUCCESS
        assert routes(servers, topic) == [True, True]


def test_a_topic_made_on_this_host_is_there_as_well(cluster: tuple[Broker, list[LiveNameServer]]) -> None:
    broker, servers = cluster
    topic = f"local_{next(_serial)}"
    with broker.connect() as local:
        local.admin.create_topic(topic, queues=2)
        assert routes(servers, topic) == [True, True]
        local.admin.delete_topic(topic)
        assert routes(servers, topic) == [False, False]


@pytest.mark.parametrize("name", ["KEYS", "UNIQ_KEY"])
def test_what_was_sent_is_found_by_key_in_the_next_request(
    cluster: tuple[Broker, list[LiveNameServer]], name: str
) -> None:
    broker, _ = cluster
    topic = f"keyed_{next(_serial)}"
    asked = {"topic": topic, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)}
    with Wire(broker.broker_address) as wire:
        for number in range(ROUNDS):
            assert send(wire, topic, **{name: f"k{number}"}).code == Response.SUCCESS
            assert ask(wire, Request.QUERY_MESSAGE, asked | {"key": f"k{number}"}).code == Response.SUCCESS, number
