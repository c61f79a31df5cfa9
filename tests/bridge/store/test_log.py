"""The log in shared memory behaves as the broker's logic expects."""

import contextlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.bridge.store.log import PATIENCE, StoreLog
from shmq.daemon.bridge.store.tables import StoreTables
from shmq.daemon.broker.log import Log, NewRecord, Pulled, Stored
from shmq.daemon.broker.tables import Topic
from shmq.errors import BrokerBusy, MessageTooLarge, SegmentFull, TopicNotFound, UsageError
from shmq.protocol.codes import Response
from shmq.shm.access import Access
from shmq.shm.core import BrokerTables, KeeperStore, ReplicaStore, Store, record_decode, record_verify, tag_hash
from shmq.shm.instance import Instance
from shmq.shm.segment import create_segments, unlink_segments
from tests.bridge.live_bridge import SIZES

LONG = 60.0  # seconds; only a hung test sees the end of it
RECORD_CRC_BYTES = 20
IPV6 = bytes(range(16)) + struct.pack(">I", 40_000)


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[tuple[Instance, Store]]:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(SIZES.file_bytes))
    instance, store = create_segments("test", store_path=tmp_path, sizes=SIZES)
    KeeperStore(store).set_allocated_end(SIZES.file_bytes)
    yield instance, store
    store.close()
    unlink_segments(instance)


@pytest.fixture
def store(segments: tuple[Instance, Store]) -> Store:
    return segments[1]


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def log(store: Store, reports: list[str]) -> StoreLog:
    return StoreLog(store, report=reports.append)


@pytest.fixture
def topic(store: Store) -> Topic:
    entry = store.topic(BrokerTables(store).topic_put("orders", read_queues=2, write_queues=2))
    return Topic("orders", 2, 2, 6, 0, 0, tuple(entry["queues"]))


def records_of(pulled: Pulled) -> list[bytes]:
    """The bodies of an answer."""
    bodies, left = [], pulled.body
    while left:
        fields = record_decode(left)
        assert record_verify(left[: fields["record_bytes"]])
        bodies.append(fields["body"])
        left = left[fields["record_bytes"] :]
    assert len(bodies) == pulled.record_count
    return bodies


def test_a_record_is_stored_with_every_field(log: StoreLog, topic: Topic) -> None:
    contract: Log = log
    record = NewRecord(
        b"body", b"TAGS\1a\2", flag=3, sys_flag=1, born_ms=5, born_host=IPV6, reconsume_times=2, prepared_position=9
    )
    stored = contract.append(topic, 1, record)
    data = contract.record_at(stored.log_position)
    assert data is not None and record_verify(data)
    fields = record_decode(data)
    assert (fields["body"], fields["flag"], fields["sys_flag"]) == (b"body", 3, 1 | 16)
    assert (fields["born_ms"], fields["born_host"], fields["reconsume_times"]) == (5, IPV6, 2)
    assert (fields["prepared_position"], fields["queue_id"], fields["topic"]) == (9, 1, b"orders")
    assert stored == Stored(
        0, fields["log_position"], fields["store_ms"], stored.log_position + len(data) + RECORD_CRC_BYTES
    )
    assert b"__CRC32#" not in data, "RocketMQ's clients would take it for a property of the sender's"
    assert contract.record_at(stored.log_position + 1) is None


def test_no_append_is_stamped_before_the_least_stamp_that_was_returned(
    segments: tuple[Instance, Store], log: StoreLog, topic: Topic
) -> None:
    tables = StoreTables(segments[1], segments[0], Access(-1))
    for _ in range(50):
        while time.time_ns() % 1_000_000 < 900_000:
            pass
        log.append(topic, 0, NewRecord(b"the clock is looked at now, and not for a while", b""))
        while time.time_ns() % 1_000_000 >= 900_000:
            pass
        least = tables.stamp_ms
        assert log.append(topic, 0, NewRecord(b"in the next millisecond", b"")).store_ms >= least


def test_the_durable_end_passes_a_record_when_it_is_on_disk(log: StoreLog, topic: Topic, store: Store) -> None:
    stored = log.append(topic, 0, NewRecord(b"x"))
    assert log.durable_end < stored.end
    KeeperStore(store).flush()
    assert log.durable_end >= stored.end


def test_what_slaves_have_confirmed_is_not_in_doubt_when_the_lease_is_over(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(SIZES.file_bytes))
    instance, store = create_segments("test", store_path=tmp_path, sizes=SIZES, confirms=True)
    try:
        KeeperStore(store).set_allocated_end(SIZES.file_bytes)
        queues = store.topic(BrokerTables(store).topic_put("orders", read_queues=1, write_queues=1))["queues"]
        log, replica = StoreLog(store, report=lambda _: None), ReplicaStore(store)
        first, second = [log.append(Topic("orders", 1, 1, 6, 0, 0, tuple(queues)), 0, NewRecord(b"x")) for _ in "12"]
        KeeperStore(store).flush()
        replica.confirm(first.end, 1, LONG)
        assert (log.outcome(first.end), log.outcome(second.end)) == (Response.SUCCESS, Response.FLUSH_SLAVE_TIMEOUT)
        replica.lease(1)
        assert log.outcome(first.end) == Response.SUCCESS
        assert [log.in_doubt(each.end) for each in (first, second)] == [False, True]
        replica.confirm(None, 0, LONG)  # no slave is left to say that it has them
        assert log.outcome(second.end) == Response.SERVICE_NOT_AVAILABLE
    finally:
        store.close()
        unlink_segments(instance)


