"""Staged rows: they count together and once, at whichever append a process dies, and a successor knows what was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from shmq.daemon.broker.log import Entry, NewRecord, Storage, Stored
from shmq.daemon.broker.rows import log as row_log
from shmq.daemon.broker.rows.rows import Rows
from shmq.daemon.broker.settings import BrokerSettings
from shmq.daemon.broker.tables import QueueBounds, Topic, committed_of
from shmq.daemon.logic.requests import Answer, Call, Connection
from shmq.delay_levels import DEFAULT_DELAY_LEVELS, SCHEDULE_TOPIC, DelayLevels
from shmq.errors import (
    BrokerBusy,
    MessageTooLarge,
    ProtocolError,
    SegmentFull,
    ShmqError,
    TopicNotFound,
    TransactionError,
    UsageError,
)
from shmq.properties import PROPERTIES_BYTES_MAX, parse_properties
from shmq.protocol.batch_body import entries_of, pack_entry
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.staged_rows import WHOLE, StagedPart
from shmq.protocol.system_topics.row_marks import MARKS_QUEUE, STAGED_GROUP, STAGED_TOPIC
from tests.broker.record_log import RecordLog

WHO = Connection(1, None, 0)


class Killed(Exception):
    """The broker's process is gone."""


class DyingLog(RecordLog):
    """A log whose broker dies before or behind its n-th record; a batch may be cut, as by a power cut."""

    lives = -1
    dies_behind = False

    def append(self, topic: Topic, queue_id: int, record: NewRecord) -> Stored:
        if self.lives == 0 and not self.dies_behind:
            raise Killed
        stored = super().append(topic, queue_id, record)
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        return stored

    def append_together(self, entries: Sequence[Entry]) -> list[Stored]:
        if 0 <= self.lives < len(entries) and not self.dies_behind:
            raise Killed  # all of them or none
        lives, self.lives = self.lives, -1
        stored = [self.append(*entry) for entry in entries]
        self.lives = lives - len(entries) if lives >= len(entries) else -1
        if 0 <= lives < len(entries):
            raise Killed
        return stored


class World:
    """A broker's staging over one log and one set of tables, which outlive it."""

    def __init__(self, tables: Any, settings: BrokerSettings) -> None:
        self.tables, self.settings = tables, settings
        self.log = DyingLog(tables)
        tables.units = self.log.units
        for name in ("orders", "other", "TBW102"):
            perm = 7 if name == "TBW102" else 6
            tables.topic_put(name, read_queues=2, write_queues=2, perm=perm, flags=0, kind=0)
        self.now_ms = 1_000_000
        self.start()

    def start(self) -> None:
        """Start as a new process, which knows only what the tables and the log hold."""
        self.log.lives = -1
        levels = DelayLevels(DEFAULT_DELAY_LEVELS)
        self.arrivals: list[int] = []
        storage = Storage(self.tables, self.log, lambda queues, _: self.arrivals.extend(queues) or ())
        self.part = Rows(storage, self.settings, levels)

    def ask(self, code: int, body: bytes = b"", **fields: Any) -> Answer:
        command = Command(code=code, ext={name: str(value) for name, value in fields.items()}, body=body)
        answer = self.part.handlers()[code](Call(WHO, command, self.now_ms))
        assert answer is not None
        return answer

    def stage(self, chunk: int, rows: Sequence[str], topic: str = "orders", queue: int = 0, **fields: Any) -> Answer:
        wanted = {"writer": "w", "batch": 1, "unit": WHOLE, "partition": 0, "attempt": "a", **fields}
        body = b"".join(pack_entry(row.encode(), f"UNIQ_KEY\x01{row}\x02".encode() + self.extra) for row in rows)
        return self.ask(Request.STAGE_ROWS, body, chunk=chunk, topic=topic, queueId=queue, **wanted)

    extra = b""

    def commit(self, *parts: tuple[int, str, int], batch: int = 1, unit: int = WHOLE, rows: int = 0) -> Answer:
        body = msgspec.json.encode([StagedPart(*part) for part in parts])
        return self.ask(Request.COMMIT_ROWS, body, writer="w", batch=batch, unit=unit, rows=rows, checksum=7)

    def run(self) -> None:
        """Let time pass until nothing is left to be done."""
        for _ in range(100):
            self.now_ms += 1000
            self.part.tick(self.now_ms)

    def bodies(self, topic: str, queue: int = 0) -> list[str]:
        found = self.tables.topic(topic)
        return [body.decode() for body in self.log.bodies(found, queue)] if found is not None else []


