"""A process of this host gets the places of popped messages; what has to be changed for it comes as a record."""

from typing import Any

import pytest

from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.requests import Peer
from shmq.protocol.command import Command
from shmq.protocol.pop import PLACE_BYTES, read_places
from tests.broker.pop.pop_client import INVISIBLE_MS, PopClient, messages_of

LOCAL = 9


@pytest.fixture
def client(tables: Any, settings: BrokerSettings, monkeypatch: pytest.MonkeyPatch) -> PopClient:
    client = PopClient(tables, settings)
    monkeypatch.setattr(tables, "units", client.log.units)  # where records lie in this log
    client.broker.connected(LOCAL, Peer(77, 1000, 1000, 5, 1), client.now_ms)
    return client


def bodies_at(client: PopClient, reply: Command) -> list[bytes]:
    """The bodies of the messages a reply names by their places."""
    found = []
    for position in read_places(reply.body, int(reply.ext["places"])):
        data = client.log.record_at(position)
        assert data is not None
        found += [message.body for message in messages_of(Command(code=0, ext=reply.ext, body=data))]
    return found


@pytest.mark.parametrize(
    "subscription", [{}, {"exp": "t"}, {"expType": "SQL92", "exp": "size > 3"}], ids=["all", "tag", "expression"]
)
def test_a_local_process_gets_the_places_of_messages_whatever_it_selects(
    client: PopClient, subscription: dict[str, str]
) -> None:
    client.put(b"a", b"b", text="TAGS\x01t\x02size\x014\x02")
    client.put(b"c", text="TAGS\x01other\x02size\x011\x02")
    reply = client.pop(LOCAL, places="true", **subscription)
    count = 3 if not subscription else 2
    assert (reply.ext["places"], len(reply.body)) == (str(count), count * PLACE_BYTES)
    assert bodies_at(client, reply) == [b"a", b"b", b"c"][:count]
    assert client.committed() == 3
    assert client.popped() == []


def test_fewer_than_there_are_leave_the_rest_to_the_next(client: PopClient) -> None:
    client.put(*(b"%d" % number for number in range(5)))
    reply = client.pop(LOCAL, places="true", maxMsgNums=2)
    assert (bodies_at(client, reply), reply.ext["restNum"]) == ([b"0", b"1"], "3")
    assert [message.body for message in client.popped()] == [b"2", b"3", b"4"]


def test_what_comes_again_is_a_record_behind_the_places(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    client.run(client.now_ms + INVISIBLE_MS + 2000)
    client.put(b"b")
    reply = client.pop(LOCAL, places="true")
    assert bodies_at(client, reply) == [b"b"]
    (again,) = messages_of(Command(code=0, ext=reply.ext, body=reply.body[PLACE_BYTES:]))
    assert (again.body, again.record.topic, again.record.reconsume_times) == (b"a", "orders", 1)
    assert client.ack(again).code == 0


def test_who_does_not_map_the_log_gets_records_whatever_it_asks_for(client: PopClient) -> None:
    client.put(b"a")
    reply = client.pop(places="true")
    assert "places" not in reply.ext
    assert [message.body for message in messages_of(reply)] == [b"a"]


def test_a_clock_that_is_moved_ahead_ends_invisible_times(client: PopClient) -> None:
    client.put(b"a")
    client.popped()
    client.tables.advance_clock(INVISIBLE_MS)
    client.take_in(client.broker.tick(client.now_ms))
    assert [message.body for message in client.popped()] == [b"a"]
