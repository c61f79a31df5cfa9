"""Delayed messages on their way in: which are, where they wait, and what their properties say meanwhile."""

import pytest

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.records.property_text import pairs_of, property_of, with_properties
from shmq.daemon.broker.timers.route import route_of
from shmq.delay_levels import SCHEDULE_TOPIC, DelayLevels
from shmq.errors import UsageError
from shmq.shm.core import UNIT_DELAY_BASE
from tests.tables.rows import every_row

LEVELS = DelayLevels()


def record(text: bytes, sys_flag: int = 0) -> NewRecord:
    return NewRecord(b"body", properties=text, sys_flag=sys_flag, reconsume_times=3)


@pytest.mark.parametrize("text", [b"", b"KEYS\x01a\x02", b"DELAY\x010\x02", b"DELAY\x01-3\x02", b"XDELAY\x013\x02"])
def test_a_message_without_a_level_is_stored_as_it_is(text: bytes) -> None:
    given = record(text)
    assert route_of(given, "orders", 2, LEVELS) == ("orders", 2, given)


def test_a_delayed_message_waits_in_the_queue_of_its_level_and_knows_where_it_belongs() -> None:
    route = route_of(record(b"DELAY\x013\x02TAGS\x01paid"), "orders", 2, LEVELS)
    assert (route.topic, route.queue_id, route.is_delayed) == (SCHEDULE_TOPIC, 2, True)
    assert route.record.properties == b"DELAY\x013\x02TAGS\x01paid\x02REAL_TOPIC\x01orders\x02REAL_QID\x012\x02"
    assert route.record.tag_code == UNIT_DELAY_BASE + 10_000
    assert (route.record.body, route.record.reconsume_times) == (b"body", 3)


def test_a_level_above_the_highest_becomes_the_highest() -> None:
    route = route_of(record(b"DELAY\x01400\x02"), "orders", 0, LEVELS)
    assert route.queue_id == 17
    assert property_of(route.record.properties, "DELAY") == "18"


@pytest.mark.parametrize(("sys_flag", "delayed"), [(0, True), (1, True), (4, False), (8, True), (12, False)])
def test_only_what_belongs_to_a_queue_is_delayed(sys_flag: int, delayed: bool) -> None:
    assert route_of(record(b"DELAY\x011\x02", sys_flag), "orders", 0, LEVELS).is_delayed is delayed


@every_row("level", ["x", "1.5", "", "99999999999", "2147483648", "0x3", " 3"])
def test_a_delay_that_is_no_number_is_refused(level: str) -> None:
    text = b"DELAY\x01" + level.encode() + b"\x02"
    if not level:
        assert not route_of(record(text), "orders", 0, LEVELS).is_delayed  # a pair without value is no pair
        return
    with pytest.raises(UsageError) as raised:
        route_of(record(text), "orders", 0, LEVELS)
    assert raised.value.code == 1


def test_changing_properties_keeps_order_and_foreign_bytes_and_drops_the_crc() -> None:
    text = b"a\x01\xff\x02b\x012\x02\x01x\x02c\x01\x02a\x013\x02__CRC32#\x010123456789\x02"
    assert pairs_of(text) == {b"a": b"3", b"b": b"2"}
    assert with_properties(text, {"b": None, "z": "9"}) == b"a\x013\x02z\x019\x02"
    assert property_of(text, "a") == "3"
    assert property_of(text, "z") is None
    assert property_of(b"ba\x011", "a") is None