@pytest.fixture
def world(tables: Any, settings: BrokerSettings) -> World:
    return World(tables, settings)


def test_no_row_is_visible_before_the_commit_and_all_are_after_it(world: World) -> None:
    world.stage(0, ["r0", "r1"])
    world.stage(1, ["r2"], topic="other", queue=1)
    world.stage(0, ["r3"], partition=1, attempt="b")
    world.run()
    assert world.bodies("orders") == world.bodies("other", 1) == []
    answer = world.commit((0, "a", 2), (1, "b", 1), rows=4)
    assert (answer.ext["state"], answer.ext["left"], answer.ext["rows"]) == ("committed", "0", "4")
    assert (world.bodies("orders"), world.bodies("other", 1)) == (["r0", "r1", "r3"], ["r2"])
    assert world.arrivals


def test_a_batch_counts_once_whichever_attempt_is_committed_first(world: World) -> None:
    world.stage(0, ["r0"], attempt="a")
    world.stage(0, ["r0"], attempt="b")
    world.commit((0, "b", 1), rows=1)
    assert world.commit((0, "a", 1), rows=1).ext["state"] == "committed"
    assert world.stage(1, ["r1"], attempt="a").ext["state"] == "committed"
    assert world.ask(Request.STAGED_STATE, writer="w", batch=1, unit=WHOLE).ext["rows"] == "1"
    assert world.bodies("orders") == ["r0"]


def test_units_of_a_batch_are_committed_each_for_itself(world: World) -> None:
    world.stage(0, ["p0"], unit=0)
    world.stage(0, ["p1"], unit=1, partition=1, attempt="b")
    world.commit((0, "a", 1), unit=0, rows=1)
    assert world.bodies("orders") == ["p0"]
    world.commit((1, "b", 1), unit=1, rows=1)
    assert world.bodies("orders") == ["p0", "p1"]
    assert world.stage(0, ["p1"], unit=1, partition=1, attempt="again").ext == {
        "state": "committed", "rows": "1", "checksum": "7",
    }  # fmt: skip


def test_a_chunk_may_be_sent_twice_and_none_may_be_missing(world: World) -> None:
    world.stage(0, ["r0"])
    world.stage(0, ["r0"])
    with pytest.raises(TransactionError, match="chunk 2"):
        world.stage(2, ["r2"])
    with pytest.raises(TransactionError, match="not in full"):
        world.commit((0, "a", 2))
    world.commit((0, "a", 1))
    assert world.bodies("orders") == ["r0"]


def test_what_is_dropped_or_superseded_or_a_day_old_never_counts(world: World) -> None:
    world.stage(0, ["dropped"])
    assert world.ask(Request.DROP_ROWS, writer="w", batch=1, unit=WHOLE).ext["dropped"] == "1"
    with pytest.raises(TransactionError, match="is not staged any more"):
        world.commit((0, "a", 1))
    world.stage(0, ["old batch"])
    world.stage(0, ["r0"], batch=2)
    world.commit((0, "a", 1), batch=2)
    with pytest.raises(TransactionError, match="is at batch 2, batch 1 is over"):
        world.commit((0, "a", 1))
    world.stage(0, ["abandoned"], batch=3)
    world.now_ms += 25 * 3_600_000
    world.run()
    assert not world.part.state.attempts
    assert world.bodies("orders") == ["r0"]


