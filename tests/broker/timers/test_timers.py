"""Timed messages on a virtual clock: never early, in order, through restarts, kills, refusals, recalls and clocks."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from shmq.daemon.broker.log import NewRecord, Storage
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds, Topic
from shmq.daemon.broker.timers import timers
from shmq.daemon.broker.timers.route import recall_handle, timed_route
from shmq.daemon.broker.timers.timers import TimerService
from shmq.daemon.logic.effects import Effect, Report, Wake
from shmq.daemon.logic.requests import Answer, Call, Connection
from shmq.errors import BrokerBusy, UsageError
from shmq.properties import PROPERTIES_BYTES_MAX, parse_properties
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.shm.unit import Unit
from shmq.timing import (
    DELIVER_MS,
    OUT_MS,
    TIMER_GROUPS,
    TIMER_TOPIC,
    RecallHandle,
    cancel_key,
    code_of,
    code_time,
    due_ms,
)
from tests.broker.record_log import RecordLog
from tests.tables.rows import every_row

HOUR = 3_600_000
DAY = 24 * HOUR
MAX_DELAY_MS = 30 * DAY


class Timing:
    """A timer service over lists, and one clock for it and the log; `skew` sets the log's clock."""

    def __init__(self, tables: Any, settings: BrokerSettings) -> None:
        self.tables = tables
        self.settings = settings
        settings.timer_max_delay_seconds = MAX_DELAY_MS // 1000
        self.log = RecordLog(tables)
        for name, queues in ((TIMER_TOPIC, 1), ("orders", 4)):
            tables.topic_put(name, read_queues=queues, write_queues=queues, perm=6, flags=0, kind=0)
        self.now_ms = 7_000_000
        self.skew_ms = tables.clock - self.now_ms
        self.lost_codes = False  # as after a rebuild of the queues from the log
        tables.units = self.units
        tables.store_ms = lambda queue, offset: self.records(queue)[offset][0] if offset >= 0 else -1
        self.arrivals: list[int] = []
        self.reports: list[str] = []
        self.start()

    def start(self) -> None:
        """Start as a new process, which knows only what the tables and the log hold."""
        storage = Storage(self.tables, self.log, self.arrived)
        self.service = TimerService(storage, self.settings, when_durable=lambda call, answer, end, *topics: answer)

    def arrived(self, queues: Sequence[int], now_ms: int) -> Sequence[Effect]:
        self.arrivals += queues
        return self.service.arrived(queues, now_ms)

    def records(self, queue: int) -> list[tuple[int, NewRecord]]:
        held = self.log.records.get(queue, [])
        return [(int.from_bytes(data[56:64], "big"), record) for data, record, _ in held]

    def units(self, queue: int, first: int, count: int) -> list[Unit]:
        bounds = self.tables.queue_bounds(queue)
        held = self.log.records.get(queue, [])
        return [
            Unit(
                int.from_bytes(held[at][0][28:36], "big"),
                len(held[at][0]),
                77 if self.lost_codes else held[at][1].tag_code or 0,
            )
            for at in range(max(first, bounds.offset_min), min(first + count, bounds.offset_max))
        ]

    @property
    def queue(self) -> int:
        return self.topic(TIMER_TOPIC).queues[0]

    def topic(self, name: str) -> Topic:
        topic = self.tables.topic(name)
        assert topic is not None
        return topic  # type: ignore[no-any-return]

    def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.tables.clock = now_ms + self.skew_ms

    def clock(self) -> int:
        return self.tables.clock  # type: ignore[no-any-return]

    def send(self, body: bytes, deliver_ms: int, *, queue_id: int = 1, text: bytes = b"", **fields: Any) -> str | None:
        """Store a message that is due on the log's clock; returns its recall handle."""
        record = NewRecord(body, b"TIMER_DELIVER_MS\x01%d\x02UNIQ_KEY\x01%s\x02" % (deliver_ms, body) + text, **fields)
        route = timed_route(record, "orders", queue_id, now_ms=self.clock(), max_delay_ms=MAX_DELAY_MS)
        assert route.topic == TIMER_TOPIC
        self.log.append(self.topic(route.topic), route.queue_id, route.record)
        return recall_handle(route, "orders", self.settings.broker_name)

    def recall(self, handle: str | None, topic: str = "orders") -> Answer:
        command = Command(code=Request.RECALL_MESSAGE, opaque=1, ext={"topic": topic, "recallHandle": handle or ""})
        answer = self.service.handlers()[Request.RECALL_MESSAGE](Call(Connection(1, None, 0), command, self.now_ms))
        assert answer is not None
        return answer

    def run(self, until_ms: int) -> dict[int, list[bytes]]:
        """Tick each second and wake when asked, up to a time; returns what arrived by time (on the log's clock)."""
        seen: dict[int, list[bytes]] = {}
        tick = self.now_ms
        while self.now_ms <= until_ms:
            before = self.delivered_count
            is_tick = self.now_ms >= tick
            effects = list(self.service.tick(self.now_ms) if is_tick else self.service.woken(self.now_ms))
            self.reports += [effect.text for effect in effects if isinstance(effect, Report)]
            tick = self.now_ms + 1000 if is_tick else tick
            if self.delivered_count > before:
                seen.setdefault(self.clock(), []).extend(self.delivered()[before:])
            wake = min((self.now_ms + e.after_ms for e in effects if isinstance(e, Wake)), default=tick)
            self.at(min(tick, wake))
        return seen

    @property
    def delivered_count(self) -> int:
        return sum(len(self.log.records.get(queue, ())) for queue in self.topic("orders").queues)

    def delivered(self) -> list[bytes]:
        """What is in the queues of the real topic, in the order of storing."""
        found = [
            (int.from_bytes(data[28:36], "big"), record.body)
            for queue in self.topic("orders").queues
            for data, record, _ in self.log.records.get(queue, [])
        ]
        return [body for _, body in sorted(found)]


