"""Delivery of delayed messages: never early, in order, through restarts, refusals and clocks that are set."""

from collections.abc import Sequence
from typing import Any

import pytest

from shmq.daemon.broker.log import NewRecord, Storage
from shmq.daemon.broker.tables import QueueBounds, Topic
from shmq.daemon.broker.timers.delay import DelayService
from shmq.daemon.broker.timers.route import route_of
from shmq.daemon.logic.effects import Effect, Notify, Report, Wake
from shmq.daemon.logic.requests import Call, Connection
from shmq.delay_levels import SCHEDULE_GROUP, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import BrokerBusy, SegmentFull, ShmqError
from shmq.protocol.command import Command
from tests.broker.record_log import RecordLog

LEVELS = DelayLevels()
ARRIVED = 77  # the connection every arrival notifies


class Delaying:
    """A delay service, and a clock that runs for it and for the log; `skew` sets the log's clock."""

    def __init__(self, tables: Any) -> None:
        self.tables = tables
        self.log = RecordLog(tables)
        for name, queues in ((SCHEDULE_TOPIC, LEVELS.count), ("orders", 4)):
            tables.topic_put(name, read_queues=queues, write_queues=queues, perm=6, flags=0, kind=0)
        self.now_ms = 5_000_000
        self.skew_ms = tables.clock - self.now_ms
        self.arrivals: list[int] = []
        tables.units = self.log.units
        self.start()

    def start(self) -> None:
        """Start as a new process, which knows only what the tables and the log hold."""
        self.service = DelayService(Storage(self.tables, self.log, self.arrived), LEVELS)

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        self.arrivals += queues
        return [Notify(ARRIVED, Command(code=0, opaque=0))]

    def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.tables.clock = now_ms + self.skew_ms

    def send(self, body: bytes, level: int, *, queue_id: int = 1, text: bytes = b"", **fields: Any) -> None:
        record = NewRecord(body, b"DELAY\x01%d\x02" % level + text, **fields)
        route = route_of(record, "orders", queue_id, LEVELS)
        self.log.append(self.topic(route.topic), route.queue_id, route.record)

    def topic(self, name: str) -> Topic:
        topic = self.tables.topic(name)
        assert topic is not None
        return topic

    def tick(self) -> list[Effect]:
        return list(self.service.tick(self.now_ms))

    def run(self, until_ms: int) -> dict[int, list[bytes]]:
        """Tick each second and wake when asked, up to a time; returns what arrived in queue 1 by time."""
        seen = {}
        wake: int | None = None
        tick = self.now_ms
        while self.now_ms <= until_ms:
            before = len(self.delivered())
            effects = self.tick() if self.now_ms >= tick else list(self.service.woken(self.now_ms))
            if self.now_ms >= tick:
                tick = self.now_ms + 1000
            if got := self.delivered()[before:]:
                seen[self.now_ms] = got
            wake = min((self.now_ms + e.after_ms for e in effects if isinstance(e, Wake)), default=None)
            self.at(min(tick, wake or tick))
        return seen

    def delivered(self, queue_id: int = 1) -> list[bytes]:
        return self.log.bodies(self.topic("orders"), queue_id)

    def stamps(self, queue_id: int = 1) -> list[int]:
        held = self.log.records.get(self.topic("orders").queues[queue_id], [])
        return [int.from_bytes(data[56:64], "big") for data, _, _ in held]


@pytest.fixture
def delaying(tables: Any) -> Delaying:
    return Delaying(tables)


@pytest.mark.parametrize("level", range(1, 19))
def test_a_message_is_delivered_at_its_due_time_and_not_before(delaying: Delaying, level: int) -> None:
    begin = delaying.now_ms
    delaying.tick()
    delaying.at(begin + 137)
    delaying.send(b"x", level)
    due = begin + 137 + LEVELS.delay_ms(level)
    assert delaying.run(due + 3000) == {due: [b"x"]}


@pytest.mark.parametrize("age_ms", [0, 1, 5])
@pytest.mark.parametrize("level", [1, 3])
def test_no_copy_is_stamped_before_it_is_due_however_old_the_clock_of_an_append_is(
    delaying: Delaying, level: int, age_ms: int
) -> None:
    delaying.tables.stamp_age_ms = age_ms
    due = []
    for number in range(50):
        delaying.at(delaying.now_ms + 3)
        due.append(delaying.tables.stamp_ms + LEVELS.delay_ms(level))
        delaying.send(b"%d" % number, level)
    delaying.run(delaying.now_ms + 15_000)
    assert delaying.stamps() == due