def test_a_delayed_row_goes_where_delayed_messages_wait(world: World) -> None:
    world.tables.topic_put(SCHEDULE_TOPIC, read_queues=18, write_queues=18, perm=6, flags=0, kind=0)
    world.extra = b"DELAY\x013\x02"
    world.stage(0, ["later", "later too"], delayed="true")
    world.commit((0, "a", 1))
    assert (world.bodies("orders"), world.bodies(SCHEDULE_TOPIC, 2)) == ([], ["later", "later too"])


def test_a_row_that_could_not_be_copied_is_refused_when_it_is_staged(world: World) -> None:
    world.tables.topic_put(SCHEDULE_TOPIC, read_queues=18, write_queues=18, perm=6, flags=0, kind=0)
    far = world.tables.clock_ms + world.settings.timer_max_delay_ms + 60_000
    key = len("UNIQ_KEY\x01r0\x02")

    def value(more: int) -> bytes:
        return b"own\x01" + b"v" * (PROPERTIES_BYTES_MAX - 21 - key - len("own\x01\x02") + more) + b"\x02"

    refused = [
        (value(1), "false", MessageTooLarge),
        (value(20), "false", MessageTooLarge),
        (value(0) + b"DELAY\x013\x02", "true", MessageTooLarge),
        (value(-len("DELAY\x013\x02")) + b"DELAY\x013\x02", "true", MessageTooLarge),  # says where it belongs, too
        (f"TIMER_DELIVER_MS\x01{far}\x02".encode(), "true", UsageError),
        (b"DELAY\x01x\x02", "true", UsageError),
    ]
    for extra, delayed, error in refused:
        world.extra = extra
        with pytest.raises(error):
            world.stage(0, ["r0"], delayed=delayed)
    assert not world.part.state.attempts
    world.extra = value(0)
    world.stage(0, ["r0"])
    assert world.commit((0, "a", 1)).ext["left"] == "0" and world.bodies("orders") == ["r0"]


@pytest.mark.parametrize("extra", [b"", b"DELAY\x013\x02"])
def test_a_committed_row_without_room_loses_the_longest_properties_and_keeps_none_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, extra: bytes
) -> None:
    world.tables.topic_put(SCHEDULE_TOPIC, read_queues=18, write_queues=18, perm=6, flags=0, kind=0)
    monkeypatch.setattr(world.part._copy, "check", lambda *_, **__: 1)  # a version before staged it
    world.extra = b"own\x01" + b"v" * (PROPERTIES_BYTES_MAX - 40) + b"\x02tag\x01t\x02" + extra
    world.stage(0, ["r0"], delayed=str(bool(extra)).lower())
    assert world.commit((0, "a", 1)).ext["left"] == "0"
    topic, queue_id = (SCHEDULE_TOPIC, 2) if extra else ("orders", 0)
    (copy,) = world.log.stored(world.tables.topic(topic), queue_id)
    properties = parse_properties(copy.properties.decode())
    assert len(copy.properties) <= PROPERTIES_BYTES_MAX - 21
    assert (properties["UNIQ_KEY"], properties["tag"]) == ("r0", "t") and "own" not in properties


def test_retention_that_was_faster_is_said_at_the_commit(world: World) -> None:
    world.stage(0, ["r0"])
    rows = world.tables.topic(STAGED_TOPIC).queues[1]
    world.tables.bounds[rows] = QueueBounds(1, 1)
    with pytest.raises(TransactionError, match="deleted by retention"):
        world.commit((0, "a", 1))