@pytest.fixture
def timing(tables: Any, settings: BrokerSettings) -> Timing:
    return Timing(tables, settings)


@pytest.mark.parametrize("delay_ms", [1, 9, 10, 999, 1000, 1001, 61_234, HOUR, 5 * HOUR + 1, DAY, 3 * DAY, 10 * DAY])
def test_a_message_is_delivered_at_its_due_time_and_not_before(timing: Timing, delay_ms: int) -> None:
    timing.run(timing.now_ms + 100)
    due = timing.clock() + delay_ms
    timing.send(b"x", due)
    end = timing.now_ms + delay_ms
    if delay_ms > DAY:  # what passes in between passes in hours
        while timing.now_ms < end - 2 * HOUR:
            timing.at(timing.now_ms + HOUR)
            timing.service.tick(timing.now_ms)
            timing.service.tick(timing.now_ms)
        assert timing.delivered() == []
    seen = timing.run(end + 3000)
    ((when, bodies),) = seen.items()
    assert bodies == [b"x"]
    assert due <= when <= due + 10  # 10 ms pass between two looks at what others store


@pytest.mark.parametrize("age_ms", [0, 1, 5])
def test_no_copy_is_stamped_before_it_is_due_however_old_the_clock_of_an_append_is(timing: Timing, age_ms: int) -> None:
    timing.tables.stamp_age_ms = age_ms
    due = {b"%d" % number: timing.clock() + 100 + 7 * number for number in range(50)}
    for body, deliver_ms in due.items():
        timing.send(body, deliver_ms)
    timing.run(timing.now_ms + 2000)
    stamps = {record.body: stamp for stamp, record in timing.records(timing.topic("orders").queues[1])}
    assert stamps == due


def test_messages_leave_in_the_order_of_their_times_whatever_order_they_came_in(timing: Timing) -> None:
    begin = timing.clock()
    times = [begin + 1 + step for step in random.Random(1).sample(range(3 * HOUR), 700)]
    for due in times:
        timing.send(b"%d" % due, due)
    seen = timing.run(timing.now_ms + 3 * HOUR + 10_000)
    assert timing.delivered() == [b"%d" % due for due in sorted(times)]
    assert all(int(body) <= when <= int(body) + 20 for when, bodies in seen.items() for body in bodies)
    assert timing.service.pending == 0