def test_what_is_delivered_is_the_message_as_it_was_sent(delaying: Delaying) -> None:
    host = bytes((1, 2, 3, 4, 0, 0, 0, 9))
    delaying.send(
        b"body", 1, text=b"TAGS\x01t\x02", flag=3, sys_flag=1, born_ms=44, born_host=host, reconsume_times=2, queue_id=3
    )
    delaying.run(delaying.now_ms + 2000)
    (copy,) = delaying.log.stored(delaying.topic("orders"), 3)
    assert (copy.body, copy.flag, copy.sys_flag, copy.born_ms, copy.born_host) == (b"body", 3, 1, 44, host)
    assert (copy.reconsume_times, copy.tag_code) == (2, None)
    # As in RocketMQ the copy still says what it waited for; it is not delayed again.
    assert copy.properties.startswith(b"DELAY\x011\x02TAGS\x01t\x02REAL_TOPIC\x01orders\x02REAL_QID\x013\x02")


def test_requests_that_wait_for_the_queue_are_answered(delaying: Delaying) -> None:
    delaying.send(b"x", 1)
    delaying.at(delaying.now_ms + 1000)
    effects = delaying.tick()
    assert delaying.arrivals == [delaying.topic("orders").queues[1]]
    assert Notify(ARRIVED, Command(code=0, opaque=0)) in effects


def test_a_level_keeps_its_order_and_levels_do_not_wait_for_each_other(delaying: Delaying) -> None:
    begin = delaying.now_ms
    for number in range(5):
        delaying.at(begin + number * 10)
        delaying.send(b"slow %d" % number, 2)
        delaying.send(b"fast %d" % number, 1)
    delaying.run(begin + 7000)
    fast, slow = [b"fast %d" % n for n in range(5)], [b"slow %d" % n for n in range(5)]
    assert delaying.delivered() == fast + slow


def test_many_due_at_once_are_delivered_in_portions(delaying: Delaying) -> None:
    for number in range(1200):
        delaying.send(b"%d" % number, 1)
    delaying.at(delaying.now_ms + 1000)
    effects = delaying.tick()
    assert 0 < len(delaying.delivered()) < 1200
    assert Wake(1) in effects
    delaying.run(delaying.now_ms + 100)
    assert delaying.delivered() == [b"%d" % number for number in range(1200)]


def test_nothing_is_due_twice_after_a_restart(delaying: Delaying) -> None:
    begin = delaying.now_ms
    for number in range(10):
        delaying.at(begin + 300 * number)
        delaying.send(b"%d" % number, 1)
    for number in range(8):
        delaying.at(begin + 1000 + 500 * number)
        delaying.start()
        delaying.tick()
    assert delaying.delivered() == [b"%d" % number for number in range(10)]


def test_what_was_due_while_no_broker_ran_is_delivered_at_the_start(delaying: Delaying) -> None:
    delaying.send(b"x", 3)
    delaying.start()
    delaying.at(delaying.now_ms + 1_000_000)
    delaying.tick()
    assert delaying.delivered() == [b"x"]


@pytest.mark.parametrize(("error", "pause_ms"), [(SegmentFull("busy"), 1000), (BrokerBusy("busy"), 20)])
def test_a_copy_that_cannot_be_stored_stops_its_level_for_a_while_and_is_not_lost(
    delaying: Delaying, error: ShmqError, pause_ms: int
) -> None:
    delaying.send(b"a", 1)
    delaying.send(b"b", 1)
    begin = delaying.now_ms + 1000
    delaying.at(begin)
    delaying.log.error = error
    (report,) = (effect for effect in delaying.tick() if isinstance(effect, Report))
    assert "busy" in report.text
    delaying.log.error = None
    delaying.at(begin + pause_ms - 1)
    delaying.tick()
    assert delaying.delivered() == []
    delaying.at(begin + pause_ms)
    delaying.tick()
    assert delaying.delivered() == [b"a", b"b"]


def test_a_message_for_a_topic_that_is_gone_is_dropped_and_said(delaying: Delaying) -> None:
    delaying.send(b"a", 1)
    delaying.tables.topic_delete("orders")
    delaying.at(delaying.now_ms + 1000)
    (report,) = delaying.tick()
    assert isinstance(report, Report) and "'orders'" in report.text
    delaying.tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
    delaying.at(delaying.now_ms + 5000)
    assert list(delaying.tick()) == []
    assert delaying.delivered() == []


