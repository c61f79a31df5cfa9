"""Ranges for readers of whole topics: bounded answers, the topic that was planned, and what is gone is reported."""

from typing import Any

import msgspec
import pytest

from shmq.daemon.broker.broker import Broker
from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.pulls.ranges import TAGS_MAX
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds
from shmq.errors import TopicNotFound
from shmq.protocol.codes import Request, Response
from shmq.shm.core import UNIT_BYTES, tag_hash
from tests.broker.admin_client import RemoteAdmin

BORN = 4096  # of every topic of MemoryTables


@pytest.fixture
def reader(tables: Any, log: Any, settings: BrokerSettings) -> RemoteAdmin:
    """Two queues, ten messages in the first; every other one has tag t1."""
    tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
    for number in range(10):
        properties = b"TAGS\x01t1\x02" if number % 2 else b""
        log.append(tables.topic("orders"), 0, NewRecord(b"%d" % number, properties))
    return RemoteAdmin(Broker(tables, settings, now_ms=0, log=log))


def ask(reader: RemoteAdmin, begin: int, end: int, **ext: str) -> tuple[list[bytes], int, int]:
    place = {"topic": "orders", "queueId": "0", "queueOffset": str(begin), "queueEnd": str(end), **ext}
    reply = reader.ask(Request.READ_RANGE, **place)
    bodies = [part for part in reply.body.split(b"|") if part.isdigit()]
    return bodies, int(reply.ext["nextOffset"]), int(reply.ext["offsetMin"])


def test_a_range_is_answered_in_pieces_that_lead_to_its_end(reader: RemoteAdmin) -> None:
    _, following, first = ask(reader, 2, 8)
    assert (following, first) == (8, 0)
    _, following, _ = ask(reader, 2, 8, bytesMax="1")
    assert following == 3
    _, following, _ = ask(reader, 10, 20)
    assert following == 10


def test_tags_choose_and_units_say_where_records_lie(reader: RemoteAdmin) -> None:
    place = {"topic": "orders", "queueId": "0", "queueOffset": "0", "queueEnd": "10"}
    all_of_it = reader.ask(Request.READ_RANGE, **place).body
    some = reader.ask(Request.READ_RANGE, **place, tags=str(tag_hash("t1"))).body
    assert 0 < len(some) < len(all_of_it)
    units = reader.ask(Request.READ_RANGE, **place, units="true")
    assert len(units.body) == 10 * UNIT_BYTES and units.ext["nextOffset"] == "10"
    reply = reader.reply(Request.READ_RANGE, **place, tags=",".join(["1"] * (TAGS_MAX + 1)))
    assert reply.code == Response.SYSTEM_ERROR


def test_what_is_gone_is_reported_and_another_topic_of_the_name_refused(reader: RemoteAdmin, tables: Any) -> None:
    tables.bounds[tables.topic("orders").queues[0]] = QueueBounds(4, 10)
    assert ask(reader, 0, 10) == ([], 4, 4)
    place = {"topic": "orders", "queueId": "0", "queueOffset": "4", "queueEnd": "10"}
    assert reader.ask(Request.READ_RANGE, **place, born=str(BORN)).body
    assert type(reader.fail(Request.READ_RANGE, **place, born="17")) is TopicNotFound
    assert type(reader.fail(Request.READ_RANGE, **{**place, "topic": "none"})) is TopicNotFound
    assert reader.reply(Request.READ_RANGE, **{**place, "queueId": "2"}).code == Response.SYSTEM_ERROR


def test_a_topic_says_what_its_queues_hold_and_which_one_it_is(reader: RemoteAdmin, settings: BrokerSettings) -> None:
    settings.store_identity = "cafe"
    body = msgspec.json.decode(reader.ask(Request.DESCRIBE_QUEUES, topic="orders").body)
    assert body == {"broker": settings.broker_name, "identity": "cafe", "born": BORN, "queues": [[0, 10], [0, 0]]}


def test_a_topic_that_is_not_readable_is_not_read_this_way_either(reader: RemoteAdmin, tables: Any) -> None:
    tables.topic_put("orders", read_queues=2, write_queues=2, perm=2, flags=0, kind=0)
    for code in (Request.DESCRIBE_QUEUES, Request.READ_RANGE):
        reply = reader.reply(code, topic="orders", queueId="0", queueOffset="0", queueEnd="1")
        assert reply.code == Response.NO_PERMISSION