def test_what_is_delivered_is_the_message_as_it_was_sent_and_says_that_it_waited(timing: Timing) -> None:
    host = bytes((1, 2, 3, 4, 0, 0, 0, 9))
    begin = timing.clock()
    timing.send(b"body", begin + 500, text=b"TAGS\x01t\x02", flag=3, sys_flag=1, born_ms=44, born_host=host, queue_id=3)
    timing.run(timing.now_ms + 2000)
    (copy,) = timing.log.stored(timing.topic("orders"), 3)
    assert (copy.body, copy.flag, copy.sys_flag, copy.born_ms, copy.born_host) == (b"body", 3, 1, 44, host)
    assert copy.tag_code is None
    properties = parse_properties(copy.properties.decode())
    assert properties.keys() >= {"TAGS", DELIVER_MS, OUT_MS, "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "3")
    again = timed_route(copy, "orders", 3, now_ms=begin - HOUR, max_delay_ms=MAX_DELAY_MS)
    assert again.topic == "orders"  # it does not wait a second time


def test_requests_that_wait_for_the_queue_are_answered(timing: Timing) -> None:
    timing.send(b"x", timing.clock() + 50)
    timing.run(timing.now_ms + 100)
    assert timing.arrivals == [timing.topic("orders").queues[1]]


def test_an_arrival_is_read_at_once_and_the_next_ones_after_a_rest(timing: Timing) -> None:
    timing.service.tick(timing.now_ms)
    assert timing.service.wanted == {timing.queue: 0}
    timing.send(b"a", timing.clock() + 5)
    effects = timing.service.arrived([timing.queue], timing.now_ms)
    assert Wake(5) in effects
    assert timing.service.wanted == {}
    timing.send(b"b", timing.clock() + 5)
    assert list(timing.service.arrived([timing.queue], timing.now_ms)) == []
    timing.at(timing.now_ms + 5)
    timing.service.woken(timing.now_ms)
    assert timing.delivered() == [b"a", b"b"]


def test_nothing_is_delivered_twice_after_an_orderly_restart_at_any_time(timing: Timing) -> None:
    begin = timing.clock()
    for number in range(40):
        timing.send(b"%d" % number, begin + 100 + (number * 7919) % 4000)
    for _ in range(50):
        timing.start()
        timing.run(timing.now_ms + 90)
    assert sorted(timing.delivered(), key=int) == [b"%d" % number for number in range(40)]


@pytest.mark.parametrize("seed", range(12))
def test_killed_between_any_two_steps_every_message_is_copied_exactly_once(timing: Timing, seed: int) -> None:
    """I11: every write of delivery, to the log or to a word of progress, may be the last one of a process."""

    class Killed(BaseException):
        pass

    dice = random.Random(seed)
    begin = timing.clock()
    expected = set[bytes]()
    kills = 0
    for turn in range(60):
        for _ in range(dice.randrange(4)):
            body = b"%d" % len(expected)
            expected.add(body)
            timing.send(body, timing.clock() + 1 + dice.choice((0, 0, 3, 40, 700)))
        steps = dice.randrange(8)
        append, commit = timing.log.append, timing.tables.set_committed

        def step(action: Any, *values: Any) -> Any:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise Killed
            result = action(*values)
            return result

        timing.log.append = lambda *values, append=append: step(append, *values)  # type: ignore[method-assign,assignment]
        timing.tables.set_committed = lambda *values, commit=commit: step(commit, *values)
        try:
            timing.run(timing.now_ms + dice.choice((1, 50, 900)))
        except Killed:
            kills += 1
            timing.service._is_running = False
        timing.log.append, timing.tables.set_committed = append, commit  # type: ignore[method-assign]
        timing.start()
        del turn
    timing.run(timing.now_ms + 3000)
    got = timing.delivered()
    assert sorted(got) == sorted(expected)
    assert kills > 5
    assert begin < timing.clock()


def test_a_mixture_of_older_and_newer_words_calls_nothing_delivered_that_was_not(timing: Timing) -> None:
    """The keeper reads the words one after the other while delivery goes on."""
    begin = timing.clock()
    history: list[tuple[dict[int, int], list[bytes]]] = []
    for number in range(12):
        timing.send(b"%d" % number, begin + 10 + number // 3)
    slots = [timing.tables.offset_put(timing.tables.group_put(group), timing.queue) for group in TIMER_GROUPS]
    commit = timing.tables.set_committed

    def note(slot: int, value: int) -> None:
        commit(slot, value)
        history.append(({slot: timing.tables.committed(slot) for slot in slots}, timing.delivered()))

    timing.tables.set_committed = note
    timing.run(timing.now_ms + 500)
    timing.tables.set_committed = commit
    assert len(history) > 12
    dice = random.Random(3)
    for _ in range(300):
        first = dice.randrange(len(history))
        picks = sorted(dice.randrange(first, min(len(history), first + 6)) for _ in slots)
        dice.shuffle(picks)
        for slot, pick in zip(slots, picks, strict=True):
            timing.tables.progress[slot] = history[pick][0][slot]
        done = set(history[max(picks)][1])
        timing.start()
        timing.service.tick(timing.now_ms)
        again = set(timing.delivered()[12:])
        assert done | again == {b"%d" % number for number in range(12)}
        for queue in timing.topic("orders").queues:
            timing.log.records[queue] = timing.log.records.get(queue, [])[:12]


def test_a_message_that_comes_late_is_delivered_at_once_and_survives_a_kill(timing: Timing) -> None:
    begin = timing.clock()
    timing.send(b"early", begin + 50)
    timing.run(timing.now_ms + 1000)
    record = NewRecord(b"late", b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01orders\x02REAL_QID\x011\x02" % (begin - 1000))
    record.tag_code = begin + 20
    timing.log.append(timing.topic(TIMER_TOPIC), 0, record)
    timing.start()
    timing.run(timing.now_ms + 1000)
    timing.start()
    timing.run(timing.now_ms + 1000)
    assert timing.delivered() == [b"early", b"late"]


def test_what_was_due_while_no_broker_ran_is_delivered_at_the_start(timing: Timing) -> None:
    timing.send(b"x", timing.clock() + 1000)
    timing.at(timing.now_ms + DAY)
    timing.start()
    timing.run(timing.now_ms + 10)
    assert timing.delivered() == [b"x"]


def test_a_copy_that_cannot_be_stored_stops_delivery_for_a_second_and_is_not_lost(timing: Timing) -> None:
    timing.send(b"a", timing.clock() + 10)
    timing.send(b"b", timing.clock() + 11)
    timing.log.error = BrokerBusy("busy")
    timing.run(timing.now_ms + 500)
    assert timing.delivered() == []
    assert any("busy" in report for report in timing.reports)
    timing.log.error = None
    timing.run(timing.now_ms + 1500)
    assert timing.delivered() == [b"a", b"b"]


@pytest.mark.parametrize("room", [0, 1, 20, 40, 61, 62, 80])
def test_properties_that_leave_no_room_for_notes_keep_no_message_from_its_time(timing: Timing, room: int) -> None:
    due = timing.clock() + 10
    spare = PROPERTIES_BYTES_MAX - 21 - room
    bare = timed_route(
        NewRecord(b"", f"{DELIVER_MS}\x01{due}\x02UNIQ_KEY\x01full\x02".encode()),
        "orders",
        1,
        now_ms=0,
        max_delay_ms=1 << 50,
    )
    value = "v" * (spare - len(bare.record.properties) - len("own\x01\x02"))
    timing.send(b"full", due, text=f"own\x01{value}\x02".encode())
    (waiting,) = timing.log.stored(timing.topic(TIMER_TOPIC), 0)
    assert len(waiting.properties) == spare
    timing.send(b"next", due + 1)
    timing.run(timing.now_ms + 100)
    assert timing.delivered() == [b"full", b"next"]
    (copy, _) = timing.log.stored(timing.topic("orders"), 1)
    assert parse_properties(copy.properties.decode())["own"] == value
    assert len(copy.properties) <= PROPERTIES_BYTES_MAX - 21


def test_a_message_for_a_topic_that_is_gone_is_dropped_and_said(timing: Timing) -> None:
    timing.send(b"a", timing.clock() + 10)
    timing.tables.topic_delete("orders")
    timing.tables.topic_put("other", read_queues=1, write_queues=1, perm=6, flags=0, kind=0)
    timing.tables.all_topics["orders"] = timing.topic("other")._replace(queues=())
    timing.run(timing.now_ms + 100)
    assert any("'orders'" in report for report in timing.reports)
    assert timing.service.pending == 0


def test_many_due_at_once_are_delivered_in_portions(timing: Timing) -> None:
    due = timing.clock() + 100
    for number in range(1000):
        timing.send(b"%d" % number, due)
    timing.at(timing.now_ms + 100)
    effects = timing.service.tick(timing.now_ms)
    assert 0 < len(timing.delivered()) < 1000
    assert Wake(1) in effects
    timing.run(timing.now_ms + 100)
    assert timing.delivered() == [b"%d" % number for number in range(1000)]


def test_a_queue_longer_than_one_read_is_known_before_anything_is_delivered(
    timing: Timing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "_UNITS_PER_READ", 3)
    begin = timing.clock()
    for number in range(20):
        timing.send(b"%d" % number, begin + 1000 - number)
    timing.run(timing.now_ms + 100)
    timing.at(timing.now_ms + 2000)
    timing.start()
    timing.service.tick(timing.now_ms)
    assert timing.delivered() == []
    timing.run(timing.now_ms + 100)
    assert timing.delivered() == [b"%d" % number for number in range(19, -1, -1)]


# ---- clocks ------------------------------------------------------------------------------------------------------


def test_a_clock_set_forward_makes_due_what_it_says_is_due(timing: Timing) -> None:
    timing.send(b"x", timing.clock() + 5 * HOUR)
    timing.run(timing.now_ms + 100)
    timing.skew_ms += 5 * HOUR
    timing.at(timing.now_ms)
    timing.run(timing.now_ms + 1000)
    assert timing.delivered() == [b"x"]


@pytest.mark.parametrize("back_ms", [500, 10_000, HOUR, 30 * DAY])
def test_a_clock_set_back_never_brings_a_message_early(timing: Timing, back_ms: int) -> None:
    due = timing.clock() + 10_000
    timing.send(b"x", due)
    timing.run(timing.now_ms + 5000)
    timing.skew_ms -= back_ms
    timing.at(timing.now_ms)
    after = timing.clock() + 2000
    timing.send(b"after", after)
    seen = timing.run(timing.now_ms + min(back_ms, 2 * HOUR) + 6000)
    for when, bodies in seen.items():
        for body in bodies:
            assert when >= {b"x": due, b"after": after}[body]
    assert b"after" in timing.delivered()


def test_what_is_sent_after_the_clock_was_set_back_is_delivered_by_the_new_clock_once(timing: Timing) -> None:
    timing.send(b"before", timing.clock() + 100)
    timing.run(timing.now_ms + 1000)
    timing.skew_ms -= HOUR
    timing.at(timing.now_ms)
    for number in range(5):
        timing.send(b"%d" % number, timing.clock() + 1000 + 100 * number)
    timing.run(timing.now_ms + 3000)
    timing.start()
    timing.run(timing.now_ms + 3000)
    assert timing.delivered() == [b"before", b"0", b"1", b"2", b"3", b"4"]


# ---- records older than the log keeps them -------------------------------------------------------------------------


def test_a_message_that_waits_longer_than_files_are_kept_is_stored_anew_and_delivered_once(timing: Timing) -> None:
    begin = timing.clock()
    due = begin + 10 * DAY + 123
    timing.send(b"x", due)
    timing.send(b"soon", begin + 1000)
    for hour in range(10 * 24):
        timing.at(timing.now_ms + HOUR)
        if hour % 5 == 0:
            timing.start()
        for _ in range(4):
            timing.service.tick(timing.now_ms)
        kept = sum(1 for store_ms, _ in timing.records(timing.queue) if store_ms >= timing.clock() - 72 * HOUR)
        count = len(timing.records(timing.queue))
        timing.tables.bounds[timing.queue] = QueueBounds(count - kept, count)  # retention
    assert timing.delivered() == [b"soon"]
    seen = timing.run(timing.now_ms + 2000)
    ((when, bodies),) = seen.items()
    assert bodies == [b"x"] and due <= when <= due + 10
    (copy,) = [record for record in timing.log.stored(timing.topic("orders"), 1) if record.body == b"x"]
    assert parse_properties(copy.properties.decode())["TIMER_ROLL_TIMES"] == "4"


def test_units_that_a_rebuild_wrote_say_no_time_and_the_records_do(timing: Timing) -> None:
    begin = timing.clock()
    timing.send(b"a", begin + 1500)
    handle = timing.send(b"b", begin + 1600)
    timing.run(timing.now_ms + 100)
    assert timing.recall(handle).code == Response.SUCCESS
    timing.lost_codes = True
    timing.start()
    seen = timing.run(timing.now_ms + 3000)
    ((when, bodies),) = seen.items()
    assert bodies == [b"a"] and begin + 1500 <= when <= begin + 1510


def test_what_is_no_timed_message_does_no_harm(timing: Timing) -> None:
    for properties in (b"", b"TIMER_OUT_MS\x01x\x02", b"REAL_TOPIC\x01orders\x02"):
        timing.log.append(timing.topic(TIMER_TOPIC), 0, NewRecord(b"junk", properties))
    timing.send(b"x", timing.clock() + 100)
    timing.run(timing.now_ms + 200)
    assert timing.delivered() == [b"x"]


# ---- recall ------------------------------------------------------------------------------------------------------


def test_a_recalled_message_is_never_delivered_even_after_restarts(timing: Timing) -> None:
    begin = timing.clock()
    handles = [timing.send(b"%d" % number, begin + 5000) for number in range(4)]
    timing.run(timing.now_ms + 100)
    for handle in handles[1:3]:
        answer = timing.recall(handle)
        assert (answer.code, answer.ext["MSG_REGION"]) == (Response.SUCCESS, "DefaultRegion")
    assert answer.ext["msgId"] == "2"
    for _ in range(12):
        timing.start()
        timing.run(timing.now_ms + 500)
    assert timing.delivered() == [b"0", b"3"]
    assert len(timing.service._cancelled) == 0 or timing.clock() < begin + 8000


def test_a_recall_survives_the_message_being_stored_anew(timing: Timing) -> None:
    handle = timing.send(b"x", timing.clock() + 9 * DAY)
    timing.run(timing.now_ms + 100)
    for hour in range(9 * 24 + 2):
        timing.at(timing.now_ms + HOUR)
        if hour == 100:
            assert timing.recall(handle).code == Response.SUCCESS
        if hour % 7 == 0:
            timing.start()
        for _ in range(3):
            timing.service.tick(timing.now_ms)
    assert timing.delivered() == []


def test_a_recall_is_refused_as_rocketmq_refuses_it(timing: Timing) -> None:
    begin = timing.clock()
    timing.send(b"x", begin + 5000)
    name = timing.settings.broker_name
    cases = [
        (
            "gone",
            RecallHandle("gone", name, begin + 5000, "x").encode(),
            Response.TOPIC_NOT_EXIST,
            "the topic[gone] not",
        ),
        ("orders", "%%%", Response.ILLEGAL_OPERATION, "handle is invalid"),
        ("orders", "", Response.ILLEGAL_OPERATION, "handle is invalid"),
        (
            "orders",
            RecallHandle("other", name, begin + 5000, "x").encode(),
            Response.ILLEGAL_OPERATION,
            "topic not match",
        ),
        (
            "orders",
            RecallHandle("orders", "b", begin + 5000, "x").encode(),
            Response.ILLEGAL_OPERATION,
            "not available",
        ),
        ("orders", RecallHandle("orders", name, begin, "x").encode(), Response.ILLEGAL_OPERATION, "timestamp invalid"),
        (
            "orders",
            RecallHandle("orders", name, begin + 99 * DAY, "x").encode(),
            Response.ILLEGAL_OPERATION,
            "timestamp",
        ),
    ]
    for topic, handle, code, words in cases:
        answer = timing.recall(handle, topic)
        assert answer.code == code
        assert words in (answer.remark or "")
    timing.run(timing.now_ms + 6000)
    assert timing.delivered() == [b"x"]
    assert len(timing.records(timing.queue)) == 1  # nothing was stored for them


# ---- the way in --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("TIMER_DELAY_SEC\x0110\x02", 10_001),
        ("TIMER_DELAY_MS\x0110\x02", 11),
        ("TIMER_DELIVER_MS\x011700000000777\x02", 777),
        ("TIMER_DELIVER_MS\x011700000000777\x02TIMER_DELAY_MS\x0110\x02", 11),
        ("TIMER_DELAY_MS\x0110\x02TIMER_DELAY_SEC\x017\x02", 7001),
    ],
)
def test_what_is_asked_for_becomes_the_units_time(text: str, expected_ms: int) -> None:
    now = 1_700_000_000_000
    route = timed_route(NewRecord(b"x", text.encode()), "orders", 2, now_ms=now, max_delay_ms=DAY)
    assert (route.topic, route.queue_id, route.is_delayed) == (TIMER_TOPIC, 0, True)
    assert route.record.tag_code == now + expected_ms
    properties = parse_properties(route.record.properties.decode())
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "2")
    out = int(properties[OUT_MS])
    assert out % 1000 == 0 and out < now + expected_ms <= out + 1000  # RocketMQ delivers a second after it
    found = due_ms(properties, now)
    assert found is not None and now + expected_ms <= found <= out + 1000