def test_rows_that_are_not_durable_are_not_said_to_be_written(tables: Any, settings: BrokerSettings) -> None:
    from dataclasses import replace

    world = World(tables, replace(settings, wait_durable=True))
    world.stage(0, ["r0"])
    world.log.held_durable_end = 0
    assert world.commit((0, "a", 1)).ext["left"] != "0"
    world.log.held_durable_end = None
    assert world.commit((0, "a", 1)).ext["left"] == "0"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "rmq_sys_wheel_timer"}, TopicNotFound),
        ({"queue": 9}, TopicNotFound),
        ({"writer": "x" * 65}, ProtocolError),
        ({"batch": -1}, ProtocolError),
        ({"rows": []}, ProtocolError),
    ],
)
def test_what_cannot_be_staged_is_refused_and_stores_nothing(
    world: World, fields: dict[str, Any], error: type[ShmqError]
) -> None:
    rows = fields.pop("rows", ["r0"])
    with pytest.raises(error):
        world.stage(0, rows, **fields)
    assert not world.part.state.attempts


def test_a_body_whose_lengths_lie_is_refused(world: World) -> None:
    for body in (b"x", pack_entry(b"b", b"")[:-1] + b"\x05", pack_entry(b"b", b"") + b"\0\0\0\x07"):
        with pytest.raises(ProtocolError):
            world.ask(
                Request.STAGE_ROWS, body, writer="w", batch=1, unit=WHOLE, partition=0, attempt="a", chunk=0,
                topic="orders", queueId=0,
            )  # fmt: skip


def test_a_long_history_is_said_again_in_short(world: World) -> None:
    for batch in range(1, 1200):
        world.stage(0, [f"r{batch}"], batch=batch)
        world.commit((0, "a", 1), batch=batch)
    world.stage(0, ["open"], batch=5000)
    world.run()
    marks = world.tables.topic(STAGED_TOPIC).queues[MARKS_QUEUE]
    slot = world.tables.offset_put(world.tables.group_put("CID_RMQ_SYS_SHMQ_STAGED"), marks)
    assert world.tables.queue_bounds(marks).offset_max - world.tables.committed(slot) < 10
    world.start()
    world.run()
    with pytest.raises(TransactionError, match="is at batch 1199"):
        world.commit(batch=3)
    world.commit((0, "a", 1), batch=5000)
    assert world.bodies("orders") == [*(f"r{batch}" for batch in range(1, 1200)), "open"]


def test_a_history_that_has_no_place_to_be_noted_at_is_not_said_again_and_again(world: World) -> None:
    for batch in range(1, 1200):
        world.stage(0, [f"r{batch}"], batch=batch)
        world.commit((0, "a", 1), batch=batch)
    world.tables.group_max = 0
    marks = world.tables.topic(STAGED_TOPIC).queues[MARKS_QUEUE]
    end = world.tables.queue_bounds(marks).offset_max
    for _ in range(3):
        with pytest.raises(SegmentFull):
            world.run()
    assert world.tables.queue_bounds(marks).offset_max == end


def test_committed_rows_and_long_histories_are_stored_whatever_one_append_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_max = 60_000

    def bounded(append: Any) -> Any:
        def appended(topic: Topic, queue_id: int, records: Any, **named: Any) -> list[Stored]:
            rows = list(entries_of(records)) if isinstance(records, bytes) else records
            if len(rows) > 1 and sum(320 + len(row.body) + len(row.properties) for row in rows) > bytes_max:
                raise MessageTooLarge("more than one append stores")
            stored: list[Stored] = append(topic, queue_id, records, **named)
            return stored

        return appended

    world.log.append_encoded_batch = bounded(world.log.append_encoded_batch)  # type: ignore[method-assign]
    world.log.append_batch = bounded(world.log.append_batch)  # type: ignore[method-assign]
    rows = [f"{number:04}" for number in range(1000)]
    world.stage(0, rows)
    world.extra = b"DELAY\x013\x02"
    world.stage(1, [f"later {row}" for row in rows], delayed="true")
    assert world.commit((0, "a", 2)).ext["left"] == "0"
    assert world.bodies("orders") == rows
    assert world.bodies(SCHEDULE_TOPIC, 2) == [f"later {row}" for row in rows]
    for chunk in range(1200):
        world.stage(chunk, ["open"], batch=2)
    monkeypatch.setattr(row_log, "_SNAPSHOT_MS", 0)
    marks = world.tables.topic(STAGED_TOPIC).queues[MARKS_QUEUE]
    end = world.tables.queue_bounds(marks).offset_max
    world.run()
    assert committed_of(world.tables, STAGED_GROUP, marks) >= end
    world.start()
    world.stage(1200, ["last"], batch=2)


