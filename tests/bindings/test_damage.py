"""Damage: no flipped byte of a record or of its unit is ever handed out as good, by any door of the core, and none
stops a queue; and the reports of it that the keeper reads."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import pytest

from shmq.bindings import _core
from shmq.shm import core
from tests.bindings.live_store import FILE_BYTES, SIZES, LiveStore, raises_status

BODIES = [b"before", b"the one that is damaged", b"behind"]
PROPERTIES = b"TAGS\x01red\x02KEYS\x01k\x02"
WAYS = [pytest.param(0x01, id="lowest-bit"), pytest.param(0xFF, id="all-bits")]


@pytest.fixture(autouse=True)
def _plain_errors() -> Iterator[None]:
    """Errors as the core makes them, whether or not `shmq.shm.core` is loaded."""
    _core.set_error_factory(None)
    _core.set_damage_factory(None)
    yield
    _core.set_error_factory(core.public_error)
    _core.set_damage_factory(core.damage_error)


class Damaged:
    """Three messages that are on disk, and the second one's record and unit to flip bytes in."""

    def __init__(self, live: LiveStore) -> None:
        self.live = live
        (self.queue,) = live.topic(queues=1)
        append = live.producer().append
        self.places = [append("orders", body, PROPERTIES, queue_id=0)[1] for body in BODIES]
        self.end = live.keeper.flush()
        path = live.path / "commitlog" / f"{0:020d}"
        with path.open("r+b") as file:
            self.log = mmap.mmap(file.fileno(), FILE_BYTES)
        self.units = mmap.mmap(live.descriptors[1], _core.layout_bytes(**SIZES)[1])
        self.unit_at = self.units.find(live.keeper.units_read(self.queue, 1, 1))
        assert self.unit_at > 0

    @property
    def record(self) -> range:
        return range(self.places[1], self.places[2])

    @property
    def unit(self) -> range:
        return range(self.unit_at, self.unit_at + _core.UNIT_BYTES)

    def close(self) -> None:
        self.log.close()
        self.units.close()


@pytest.fixture
def damaged() -> Iterator[Damaged]:
    with LiveStore() as live:
        found = Damaged(live)
        yield found
        found.close()


# ---- doors: what each hands out, damage left out -----------------------------------------------------------------


def by_poll(found: Damaged) -> list[bytes]:
    reader, bodies, told = found.live.reader(), [], 0
    while len(bodies) + told < len(BODIES):
        try:
            bodies += [bytes(message.body) for message in reader.poll(10)]
        except _core.CoreError as error:
            assert error.args[0] == _core.CORRUPT
            told += 1
    assert reader.poll(10) == []
    return bodies


def by_iteration(found: Damaged) -> list[bytes]:
    reader, bodies, told = found.live.reader(), [], 0
    while len(bodies) + told < len(BODIES):
        try:
            bodies.append(bytes(next(reader).body))
        except _core.CoreError as error:
            assert error.args[0] == _core.CORRUPT
            told += 1
    return bodies


def by_pull(found: Damaged) -> list[bytes]:
    at, data = 0, b""
    while at < len(BODIES):
        try:
            at, _, more = found.live.log.pull(found.queue, at, 10, 1 << 20, None)
            data += more
        except _core.CoreError as error:
            assert error.args[0] == _core.CORRUPT
            at += 1
    return [bytes(message.body) for message in _core.records_read(data)]


def by_columns(found: Damaged) -> list[bytes]:
    import pyarrow  # type: ignore[import-untyped]

    at, bodies, column = 0, [], bytes([11])
    while at < len(BODIES):
        try:
            columns = _core.ColumnReader(found.live.store).columns
            at, count, *_, capsule = columns(found.queue, 0, at, len(BODIES), column, "orders", "b")
        except _core.CoreError as error:
            assert error.args[0] == _core.CORRUPT
            at += 1
            continue
        if count:

            class Holder:
                def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
                    return _core.columns_schema(column), capsule  # noqa: B023

            bodies += pyarrow.record_batch(Holder()).column(0).to_pylist()
    return bodies


def by_position(found: Damaged) -> list[bytes]:
    bodies = []
    for place in found.places:
        try:
            bodies.append(bytes(found.live.store.message_at(place).body))
        except _core.CoreError as error:
            assert error.args[0] == _core.CORRUPT
    return bodies


def by_record_bytes(found: Damaged) -> list[bytes]:
    records = (found.live.log.record_bytes_at(place) for place in found.places)
    return [bytes(_core.records_read(record)[0].body) for record in records if record is not None]


UNIT_DOORS = [by_poll, by_iteration, by_pull, by_columns]
DOORS = [*UNIT_DOORS, by_position, by_record_bytes]


@pytest.mark.parametrize("flip", WAYS)
@pytest.mark.parametrize("door", DOORS)
def test_no_flipped_byte_of_a_record_is_handed_out(
    damaged: Damaged, door: Callable[[Damaged], list[bytes]], flip: int
) -> None:
    assert door(damaged) == BODIES
    for at in damaged.record:
        damaged.log[at] ^= flip
        assert door(damaged) == [BODIES[0], BODIES[2]], f"byte {at - damaged.places[1]}"
        damaged.log[at] ^= flip
    assert door(damaged) == BODIES