@every_row(
    "text",
    [
        "",
        "TIMER_DELIVER_MS\x011699999999999\x02",
        "TIMER_DELIVER_MS\x010\x02",
        "TIMER_DELAY_MS\x01-5\x02",
        "TIMER_DELAY_MS\x010\x02",
        "TIMER_OUT_MS\x011\x02TIMER_DELAY_MS\x0150\x02",
    ],
)
def test_what_is_due_before_now_does_not_wait(text: str) -> None:
    record = NewRecord(b"x", text.encode())
    route = timed_route(record, "orders", 2, now_ms=1_700_000_000_000, max_delay_ms=DAY)
    assert (route.topic, route.queue_id, route.record) == ("orders", 2, record)


@every_row(
    "text",
    [
        "TIMER_DELAY_SEC\x0186401\x02",
        "TIMER_DELIVER_MS\x019700000000777\x02",
        "TIMER_DELAY_MS\x01soon\x02",
        "TIMER_DELAY_MS\x01" + "9" * 30 + "\x02",
        "TIMER_DEL_UNIQKEY\x01orders+x\x02TIMER_DELAY_MS\x01-5\x02",
        "TIMER_DEL_UNIQKEY\x01other+x\x02TIMER_DELAY_MS\x0150\x02",
    ],
)
def test_what_is_too_far_ahead_or_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="max delay 86400000ms") as caught:
        timed_route(NewRecord(b"x", text.encode()), "orders", 2, now_ms=1_700_000_000_000, max_delay_ms=DAY)
    assert caught.value.code == Response.MESSAGE_ILLEGAL


