"""What the keeper makes of the damage that readers report: wrong units are mended, damaged records kept and counted."""

import json
import mmap
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from shmq.errors import DamagedMessage
from shmq.shm.core import UNIT_BYTES, BrokerLog, KeeperStore, Reader, tag_hash
from shmq.store.quarantine import count_quarantined
from tests.keeper.conftest import Running, StartKeeper

BODIES = [b"%03d" % number for number in range(300)]


def written(running: Running, count: int = len(BODIES)) -> int:
    """Send the bodies, wait until they are on disk, and return the queue's index."""
    running.send_batch("orders", BODIES[:count])
    KeeperStore(running.store).flush()
    return running.queue_index("orders")


def reader_of(running: Running) -> Reader:
    reader = Reader(running.store)
    reader.assign("orders", running.queue_index("orders"), 0, 0)
    return reader


def read_all(reader: Reader, count: int, eventually: Callable[..., object]) -> tuple[list[bytes], list[DamagedMessage]]:
    """Read until so many messages came or were reported as damaged."""
    bodies: list[bytes] = []
    told: list[DamagedMessage] = []

    def done() -> bool:
        try:
            bodies.extend(bytes(message.body) for message in reader.poll(100))
        except DamagedMessage as error:
            told.append(error)
        return len(bodies) + len(told) >= count

    eventually(done)
    return bodies, told


def log_file(running: Running) -> Path:
    return running.root / "commitlog" / f"{0:020d}"


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("count", [1, 5])
def test_wrong_units_are_mended_and_nothing_is_lost(
    start_keeper: StartKeeper, eventually: Callable[..., object], count: int
) -> None:
    running = start_keeper()
    queue = written(running)
    good = running.store.units_stored(queue, 0, 300)
    KeeperStore(running.store).units_restore(queue, 100, struct.pack(">QIq", 1 << 40, 77, 0) * count)
    bodies, told = read_all(reader_of(running), 300, eventually)
    assert (bodies, told) == (BODIES, [])
    assert running.store.units_stored(queue, 0, 300) == good
    eventually(lambda: running.store.queue(queue)[2] == 300)
    path = running.root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    eventually(lambda: path.read_bytes()[: 300 * UNIT_BYTES] == good)
    assert count_quarantined(running.root) == 0


def test_a_unit_of_another_record_is_mended_in_its_file_too(
    start_keeper: StartKeeper, eventually: Callable[..., object]
) -> None:
    running = start_keeper()
    queue = written(running)
    eventually(lambda: running.store.queue(queue)[2] == 300)
    good = running.store.units_stored(queue, 0, 300)
    path = running.root / "consumequeue" / "orders" / "0" / f"{0:020d}"
    wrong = good[:UNIT_BYTES]
    KeeperStore(running.store).units_restore(queue, 7, wrong)
    with path.open("r+b") as file:
        file.seek(7 * UNIT_BYTES)
        file.write(wrong)
    assert read_all(reader_of(running), 300, eventually) == (BODIES, [])
    assert path.read_bytes()[: 300 * UNIT_BYTES] == good


@pytest.mark.parametrize("at", [4, 20, 30, 90, 100], ids=["magic", "queue offset", "position", "body", "tail"])
def test_a_damaged_record_is_reported_once_kept_and_counted_once(
    start_keeper: StartKeeper, eventually: Callable[..., object], at: int
) -> None:
    running = start_keeper()
    written(running, 3)
    units = running.store.units_stored(running.queue_index("orders"), 1, 1)
    position, size, _ = struct.unpack(">QIq", units)
    flip(log_file(running), position + at)
    damaged = log_file(running).read_bytes()[position : position + size]
    for _ in range(2):
        bodies, told = read_all(reader_of(running), 3, eventually)
        assert bodies == [BODIES[0], BODIES[2]]
        assert [(error.topic, error.queue_id, error.offset, error.position) for error in told] == [
            ("orders", 0, 1, position)
        ]
        assert told[0].record == damaged
    eventually(lambda: KeeperStore(running.store).damage_take() is None)
    copy = running.root / "quarantine" / f"{position:020d}.record"
    assert copy.read_bytes() == damaged
    facts = json.loads(copy.with_suffix(".json").read_text())
    assert (facts["topic"], facts["queue_id"], facts["queue_offset"]) == ("orders", 0, 1)
    assert count_quarantined(running.root) == 1
    assert [line["log_position"] for line in running.events.named("record.damaged")] == [position]


