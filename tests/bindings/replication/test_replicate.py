"""A log that follows a master's: two real stores, the master's bytes in any pieces, and what a follower refuses."""

from __future__ import annotations

import random
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore, raises_status

FILE_BYTES = 128 << 10
MASTER = "master.example:10911"
DELAYS = struct.pack("=3Q", 1000, 5000, 10_000)


class Pair:
    """A master with two files, and a follower that has its topics."""

    def __init__(self, *, topics: bool = True) -> None:
        self.master = LiveStore(files=3, file_bytes=FILE_BYTES)
        self.slave = LiveStore(files=3, file_bytes=FILE_BYTES)
        self.replica = _core.ReplicaStore(self.slave.store)
        self.replica.follow(MASTER)
        for store in (self.master, self.slave) if topics else (self.master,):
            store.topic()
            store.topic("SCHEDULE_TOPIC_XXXX", queues=3)
        self.producer = self.master.producer()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.master.close()
        self.slave.close()

    def send(self, topic: str = "orders", body: bytes = b"x", properties: bytes = b"", queue_id: int = 0) -> int:
        return self.producer.append(topic, body, properties, queue_id=queue_id)[1]

    def bytes_from(self, position: int) -> bytes:
        """What the master has of one file from a position on."""
        base = position // FILE_BYTES * FILE_BYTES
        file = Path(self.master.path, "commitlog", f"{base:020d}").read_bytes()
        return file[position - base : min(self.master.store.log_end - base, FILE_BYTES)]

    def replicate(self, data: bytes, position: int | None = None) -> tuple[int, int, int, tuple[bytes, int] | None]:
        return self.replica.replicate(data, self.end if position is None else position, DELAYS, 10.0)

    @property
    def end(self) -> int:
        return self.slave.store.log_end

    def catch_up(self) -> None:
        while self.end < self.master.store.log_end:
            before = self.end
            assert self.replicate(self.bytes_from(before))[2] == _core.OK
            assert self.end > before

    def assert_equal(self) -> None:
        end = self.master.store.log_end
        assert self.end == end
        for base in range(0, end, FILE_BYTES):
            size = min(end - base, FILE_BYTES)
            paths = [Path(live.path, "commitlog", f"{base:020d}") for live in (self.master, self.slave)]
            files = [path.read_bytes()[:size] for path in paths]
            assert files[0] == files[1]
        for topic in ("orders", "SCHEDULE_TOPIC_XXXX"):
            for mine, theirs in zip(self.queues(self.slave, topic), self.queues(self.master, topic), strict=True):
                count = self.master.store.queue(theirs).offset_max
                assert self.slave.store.queue(mine).offset_max == count
                units = [self.slave.keeper.units_read(mine, 0, count), self.master.keeper.units_read(theirs, 0, count)]
                assert units[0] == units[1]
        assert self.slave.store.described_end >= self.master.store.described_end

    @staticmethod
    def queues(live: LiveStore, topic: str) -> list[int]:
        return list(live.store.topic(live.store.topic_find(topic))["queues"])


MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 40_000),
        st.sampled_from([b"", b"TAGS\1red\2", b"TAGS\1blue\2KEYS\1k1 k2\2", b"x\1y\2"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=25)
@given(MESSAGES, st.integers(0, 1 << 32))
def test_a_follower_becomes_its_master_whatever_the_pieces(sent: list[tuple[int, bytes, int]], seed: int) -> None:
    choice = random.Random(seed)
    with Pair() as pair:
        for size, properties, queue_id in sent:
            pair.send(body=choice.randbytes(size), properties=properties, queue_id=queue_id)
        while pair.end < pair.master.store.log_end:
            data, position, shown = pair.bytes_from(pair.end), pair.end, 0
            while pair.end == position:
                shown = min(len(data), shown + choice.randint(1, 9000))
                end, _, stop, missing = pair.replicate(data[:shown])
                assert (stop, missing) == (_core.OK, None)
                assert end == pair.end and (pair.end > position or shown < len(data))
        pair.assert_equal()


def test_the_first_record_of_a_queue_waits_for_the_callers_judgement() -> None:
    with Pair() as pair:
        first = pair.send(queue_id=0)
        pair.send(queue_id=0)
        second = pair.send(queue_id=1)
        data = pair.bytes_from(0)
        assert pair.replica.replicate(data, 0, DELAYS, 10.0, 1)[:3] == (second, 2, _core.NO_QUEUE)
        assert pair.replica.replicate(data[second:], second, DELAYS, 10.0, second)[3] == (b"orders", 1)
        assert pair.replica.replicate(data[second:], second, DELAYS, 10.0, second + 1)[1:3] == (1, _core.OK)
        assert first == 0
        pair.assert_equal()


def test_units_of_the_schedule_topic_say_due_times() -> None:
    with Pair() as pair:
        position = pair.send("SCHEDULE_TOPIC_XXXX", queue_id=1)
        pair.catch_up()
        store_ms = _core.record_decode(pair.bytes_from(position))["store_ms"]
        unit = pair.slave.keeper.units_read(pair.queues(pair.slave, "SCHEDULE_TOPIC_XXXX")[1], 0, 1)
        assert struct.unpack(">QIq", unit)[2] == store_ms + 5000


def test_a_reader_of_the_follower_gets_the_messages() -> None:
    with Pair() as pair:
        for number in range(20):
            pair.send(body=b"%d" % number, queue_id=number % 4)
        reader = pair.slave.reader(store=pair.slave.attach(writable=False))
        assert reader.poll(32, 0.0) == []
        pair.catch_up()
        assert sorted(int(bytes(message.body)) for message in reader.poll(32, 0.0)) == list(range(20))


def test_a_sleeping_reader_of_the_follower_is_woken() -> None:
    with Pair() as pair:
        store = pair.slave.attach(writable=True)
        pair.slave.use_client(store)
        reader = pair.slave.reader(store=store)
        pair.send(body=b"wake")
        thread = threading.Thread(target=pair.catch_up)
        thread.start()
        assert [bytes(message.body) for message in reader.poll(1, 30.0)] == [b"wake"]
        thread.join()


def test_a_follower_takes_no_message_of_its_own_and_names_its_master() -> None:
    with Pair() as pair:
        producer = pair.slave.producer()
        with raises_status(_core.NOT_MASTER, MASTER):
            producer.send("orders", b"x")
        with raises_status(_core.NOT_MASTER):
            producer.append("orders", bytes(30_000), queue_id=0)
        assert pair.slave.store.leader == MASTER
        assert pair.master.store.leader == ""
        assert pair.slave.store.read_only == 6
        assert pair.end == 0


def test_a_full_disk_that_has_room_again_leaves_a_follower() -> None:
    with Pair() as pair:
        pair.send()
        data = pair.bytes_from(0)
        pair.slave.keeper.set_read_only(4)
        assert pair.replicate(data)[2] == _core.READ_ONLY
        with raises_status(_core.NOT_MASTER, MASTER):
            pair.slave.producer().send("orders", b"x")
        pair.slave.keeper.set_read_only(0)
        assert pair.slave.store.read_only == 6
        with raises_status(_core.NOT_MASTER):
            pair.slave.producer().send("orders", b"x")
        assert pair.replicate(data)[:3] == (len(data), 1, _core.OK)


def test_a_log_that_follows_no_master_takes_no_record_of_one() -> None:
    with LiveStore() as live, Pair() as pair:
        live.topic()
        pair.send()
        assert _core.ReplicaStore(live.store).replicate(pair.bytes_from(0), 0, DELAYS, 1.0)[2] == _core.READ_ONLY
        assert live.store.log_end == 0


def test_an_unknown_topic_or_queue_is_asked_for_first() -> None:
    with Pair(topics=False) as pair:
        pair.send(queue_id=3)
        data = pair.bytes_from(0)
        assert pair.replicate(data) == (0, 0, _core.NO_TOPIC, (b"orders", 3))
        pair.slave.topic(queues=2)
        assert pair.replicate(data) == (0, 0, _core.NO_QUEUE, (b"orders", 3))
        pair.slave.topic(queues=4)
        assert pair.replicate(data) == (len(data), 1, _core.OK, None)


def test_without_a_file_it_says_so_and_goes_on_when_there_is_one() -> None:
    with Pair() as pair:
        pair.send()
        data = pair.bytes_from(0)
        pair.slave.keeper.set_allocated_end(0)
        assert pair.replicate(data)[2] == _core.LOG_FULL
        pair.slave.keeper.set_allocated_end(3 * FILE_BYTES)
        assert pair.replicate(data)[2] == _core.OK


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_refused_and_changes_nothing(seed: int) -> None:
    choice = random.Random(seed)
    with Pair() as pair:
        pair.send(body=choice.randbytes(300), properties=b"TAGS\1red\2KEYS\1k\2")
        data = pair.bytes_from(0)
        for bit in range(8 * len(data)):
            if bit % 7 != seed:
                continue
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            try:
                answer = pair.replicate(bytes(damaged), 0)
            except _core.CoreError as error:
                assert error.args[0] == _core.CORRUPT
            else:
                assert answer[1] == 0 and answer[2] == _core.OK, (bit, answer)  # a size that waits for more
            assert pair.end == 0
        pair.catch_up()
        pair.assert_equal()


def test_a_position_that_is_not_the_log_end_is_refused() -> None:
    with Pair() as pair:
        pair.send()
        pair.send()
        pair.catch_up()
        with raises_status(_core.BAD_ARGUMENT):
            pair.replicate(pair.bytes_from(0), 0)


def test_a_queue_offset_that_does_not_follow_is_refused() -> None:
    with Pair() as pair, Pair() as other:
        pair.send()
        pair.catch_up()
        other.send(queue_id=1)
        other.send()  # the same length, and so the same place; offset 0 of queue 0 again
        with raises_status(_core.CORRUPT, "queue offset"):
            pair.replicate(other.bytes_from(pair.end))


def test_a_queue_begins_where_the_masters_first_record_does() -> None:
    with Pair() as pair:
        first = [pair.send() for _ in range(3)][-1]
        slave = LiveStore(files=3, file_bytes=FILE_BYTES)
        try:
            queue = slave.topic()[0]
            slave.keeper.set_log_end(first)
            replica = _core.ReplicaStore(slave.store)
            replica.follow(MASTER)
            assert replica.replicate(pair.bytes_from(first), first, DELAYS, 1.0)[1:3] == (1, _core.OK)
            entry = slave.store.queue(queue)
            assert (entry.offset_min, entry.offset_max) == (2, 3)
        finally:
            slave.close()


def test_a_hole_whose_owner_still_writes_is_laid_out_again() -> None:
    with Pair() as pair:
        other = pair.master.attach(writable=True)
        claim = pair.master.producer(store=other)
        with claim.reserve("orders", 20_000) as body:
            body.view[:5] = b"early"
            pair.send(body=b"behind the hole")  # evicts the claim
            body.view[5:10] = b"later"
            data = pair.bytes_from(0)
            assert pair.replicate(data)[1:3] == (2, _core.OK)
        hole = pair.slave.log.record_bytes_at(0)
        assert hole is not None and _core.record_verify(hole)


@pytest.mark.parametrize("leader", ["x" * 300])
def test_a_master_has_a_name_that_fits(leader: str) -> None:
    with LiveStore() as live, raises_status(_core.BAD_ARGUMENT):
        _core.ReplicaStore(live.store).follow(leader)