def test_a_queue_that_is_gone_is_replaced_by_one_of_the_topic(delaying: Delaying) -> None:
    delaying.send(b"a", 1, queue_id=3)
    delaying.tables.topic_delete("orders")
    delaying.tables.topic_put("orders", read_queues=2, write_queues=2, perm=6, flags=0, kind=0)
    delaying.at(delaying.now_ms + 1000)
    delaying.tick()
    assert delaying.delivered() == [b"a"]


def test_records_that_retention_took_are_passed_over(delaying: Delaying) -> None:
    for number in range(5):
        delaying.send(b"%d" % number, 1)
    queue = delaying.topic(SCHEDULE_TOPIC).queues[0]
    delaying.tables.bounds[queue] = QueueBounds(3, 5)
    delaying.at(delaying.now_ms + 1000)
    delaying.tick()
    assert delaying.delivered() == [b"3", b"4"]


@pytest.mark.parametrize("back_ms", [500, 10_000, 3_600_000, 1 << 40])
def test_a_clock_set_back_delays_a_message_by_little_and_never_brings_it_early(
    delaying: Delaying, back_ms: int
) -> None:
    begin = delaying.now_ms
    delaying.send(b"before", 3)
    delaying.tick()
    delaying.at(begin + 2000)
    delaying.skew_ms -= back_ms
    seen = delaying.run(begin + 14_000)
    ((when, bodies),) = seen.items()
    assert bodies == [b"before"]
    assert begin + 10_000 <= when <= begin + 10_000 + min(back_ms, 2000)


def test_a_clock_set_forward_makes_due_what_it_says_is_due(delaying: Delaying) -> None:
    delaying.send(b"x", 18)
    delaying.tick()
    delaying.skew_ms += 7_200_000
    delaying.at(delaying.now_ms + 1000)
    delaying.tick()
    assert delaying.delivered() == [b"x"]


def test_messages_stored_after_the_clock_was_set_back_wait_for_their_delay(delaying: Delaying) -> None:
    """The log's store times never decrease: they stand still until the clock has caught up."""
    delaying.send(b"x", 2)
    delaying.tick()
    delaying.at(delaying.now_ms + 1000)
    delaying.skew_ms -= 3_600_000
    delaying.tables.clock += 3_600_000  # what the log stamps
    begin = delaying.now_ms
    delaying.send(b"after", 2)
    seen = delaying.run(begin + 9000)
    assert [body for bodies in seen.values() for body in bodies] == [b"x", b"after"]
    (when,) = [when for when, bodies in seen.items() if b"after" in bodies]
    assert begin + 5000 <= when <= begin + 7000


def test_many_sightings_are_kept_coarsely(delaying: Delaying) -> None:
    begin = delaying.now_ms
    for number in range(6000):
        delaying.at(begin + number)
        delaying.send(b"x", 18)
        delaying.tick()
    (level,) = delaying.service._levels.values()
    assert len(level.sightings) <= 4096
    assert level.sightings[-1][0] == 6000


def test_the_progress_is_answered_as_a_slave_expects_it(delaying: Delaying) -> None:
    delaying.send(b"x", 2)
    delaying.at(delaying.now_ms + 5000)
    delaying.tick()
    handler = delaying.service.handlers()[45]
    answer = handler(Call(Connection(1, None, 0), Command(code=45, opaque=0), 0))
    assert answer is not None
    assert answer.body.startswith(b'{"offsetTable":{1:0,2:1,3:0,')
    assert delaying.tables.group(SCHEDULE_GROUP) is not None


def test_a_wake_that_comes_early_is_asked_for_again(delaying: Delaying) -> None:
    delaying.send(b"x", 1)
    delaying.at(delaying.now_ms + 400)
    assert delaying.tick() == [Wake(600)]
    assert list(delaying.service.woken(delaying.now_ms + 599)) == [Wake(1)]
    delaying.at(delaying.now_ms + 600)
    delaying.service.woken(delaying.now_ms)
    assert delaying.delivered() == [b"x"]
    assert list(delaying.service.woken(delaying.now_ms)) == []


def test_an_idle_service_touches_nothing(tables: Any) -> None:
    service = DelayService(Storage(tables, RecordLog(tables), lambda queues, now_ms: ()), LEVELS)
    assert list(service.tick(0)) == []
    tables.topic_put(SCHEDULE_TOPIC, read_queues=18, write_queues=18, perm=6, flags=0, kind=0)
    assert list(service.tick(1000)) == []
    assert tables.groups() == []