@pytest.mark.parametrize("flip", WAYS)
@pytest.mark.parametrize("door", UNIT_DOORS)
def test_no_flipped_byte_of_a_unit_stops_its_queue(
    damaged: Damaged, door: Callable[[Damaged], list[bytes]], flip: int
) -> None:
    for at in damaged.unit:
        damaged.units[at] ^= flip
        # The tag's hash says nothing about the record; everything else has to fit it.
        is_harmless = at - damaged.unit_at >= 12
        assert door(damaged) == (BODIES if is_harmless else [BODIES[0], BODIES[2]]), f"byte {at - damaged.unit_at}"
        damaged.units[at] ^= flip
    assert door(damaged) == BODIES


@pytest.mark.parametrize("place", ["first", "last", "another"])
def test_a_unit_that_names_another_record_is_damage(damaged: Damaged, place: str) -> None:
    append = damaged.live.producer().append
    damaged.live.topic("others", 1)
    for body in (b"x", b"the same offset elsewh", b"y"):
        append("others", body, PROPERTIES, queue_id=0)
    damaged.live.keeper.flush()
    others = damaged.live.store.topic(damaged.live.store.topic_find("others"))["queues"][0]
    wrong = {
        "first": damaged.live.keeper.units_read(damaged.queue, 0, 1),
        "last": damaged.live.keeper.units_read(damaged.queue, 2, 1),
        "another": damaged.live.keeper.units_read(others, 1, 1),
    }[place]
    damaged.units[damaged.unit.start : damaged.unit.stop] = wrong
    for door in UNIT_DOORS:
        assert door(damaged) == [BODIES[0], BODIES[2]]


def test_a_record_of_another_writer_is_checked_by_its_body(damaged: Damaged) -> None:
    start, end = damaged.places[1], damaged.places[2]
    foreign = damaged.log[start:end]
    # Stock RocketMQ stores no record CRC: the same record with other properties in its place.
    whole = foreign[:-20] + b"x\x01" + b"0" * 17 + b"\x02"
    damaged.log[start:end] = whole
    assert by_poll(damaged) == BODIES
    damaged.log[start + 90] ^= 1
    assert by_poll(damaged) == [BODIES[0], BODIES[2]]


def test_a_reader_that_trusts_the_log_still_gets_no_other_record(damaged: Damaged) -> None:
    damaged.log[damaged.places[1] + 90] ^= 1
    reader = damaged.live.reader(verify=False)
    assert [len(m.body) for m in reader.poll(10)] == [len(body) for body in BODIES]
    damaged.log[damaged.places[1] + 27] ^= 1  # its queue offset
    reader = damaged.live.reader(verify=False)
    assert [m.body for m in reader.poll(10)] == [BODIES[0]]
    with raises_status(_core.CORRUPT, "offset 1"):
        reader.poll(10)


def test_what_is_not_durable_yet_is_waited_for(damaged: Damaged) -> None:
    live = damaged.live
    live.use_client()
    place = live.producer().append("orders", b"late", queue_id=0)[1]
    damaged.log[place + 88] ^= 1
    reader = live.reader()
    assert len(reader.poll(10)) == len(BODIES)
    assert reader.poll(10, 0.05) == []
    assert live.log.pull(damaged.queue, 3, 10, 1 << 20, None) == (3, 0, b"")
    assert live.log.record_bytes_at(place) is None
    damaged.log[place + 88] ^= 1
    assert [m.body for m in reader.poll(10, 5)] == [b"late"]
    fresh = live.reader()
    damaged.log[place + 88] ^= 1
    assert len(fresh.poll(10)) == len(BODIES)
    live.keeper.flush()
    with raises_status(_core.CORRUPT, "offset 3"):
        fresh.poll(10)
    assert live.keeper.damage_take() is not None


# ---- reports, and waiting for the keeper -------------------------------------------------------------------------


def test_each_look_at_damage_is_a_report(damaged: Damaged) -> None:
    assert damaged.live.keeper.damage_take() is None
    damaged.log[damaged.places[1] + 90] ^= 1
    by_poll(damaged)
    report = damaged.live.keeper.damage_take()
    size = damaged.places[2] - damaged.places[1]
    assert report == (_core.DAMAGE_RECORD, damaged.queue, 1, damaged.places[1], size)
    assert damaged.live.keeper.damage_take() == report
    damaged.live.keeper.damage_settle()
    assert damaged.live.keeper.damage_take() is None
    damaged.units[damaged.unit_at] ^= 1
    by_pull(damaged)
    report = damaged.live.keeper.damage_take()
    assert report is not None and report[:3] == (_core.DAMAGE_UNIT, damaged.queue, 1)