def test_a_batch_keeps_its_order_whatever_its_records_have_in_common(log: StoreLog, topic: Topic) -> None:
    records = [NewRecord(b"%d" % number, b"TAGS\1a\2", sys_flag=number // 3 % 2) for number in range(10)]
    records.insert(5, NewRecord(b"due", tag_code=77))
    stored = log.append_batch(topic, 0, records)
    assert [each.queue_offset for each in stored] == list(range(11))
    assert [each.end for each in stored[:-1]] == [each.log_position for each in stored[1:]]
    queue = topic.queues[0]
    everything = log.read(queue, 0, count_max=100, bytes_max=1 << 20)
    assert records_of(everything) == [record.body for record in records]
    assert records_of(log.read(queue, 0, count_max=100, bytes_max=1 << 20, tags=[77])) == [b"due"]
    assert log.read(queue, 0, count_max=100, bytes_max=1 << 20, tags=(tag_hash("a"),)).record_count == 10
    assert log.append_batch(topic, 0, []) == []


def test_a_batch_as_it_comes_from_the_wire_is_split(log: StoreLog, topic: Topic) -> None:
    wire = b"".join(struct.pack(">iiiii", 23, 0, 0, 0, 1) + body + b"\0\0" for body in (b"x", b"y"))
    stored = log.append_encoded_batch(topic, 0, wire, properties=b"CLUSTER\1c\2", born_host=IPV6)
    assert [each.queue_offset for each in stored] == [0, 1]
    assert records_of(log.read(topic.queues[0], 0, count_max=9, bytes_max=1)) == [b"x"]
    data = log.record_at(stored[1].log_position)
    assert data is not None and record_decode(data)["properties"].startswith(b"CLUSTER\1c\2")
    with pytest.raises(UsageError, match="record 1 of the batch"):
        log.append_encoded_batch(topic, 0, wire[:-1])


def test_refusals_are_public_errors_and_store_nothing(log: StoreLog, topic: Topic) -> None:
    with pytest.raises(TopicNotFound):
        log.append(topic._replace(name="other"), 0, NewRecord(b"x"))
    with pytest.raises(UsageError):
        log.append(topic, 2, NewRecord(b"x"))
    with pytest.raises(MessageTooLarge):
        log.append(topic, 0, NewRecord(bytes(5 << 20)))
    with pytest.raises(SegmentFull):
        log.append(topic, 0, NewRecord(bytes(SIZES.file_bytes - 150)))
        log.append(topic, 0, NewRecord(bytes(SIZES.file_bytes - 150)))


def test_a_damaged_record_is_reported_and_passed_over(
    log: StoreLog, store: Store, topic: Topic, reports: list[str], tmp_path: Path
) -> None:
    stored = [log.append(topic, 0, NewRecord(b"%d" % number)) for number in range(3)]
    KeeperStore(store).flush()  # above the durable end nothing is damage yet
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(stored[1].log_position)
        file.write(b"\xff")
    queue, bodies, offset = topic.queues[0], [], 0
    while (pulled := log.read(queue, offset, count_max=10, bytes_max=1 << 20)).next_offset > offset:
        bodies += records_of(pulled)
        offset = pulled.next_offset
    assert (bodies, offset) == ([b"0", b"2"], 3)
    assert len(reports) == 1 and str(stored[1].log_position) in reports[0]
    assert log.record_at(stored[1].log_position) is None


def test_after_one_wait_in_vain_the_next_appends_do_not_wait_until_one_succeeds(log: StoreLog) -> None:
    patience: list[float] = []

    def stuck(*, timeout: float) -> None:
        patience.append(timeout)
        raise BrokerBusy("another process holds the append lock")

    def free(*, timeout: float) -> None:
        patience.append(timeout)

    for append in (stuck, stuck, stuck, free, stuck):
        with contextlib.suppress(BrokerBusy):
            log._patiently(append)
    assert patience == [PATIENCE, 0, 0, 0, PATIENCE]
    assert (log.congestion.refused, log.congestion.stored) == (4, 1)
    log.raise_fence(1)
    assert (log.congestion.refused, log.congestion.stored) == (4, 1), "a fence stores nothing"


def test_a_full_log_says_how_much_there_is(store: Store, topic: Topic, log: StoreLog) -> None:
    log.append(topic, 0, NewRecord(b"first"))
    KeeperStore(store).set_allocated_end(store.log_end)
    with pytest.raises(SegmentFull) as raised:
        log.append(topic, 0, NewRecord(b"second"))
    assert raised.value.used == raised.value.limit == store.log_end and raised.value.holder_pid == 0


def test_records_that_name_others_are_found_by_a_walk_up_to_an_end(log: StoreLog, topic: Topic) -> None:
    assert log.copies(0, log.end, 10) == (None, [])
    plain = log.append(topic, 0, NewRecord(b"plain"))
    copies = [log.append(topic, 1, NewRecord(b"copy", prepared_position=name)) for name in (1, 7)]
    committed = log.append(topic, 0, NewRecord(b"committed", sys_flag=8, prepared_position=9))
    log.append(topic, 0, NewRecord(b"half", sys_flag=4, prepared_position=11))
    named = [(copies[0].log_position, 1), (copies[1].log_position, 7), (committed.log_position, 9)]
    assert log.copies(plain.log_position, log.end, 100) == (None, named)
    assert log.copies(plain.log_position, copies[1].log_position, 100) == (None, named[:1])
    assert log.copies(plain.log_position, log.end, 2) == (copies[1].log_position, named[:1])
    assert log.committed(plain.log_position, 100) == (None, [9])
