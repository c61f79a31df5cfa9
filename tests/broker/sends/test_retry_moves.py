"""Retries that lie where they have no readers any more, and where they go."""

from dataclasses import replace
from typing import Any

import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.logic.effects import Effect, Notify, Report, Wake
from shmq.daemon.logic.requests import Peer
from shmq.errors import SegmentFull
from shmq.properties import parse_properties
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, encode_body
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from tests.broker.conftest import PID_NAMESPACE
from tests.broker.record_log import RecordLog

RETRY, T_RETRY, U_RETRY = "%RETRY%g", "%RETRY%g+t", "%RETRY%g+u"


class World:
    """A broker with group g, whose retries are stored as if they had been sent back before."""

    def __init__(self, tables: Any, settings: BrokerSettings) -> None:
        self.tables, self.settings = tables, replace(settings, serves_tcp=True)
        self.log = RecordLog(tables)
        tables.units = self.log.units
        self.start()
        for name, queues in (("t", 2), ("u", 2), (RETRY, 1)):
            tables.topic_put(name, read_queues=queues, write_queues=queues, perm=6, flags=0, kind=0)

    def start(self, **changes: Any) -> None:
        """A broker that knows nothing but what is in tables and log."""
        self.broker = Broker(self.tables, replace(self.settings, **changes), now_ms=0, log=self.log)
        self.broker.tick(0)

    def joins(self, number: int, *topics: str, tcp: bool = False, stock: bool = False) -> None:
        connection = None if tcp or stock else Peer(number, 1000, 1000, number, PID_NAMESPACE)
        self.broker.connected(number, connection, 0)
        if connection:
            ext = {"clientId": f"c{number}", "role": "3", "abi": "1", "version": "0.1.0"}
            self.ask(number, Request.ATTACH, {**ext, "pidNamespace": str(PID_NAMESPACE)})
        data = ConsumerData("g", [SubscriptionData(topic) for topic in topics])
        if not stock:
            data.sharesByTopic = True
        self.ask(number, Request.HEART_BEAT, {}, encode_body(HeartbeatData(f"c{number}", [data])))

    def ask(self, connection_id: int, code: int, ext: dict[str, str], body: bytes = b"") -> list[Effect]:
        return self.broker.handle(connection_id, Command(code=code, ext=ext, body=body), 0)

    def retry(self, topic: str, body: bytes, place: str = RETRY) -> None:
        """Store a retry of a topic's message."""
        if self.tables.topic(place) is None:
            self.tables.topic_put(place, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
        record = NewRecord(body, f"KEYS\x01k\x02RETRY_TOPIC\x01{topic}\x02".encode(), reconsume_times=3)
        self.log.append(self.tables.topic(place), 0, record)

    def bodies(self, topic: str) -> list[bytes]:
        found = self.tables.topic(topic)
        return [body for number in range(len(found.queues)) for body in self.log.bodies(found, number)] if found else []

    def slot(self, topic: str) -> int:
        return int(self.tables.offset_put(self.tables.group_put("g"), self.tables.topic(topic).queues[0]))

    def progress(self, topic: str) -> int:
        return int(self.tables.committed(self.slot(topic)))


@pytest.fixture
def world(tables: Any, settings: BrokerSettings) -> World:
    return World(tables, settings)


def test_members_that_read_alike_read_the_retries_themselves(world: World) -> None:
    world.joins(1, "t", "u")
    world.joins(2, "t", "u")
    world.retry("t", b"x")
    world.broker.tick(1000)
    assert world.progress(RETRY) == -1 and world.bodies(T_RETRY) == []


def test_each_retry_goes_to_those_that_read_its_topic_and_is_the_same_message(world: World) -> None:
    world.joins(1, "t")
    for topic, body in (("t", b"1"), ("u", b"2"), ("t", b"3"), ("gone", b"4")):
        world.retry(topic, body)
    world.joins(2, "u")
    effects = world.broker.tick(1000)
    assert (world.bodies(T_RETRY), world.bodies(U_RETRY)) == ([b"1", b"3"], [b"2"])
    assert world.bodies("%RETRY%g+gone") == [b"4"], "it waits for one that reads it"
    assert world.progress(RETRY) == 4
    (copy, _) = world.log.stored(world.tables.topic(T_RETRY), 0)
    assert copy.reconsume_times == 3
    assert parse_properties(copy.properties.decode()) == {"KEYS": "k", "RETRY_TOPIC": "t"}
    told = {effect.connection_id for effect in effects if isinstance(effect, Notify)}
    assert told == {1, 2}, "they share the queues of the new topics"
    # Nothing is moved twice.
    world.broker.tick(2000)
    assert world.bodies(T_RETRY) == [b"1", b"3"] and world.progress(T_RETRY) == -1


def test_a_queue_that_a_member_reads_or_has_locked_is_left_to_it(world: World) -> None:
    world.joins(1, "t")
    world.joins(2, "u")
    world.retry("t", b"x")
    slot = world.slot(RETRY)
    world.tables.owned.add(slot)
    world.broker.tick(1000)
    assert world.bodies(T_RETRY) == []
    world.tables.owned.clear()
    world.tables.offset_lock(slot, 7, 1000, 500)
    world.broker.tick(1200)
    assert world.bodies(T_RETRY) == []
    world.broker.tick(1501)
    assert world.bodies(T_RETRY) == [b"x"] and slot not in world.tables.locks


def test_members_over_tcp_have_time_to_write_down_what_they_settled(world: World) -> None:
    world.joins(1, "t", tcp=True)
    world.joins(2, "u", tcp=True)
    for body in (b"settled", b"not"):
        world.retry("t", body)
    world.broker.tick(1000)
    world.tables.set_committed(world.slot(RETRY), 1)
    world.broker.tick(3999)
    assert world.bodies(T_RETRY) == []
    world.broker.tick(4000)
    assert world.bodies(T_RETRY) == [b"not"]


def test_where_a_client_of_rocketmq_reads_a_topic_its_retries_go_back_to_the_groups_own(world: World) -> None:
    world.joins(1, "t")
    world.joins(2, "u")
    world.retry("t", b"t", T_RETRY)
    world.retry("u", b"u", U_RETRY)
    world.joins(3, "t", stock=True)
    for now_ms in (1000, 4000, 5000):
        world.broker.tick(now_ms)
    assert world.bodies(RETRY) == [b"t"] and world.progress(T_RETRY) == 1
    assert world.progress(U_RETRY) == -1, "no client of RocketMQ reads u"


def test_what_clients_of_rocketmq_pop_stays_where_they_pop_it(world: World) -> None:
    world.joins(3, "t", stock=True)
    wish = b'{"topic":"t","consumerGroup":"g","mode":"POP"}'
    world.ask(3, Request.SET_MESSAGE_REQUEST_MODE, {}, wish)
    world.retry("t", b"t", T_RETRY)
    for now_ms in (1000, 4000, 5000):
        world.broker.tick(now_ms)
    assert world.bodies(RETRY) == [] and world.bodies(T_RETRY) == [b"t"]


@pytest.mark.parametrize("killed", ["before the progress", "behind it"])
def test_a_broker_killed_in_between_stores_no_retry_twice(world: World, killed: str) -> None:
    world.joins(1, "t")
    world.joins(2, "u")
    for number in range(5):
        world.retry("t", b"%d" % number)
    world.broker.tick(1000)
    if killed == "before the progress":
        world.tables.set_committed(world.slot(RETRY), 4)
    world.retry("t", b"new")
    world.start()
    world.joins(1, "t")
    world.joins(2, "u")
    world.broker.tick(1000)
    assert world.bodies(T_RETRY) == [b"0", b"1", b"2", b"3", b"4", b"new"] and world.progress(RETRY) == 6


def test_without_room_nothing_is_passed_over_and_it_is_said_once(world: World) -> None:
    world.joins(1, "t")
    world.joins(2, "u")
    world.retry("t", b"x")
    world.log.error = SegmentFull("the disk is full")
    said = [
        effect
        for now_ms in (1000, 2000)
        for effect in world.broker.tick(now_ms)
        if isinstance(effect, Report) and "retries in %RETRY%g do not come again yet: the disk is full" in effect.text
    ]
    assert len(said) == 1 and world.progress(RETRY) == -1
    world.log.error = None
    world.broker.tick(3000)
    assert world.bodies(T_RETRY) == [b"x"] and world.progress(RETRY) == 1


def test_many_are_moved_a_part_at_a_time_and_others_are_served_in_between(world: World) -> None:
    world.joins(1, "t")
    world.joins(2, "u")
    for number in range(450):
        world.retry("t", b"%d" % number)
    counts, now_ms = [], 1000
    effects = world.broker.tick(now_ms)
    while any(isinstance(effect, Wake) and effect.after_ms == 1 for effect in effects):
        counts.append(len(world.bodies(T_RETRY)))
        now_ms += 1
        effects = world.broker.woken(now_ms)
    assert counts == [200, 400] and world.bodies(T_RETRY) == [b"%d" % number for number in range(450)]


def test_a_slave_moves_nothing(world: World) -> None:
    world.start(is_slave=True)
    world.joins(1, "t", tcp=True)
    world.joins(2, "u", tcp=True)
    world.retry("t", b"x")
    for now_ms in (1000, 4000, 5000):
        world.broker.tick(now_ms)
    assert world.bodies(T_RETRY) == []


def test_who_gives_back_in_a_group_that_differs_gives_to_the_readers_of_the_topic(world: World) -> None:
    world.joins(1, "t")
    world.joins(2, "u")
    position = world.log.append(world.tables.topic("t"), 0, NewRecord(b"x")).log_position
    ext = {"offset": str(position), "group": "g", "delayLevel": "1"}
    effects = world.ask(1, Request.CONSUMER_SEND_MSG_BACK, ext)
    (copy,) = world.log.stored(world.tables.topic("SCHEDULE_TOPIC_XXXX"), 0)
    assert parse_properties(copy.properties.decode())["REAL_TOPIC"] == T_RETRY
    told = [effect.connection_id for effect in effects if isinstance(effect, Notify)]
    assert sorted(told) == [1, 2], "who gave back, too: it is to read the new topic"
