"""The roster lists connections and members of groups, and is written again only when they changed."""

from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.clients.roster import DEPARTED_MAX, DEPARTED_MS
from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import CorruptionError
from shmq.protocol.codes import Request
from shmq.protocol.roster import ROSTER_BYTES_MAX, Roster, parse_roster, roster_text
from tests.broker.memory_log import MemoryLog
from tests.broker.test_broker import Client


@pytest.fixture
def broker(tables: Any, settings: BrokerSettings) -> Broker:
    return Broker(tables, settings, now_ms=0, log=MemoryLog(tables))


def member(broker: Broker, connection_id: int, *groups: str, **more: Any) -> Client:
    client = Client(broker, connection_id, tcp=more.pop("tcp", False))
    if not more.get("tcp"):
        client.attach()
    client.beat(*groups, **more)
    return client


def told(broker: Broker, now_ms: int = 0) -> Roster:
    roster = broker.roster(now_ms)
    assert roster is not None
    return roster


def test_it_is_sent_once_for_each_change(broker: Broker) -> None:
    assert told(broker).groups == {}
    assert broker.roster(5) is None
    member(broker, 1, "g", tags="a || b", topic="t")
    roster = told(broker, 7)
    assert (roster.written_ms, list(roster.groups)) == (7, ["g"])
    [entry] = roster.groups["g"].members
    assert (entry.client_id, entry.pid, entry.transport) == ("client-1", 1, "shm")
    assert entry.subscription == {"t": ("TAG", ("a", "b"))}
    [connection] = roster.connections
    assert (connection.client_id, connection.slot, connection.consumer_groups) == ("client-1", 0, ("g",))
    assert broker.roster(9) is None


def test_who_leaves_is_forgotten_and_who_ends_in_the_group_is_remembered(broker: Broker) -> None:
    leaver = member(broker, 1, "g")
    leaver.ask(Request.UNREGISTER_CLIENT, {"clientID": "client-1", "consumerGroup": "g"})
    broker.disconnected(1, 10)
    assert told(broker, 10).departed == ()
    member(broker, 2, "g", topic="t", tags="x")
    broker.disconnected(2, 20)
    [gone] = told(broker, 30).departed
    assert (gone.group, gone.at_ms, gone.member.client_id, gone.member.pid) == ("g", 20, "client-2", 2)
    assert gone.member.subscription == {"t": ("TAG", ("x",))}


def test_a_departure_ends_with_a_return_or_with_time(broker: Broker) -> None:
    member(broker, 1, "g")
    broker.disconnected(1, 10)
    member(broker, 1, "g")
    assert told(broker, 20).departed == ()
    broker.disconnected(1, 30)
    assert len(told(broker, 40).departed) == 1
    assert told(broker, 30 + DEPARTED_MS).departed == ()


def test_only_the_newest_departures_are_kept(broker: Broker) -> None:
    client = member(broker, 1, *(f"g{number}" for number in range(DEPARTED_MAX + 3)))
    broker.disconnected(client.connection_id, 10)
    assert len(told(broker, 10).departed) == DEPARTED_MAX


def test_members_that_differ_are_listed_with_the_time(broker: Broker) -> None:
    member(broker, 1, "g", topic="t", tags="a", now_ms=50)
    member(broker, 2, "g", tcp=True, topic="t", tags="b", now_ms=60)
    group = told(broker, 70).groups["g"]
    assert (group.differs_since_ms, group.conflicts) == (60, 1)
    assert [entry.transport for entry in group.members] == ["shm", "tcp"]


def test_the_text_is_read_as_it_was_written(broker: Broker) -> None:
    member(broker, 1, "g")
    roster = told(broker)
    assert parse_roster(roster_text(roster).encode()) == roster


@pytest.mark.parametrize("text", [b"", b"[]", b'{"generation": 1}', b"[" * 5000, b" " * (ROSTER_BYTES_MAX + 1)])
def test_text_that_is_no_roster_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse_roster(text)