def test_reports_that_are_not_taken_are_bounded(damaged: Damaged) -> None:
    damaged.log[damaged.places[1] + 90] ^= 1
    for _ in range(300):
        assert by_poll(damaged) == [BODIES[0], BODIES[2]]
    count = 0
    while damaged.live.keeper.damage_take() is not None:
        damaged.live.keeper.damage_settle()
        count += 1
    assert count == 128
    by_poll(damaged)
    assert damaged.live.keeper.damage_take() is not None


def test_scribbled_reports_are_read_within_bounds(damaged: Damaged) -> None:
    damaged.log[damaged.places[1] + 90] ^= 1
    by_poll(damaged)
    with mmap.mmap(damaged.live.descriptors[2], _core.layout_bytes(**SIZES)[2]) as readers:
        ring = 64  # behind the head: reported, judged, refused, then the entries at 64
        readers[ring + 64 + 8 : ring + 64 + 48] = b"\xff" * 40
        report = damaged.live.keeper.damage_take()
        assert report is not None and report.queue == -1 and report.record_bytes <= 5 << 20
        readers[ring + 64 : ring + 72] = bytes(8)
        unfinished = damaged.live.keeper.damage_take()
        assert unfinished is not None and unfinished.kind == 0
        damaged.live.keeper.damage_settle()
        readers[ring + 8 : ring + 16] = b"\xff" * 8  # judged beyond reported
        assert damaged.live.keeper.damage_take() is None
        by_poll(damaged)
        assert damaged.live.keeper.damage_take() is not None


def test_a_reader_waits_for_the_keeper_and_gets_what_it_rebuilt(damaged: Damaged) -> None:
    damaged.live.use_client()
    damaged.live.keeper.keeper_beat()
    for at in range(damaged.unit_at, damaged.unit_at + 12):
        damaged.units[at] ^= 0x81
        reader, beside = damaged.live.reader(), damaged.live.reader()
        assert [m.body for m in reader.poll(10)] == BODIES[:1]
        assert reader.poll(10) == [] and reader.poll(10, 0.05) == []
        assert damaged.live.log.pull(damaged.queue, 1, 10, 1 << 20, None) == (1, 0, b"")
        report = damaged.live.keeper.damage_take()
        assert report is not None and report[:3] == (_core.DAMAGE_UNIT, damaged.queue, 1)
        damaged.units[at] ^= 0x81
        damaged.live.keeper.damage_settle()
        assert [m.body for m in reader.poll(10, 5)] == BODIES[1:]
        assert [m.body for m in beside.poll(10)] == BODIES
        while damaged.live.keeper.damage_take() is not None:
            damaged.live.keeper.damage_settle()


def test_what_the_keeper_could_not_rebuild_is_reported_once(damaged: Damaged) -> None:
    damaged.live.use_client()
    damaged.live.keeper.keeper_beat()
    damaged.log[damaged.places[1] + 5] ^= 0xFF  # the magic: no record begins there
    reader = damaged.live.reader()
    assert [m.body for m in reader.poll(10)] == BODIES[:1]
    assert reader.poll(10, 0.01) == []
    while damaged.live.keeper.damage_take() is not None:
        damaged.live.keeper.damage_settle()
    with raises_status(_core.CORRUPT, f"log position {damaged.places[1]}"):
        while not reader.poll(10, 1.0):
            pass
    assert [m.body for m in reader.poll(10)] == BODIES[2:]


def test_other_queues_go_on_while_one_waits_for_the_keeper() -> None:
    with LiveStore() as live:
        damaged, _ = live.topic(queues=2)
        for number in range(10):
            live.producer().append("orders", b"%d" % number, queue_id=number % 2)
        live.keeper.flush()
        live.keeper.keeper_beat()
        with mmap.mmap(live.descriptors[1], _core.layout_bytes(**SIZES)[1]) as units:
            at = units.find(live.keeper.units_read(damaged, 0, 1))
            units[at : at + 8] = b"\x7f" * 8
            reader = live.reader()
            assert [int(m.body) for m in reader.poll(20)] == [1, 3, 5, 7, 9]
            live.producer().append("orders", b"11", queue_id=1)
            assert [int(m.body) for m in reader.poll(20)] == [11]
        reader.close()


def test_a_search_by_time_steps_over_damage(damaged: Damaged) -> None:
    store = damaged.live.store
    first_ms = store.message_at(damaged.places[0]).store_ms
    for at in (*damaged.record[::7], damaged.places[1] + 56):
        damaged.log[at] ^= 0xFF
        assert store.search_time(damaged.queue, first_ms) == 0
        assert store.search_time(damaged.queue, 1 << 50) == 3
        damaged.log[at] ^= 0xFF


def test_an_observer_reads_and_reports_nothing(damaged: Damaged) -> None:
    observer = damaged.live.attach(writable=False, observing=True)
    damaged.log[damaged.places[1] + 90] ^= 1
    reader = damaged.live.reader(store=observer)
    assert [m.body for m in reader.poll(10)] == BODIES[:1]
    with raises_status(_core.CORRUPT):
        reader.poll(10)
    assert damaged.live.keeper.damage_take() is None