def test_a_chunk_whose_mark_could_not_be_put_right_is_staged_again(world: World) -> None:
    """Another process stored a record in the queue of rows in between, so the mark names the wrong offset."""
    world.stage(0, ["r0"])
    together, topic = world.log.append_together, world.tables.topic(STAGED_TOPIC)

    def after_another(entries: Sequence[Entry]) -> list[Stored]:
        world.log.append(topic, 1, NewRecord(b"foreign"))
        stored = together(entries)
        world.log.error = BrokerBusy("the lock is taken")
        return stored

    world.log.append_together = after_another  # type: ignore[method-assign]
    with pytest.raises(BrokerBusy):
        world.stage(1, ["r1"])
    world.log.append_together, world.log.error = together, None  # type: ignore[method-assign]
    world.stage(1, ["r1"])
    world.start()  # a successor reads the same
    world.run()
    world.commit((0, "a", 2))
    assert world.bodies("orders") == ["r0", "r1"]


def _whole_story(world: World) -> None:
    """What a writer does, again from where it was after each death."""
    world.stage(0, ["r0", "r1", "r2"])
    world.stage(1, ["s0", "s1"], topic="other", queue=1)
    world.stage(2, ["r3"])
    while world.commit((0, "a", 3), rows=6).ext["left"] != "0":
        pass


@pytest.mark.parametrize("dies_behind", [False, True])
def test_rows_are_there_once_at_whichever_append_the_broker_dies(
    new_tables: Any, settings: BrokerSettings, dies_behind: bool
) -> None:
    for lives in range(1000):
        world = World(new_tables(), settings)
        world.log.lives, world.log.dies_behind = lives, dies_behind
        try:
            _whole_story(world)
            break
        except Killed:
            world.start()
        world.log.append(world.tables.topic("orders"), 0, NewRecord(b"another's"))
        _again(world)
        assert [body for body in world.bodies("orders") if body != "another's"] == ["r0", "r1", "r2", "r3"], lives
        assert world.bodies("other", 1) == ["s0", "s1"], lives
    assert lives > 12  # it died often enough to mean something


def _again(world: World) -> None:
    world.part.tick(world.now_ms)
    _whole_story(world)


@pytest.mark.parametrize("dies_behind", [False, True])
def test_a_committed_batch_is_finished_without_its_writer(
    new_tables: Any, settings: BrokerSettings, dies_behind: bool
) -> None:
    for lives in range(1000):
        world = World(new_tables(), settings)
        world.log.lives, world.log.dies_behind = lives, dies_behind
        try:
            _whole_story(world)
            break
        except Killed:
            world.start()
        was_committed = (
            any(b'"commit"' in body for body in world.log.bodies(world.tables.topic(STAGED_TOPIC), MARKS_QUEUE))
            if world.tables.topic(STAGED_TOPIC)
            else False
        )
        world.run()
        expected = (["r0", "r1", "r2", "r3"], ["s0", "s1"]) if was_committed else ([], [])
        assert (world.bodies("orders"), world.bodies("other", 1)) == expected, lives


def test_until_everything_was_read_again_requests_are_put_off(world: World) -> None:
    for number in range(12_000):
        world.stage(number, ["r"])
    world.start()
    with pytest.raises(BrokerBusy, match="still being read"):
        world.commit((0, "a", 12_000))
    world.run()
    assert world.commit((0, "a", 12_000)).ext["state"] == "committed"