def test_a_whole_body_is_handed_out_with_the_error(
    start_keeper: StartKeeper, eventually: Callable[..., object]
) -> None:
    running = start_keeper()
    written(running, 3)
    position, size, _ = struct.unpack(">QIq", running.store.units_stored(running.queue_index("orders"), 1, 1))
    flip(log_file(running), position + size - 5)  # a digit of the record's CRC
    _, told = read_all(reader_of(running), 3, eventually)
    assert [error.body for error in told] == [BODIES[1]]
    flip(log_file(running), position + 88)
    _, told = read_all(reader_of(running), 3, eventually)
    assert [error.body for error in told] == [None]


def test_reports_that_say_nonsense_are_passed_over(
    start_keeper: StartKeeper, eventually: Callable[..., object]
) -> None:
    running = start_keeper()
    written(running, 3)
    running.halt()
    flip(log_file(running), 88)
    with pytest.raises(DamagedMessage):
        reader_of(running).poll(10)
    ring = memoryview(_readers(running))
    ring[64 + 64 + 8 : 64 + 64 + 48] = b"\xff" * 40
    running.keeper.round(0.0)
    assert KeeperStore(running.store).damage_take() is None
    ring.release()


def _readers(running: Running) -> mmap.mmap:
    name = running.attached.instance.segments[2]
    with open(f"/dev/shm{name}", "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


@pytest.mark.parametrize("byte", range(4))
def test_a_hash_that_no_tag_has_hides_no_message(
    start_keeper: StartKeeper, eventually: Callable[..., object], byte: int
) -> None:
    running = start_keeper()
    for number in range(204):
        running.send("orders", b"%d" % number, tag="red" if number == 100 else "blue")
    running.send("orders", b"in the next frame", tag="blue")
    KeeperStore(running.store).flush()
    queue = running.queue_index("orders")
    eventually(lambda: running.store.queue(queue)[2] == 205)
    assert KeeperStore(running.store).frames_release(queue, 0, 1, 1.0) == 1
    flip(running.root / "consumequeue" / "orders" / "0" / f"{0:020d}", 100 * UNIT_BYTES + 12 + byte)
    reader = Reader(running.store, tags=["red"])
    reader.assign("orders", queue, 0, 0)
    assert [bytes(message.body) for message in reader.poll(10)] == [b"100"]
    _, count, records = BrokerLog(running.store).pull(queue, 0, 32, 1 << 20, [tag_hash("red")], 205, None, False)
    assert count == 1 and b"100" in records


def test_a_blank_range_counts_as_all_messages_that_lay_there_once(
    start_keeper: StartKeeper, eventually: Callable[..., object]
) -> None:
    running = start_keeper()
    queue = written(running, 300)
    running.send("others", b"one more", queue_id=1)
    running.send_batch("orders", BODIES[:5])
    KeeperStore(running.store).flush()
    eventually(lambda: running.store.queue(queue)[2] == 305)
    eventually(lambda: running.store.queue(running.queue_index("others", 1))[2] == 1)
    places = [unit[:2] for unit in struct.iter_unpack(">QIq", running.store.units_stored(queue, 0, 305))]
    begin, end = places[260][0], places[300][0]
    with log_file(running).open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))
    bodies, told = read_all(reader_of(running), 305, eventually)
    assert (len(bodies), len(told)) == (265, 40)
    eventually(lambda: KeeperStore(running.store).damage_take() is None)
    assert [line["messages"] for line in running.events.named("record.damaged")] == [41]
    assert count_quarantined(running.root) == 41