def test_a_delay_level_counts_more_than_a_time() -> None:
    record = NewRecord(b"x", b"DELAY\x013\x02TIMER_DELAY_MS\x0150\x02")
    route = timed_route(record, "orders", 2, now_ms=1_700_000_000_000, max_delay_ms=DAY)
    assert route.topic == "orders"
    assert route.record.properties == b"DELAY\x013\x02"


def test_a_prepared_message_does_not_wait() -> None:
    record = NewRecord(b"x", b"TIMER_DELAY_MS\x0150\x02", sys_flag=4)
    assert timed_route(record, "orders", 2, now_ms=1, max_delay_ms=DAY).record is record


def test_a_handle_reads_back_and_names_the_message() -> None:
    handle = RecallHandle("orders", "broker-a", 1_700_000_000_777, "7F00")
    assert RecallHandle.decode(handle.encode()) == handle
    assert cancel_key("orders", "7F00") == "orders+7F00"
    for wrong in ("", "djE=", "é", "v1 a b 1 c"):
        with pytest.raises(UsageError):
            RecallHandle.decode(wrong)


def test_a_unit_says_a_time_or_none() -> None:
    assert code_time(code_of(1_700_000_000_777, cancels=True)) == 1_700_000_000_777
    for code in (0, -5, 77, 1 << 32, 1 << 62, -(1 << 63)):
        assert code_time(code) is None
