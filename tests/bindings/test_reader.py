"""Reading: order, filters, acknowledgement windows, waiting, and what damage and retention do."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, LiveStore, raises_status, until
from tests.tables.rows import every_row


def drain(reader: _core.Reader, count: int = 500) -> list[_core.Message]:
    found: list[_core.Message] = []
    while batch := reader.poll(count):
        found += batch
    return found


def offset_slot(live: LiveStore, queue: int) -> int:
    return live.tables.offset_put(live.tables.group_put("billing"), queue)


class Owner:
    """A consumer as the reader sees it."""

    def __init__(self) -> None:
        self.idle_calls = 0
        self.ends: Callable[[], bool] = lambda: False
        self.nacked: list[tuple[int, float | None]] = []
        self.extended: list[tuple[int, float]] = []

    def _idle(self) -> bool:
        self.idle_calls += 1
        return self.ends()

    def _nack(self, message: _core.Message, after: float | None) -> None:
        self.nacked.append((message.offset, after))

    def _extend(self, message: _core.Message, seconds: float) -> None:
        self.extended.append((message.offset, seconds))


# ---- order and position ------------------------------------------------------------------------------------------


def test_each_queue_is_read_in_order_and_whole() -> None:
    with LiveStore(files=2) as live:
        live.topic()
        producer = live.producer()
        sent: dict[int, list[bytes]] = {}
        for i in range(3000):
            receipt = producer.send("orders", b"%d" % i)
            sent.setdefault(receipt.queue_id, []).append(b"%d" % i)
        found: dict[int, list[bytes]] = {}
        for message in drain(live.reader(), 7):
            assert message.offset == len(found.setdefault(message.queue_id, []))
            found[message.queue_id].append(message.body)
        assert found == sent


def test_no_queue_starves_behind_a_full_one() -> None:
    with LiveStore(files=2) as live:
        live.topic()
        producer = live.producer()
        for _ in range(1000):
            producer.send("orders", b"x", queue_id=0)
        producer.send("orders", b"late", queue_id=3)
        first = [message.queue_id for message in live.reader().poll(200)]
        assert 3 in first


def test_reading_starts_where_it_was_assigned_and_seek_moves_it() -> None:
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        for i in range(10):
            live.producer().send("orders", b"%d" % i)
        reader = _core.Reader(live.store)
        reader.assign("orders", queue, 0, 4)
        assert reader.assigned() == [("orders", queue, 0, 4, 4)]
        assert reader.lag() == 6
        assert [m.body for m in reader.poll(2)] == [b"4", b"5"]
        assert reader.assigned() == [("orders", queue, 0, 6, 4)]
        reader.seek(queue, 9)
        assert [m.body for m in reader.poll()] == [b"9"]
        reader.seek(queue, 0)
        assert len(reader.poll()) == 10
        reader.seek(queue, 1000)
        assert reader.poll() == []
        assert reader.lag() == 0


def test_a_paused_queue_is_left_out_until_it_is_taken_in_again() -> None:
    with LiveStore() as live:
        first, second = live.topic(queues=2)
        for i in range(4):
            live.producer().send("orders", b"x", queue_id=i % 2)
        reader = live.reader()
        reader.pause(first, True)
        assert {m.queue_id for m in drain(reader)} == {1}
        assert reader.lag() == 2
        reader.pause(first, False)
        assert {m.queue_id for m in drain(reader)} == {0}
        reader.revoke(second)
        calls: list[Callable[[], None]] = [
            lambda: reader.pause(second, True),
            lambda: reader.seek(second, 0),
            lambda: reader.revoke(second),
        ]
        for call in calls:
            with raises_status(_core.NO_QUEUE):
                call()


def test_a_queue_paused_half_way_keeps_its_place() -> None:
    with LiveStore() as live:
        first, _ = live.topic(queues=2)
        for i in range(100):
            live.producer().send("orders", b"%d" % i, queue_id=i % 2)
        reader = live.reader()
        begun = reader.poll(10)
        assert {m.queue_id for m in begun} == {0}
        reader.pause(first, True)
        assert {m.queue_id for m in drain(reader)} == {1}
        reader.pause(first, False)
        assert [m.offset for m in drain(reader)] == list(range(10, 50))


def test_a_queue_without_units_does_not_keep_the_others_waiting() -> None:
    with LiveStore() as live:
        first, _ = live.topic(queues=2)
        for queue_id in (0, 1):
            live.producer().send_batch("orders", [b"%d" % queue_id] * 300, queue_id=queue_id)
        live.keeper.set_persisted(first, 300)
        assert live.keeper.frames_release(first, 0, 1, 1.0) == 1
        reader = live.reader()
        found, errors = 0, 0
        while found < 300:
            try:
                found += sum(m.queue_id == 1 for m in reader.poll(500))
            except _core.CoreError as error:
                assert error.args[0] == _core.CORRUPT
                errors += 1
        assert errors > 0


def test_assigning_nonsense_is_refused() -> None:
    with LiveStore() as live:
        live.topic()
        reader = _core.Reader(live.store)
        for queue, slot in ((64, -1), ((1 << 31) + 64, -1), (0, 64), (0, -2), (0, 1 << 33)):
            with raises_status(_core.BAD_ARGUMENT):
                reader.assign("orders", queue, 0, 0, slot)
        with pytest.raises(TypeError):
            reader.assign(b"orders", 0, 0, 0)  # type: ignore[arg-type]
        assert reader.assigned() == []
        for options in ({"slice": 0}, {"slice": 61}, {"spin_us": 2_000_000}):
            with raises_status(_core.BAD_ARGUMENT):
                _core.Reader(live.store, **options)  # type: ignore[arg-type]
        with raises_status(_core.BAD_ARGUMENT):
            reader.poll(0)
        with pytest.raises(TypeError):
            reader.poll(1, 2, 3)  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            reader.poll(1, max=2)  # type: ignore[misc]
        assert reader.poll(max=1, timeout=0) == []


# ---- filters -----------------------------------------------------------------------------------------------------


def test_a_filter_delivers_its_tags_and_counts_the_rest_as_done() -> None:
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        live.use_client()
        slot = offset_slot(live, queue)
        assert live.store.offset_take(slot)
        producer = live.producer()
        for tag in ("fruit", "veg", None, "fruit", "nuts"):
            producer.send("orders", str(tag).encode(), tag=tag)
        reader = _core.Reader(live.store, tags=["fruit", "nuts"])
        reader.assign("orders", queue, 0, 0, slot)
        messages = reader.poll()
        assert [m.tag for m in messages] == ["fruit", "fruit", "nuts"]
        messages[0].ack()
        assert live.store.offset_get(slot) == 3
        messages[2].ack()
        messages[1].ack()
        assert live.store.offset_get(slot) == 5


def test_a_long_filtered_backlog_is_passed_in_one_poll() -> None:
    with LiveStore(file_bytes=32 << 20, frame_max=1024, frame_ready=1024) as live:
        (queue,) = live.topic(queues=1)
        live.use_client()
        slot = offset_slot(live, queue)
        assert live.store.offset_take(slot)
        for _ in range(150):
            live.producer().send_batch("orders", [b""] * 512, tag="veg")
        reader = _core.Reader(live.store, tags=["fruit"])
        reader.assign("orders", queue, 0, 0, slot)
        assert reader.poll() == []
        assert live.store.offset_get(slot) == 150 * 512
        live.producer().send("orders", b"x", tag="fruit")
        assert [m.body for m in reader.poll()] == [b"x"]


def test_two_tags_of_one_hash_are_distinguished() -> None:
    assert _core.tag_hash("Aa") == _core.tag_hash("BB")
    with LiveStore() as live:
        live.topic()
        live.producer().send_batch("orders", [b"1"], tag="Aa")
        live.producer().send_batch("orders", [b"2"], tag="BB")
        assert [m.body for m in live.reader(tags=["BB"]).poll()] == [b"2"]
        with pytest.raises(TypeError, match="tags=\\[tag\\]"):
            live.reader(tags="BB")


# ---- acknowledging -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(min_value=1, max_value=700).flatmap(lambda count: st.permutations(range(count))), st.data())
def test_any_order_of_acks_commits_the_longest_prefix(order: list[int], data: st.DataObject) -> None:
    count = len(order)
    order = order[: data.draw(st.integers(min_value=0, max_value=count))]
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        live.use_client()
        slot = offset_slot(live, queue)
        assert live.store.offset_take(slot)
        live.producer().send_batch("orders", [b"x"] * count)
        reader = _core.Reader(live.store)
        reader.assign("orders", queue, 0, 0, slot)
        messages = drain(reader)
        done: set[int] = set()
        prefix = 0
        for offset in order:
            messages[offset].ack()
            messages[offset].ack()
            done.add(offset)
            while prefix in done:
                prefix += 1
            assert reader.assigned()[0][4] == prefix
            assert live.store.offset_get(slot) == (prefix if prefix else -1)


def test_the_window_slides_for_ever() -> None:
    with LiveStore(files=2) as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"x"] * 5000)
        reader = live.reader()
        held: list[_core.Message] = []
        for message in drain(reader, 100):
            held.append(message)
            if len(held) == 300:
                for old in reversed(held):
                    old.ack()
                held.clear()
                assert reader.assigned()[0][4] == message.offset + 1
        assert reader.assigned()[0][4] == 4800


def test_only_the_owner_moves_a_groups_offset() -> None:
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        live.use_client()
        slot = offset_slot(live, queue)
        live.producer().send_batch("orders", [b"x"] * 4)
        reader = _core.Reader(live.store)
        reader.assign("orders", queue, 0, 0, slot)
        messages = reader.poll()
        assert reader.lag() == 4
        messages[0].ack()
        assert reader.lag() == 3
        assert live.store.offset_get(slot) == -1
        assert live.store.offset_take(slot)
        messages[1].ack()
        assert live.store.offset_get(slot) == 2
        live.store.offset_leave(slot)
        messages[2].ack()
        assert live.store.offset_get(slot) == 2


@pytest.mark.parametrize("how", ["revoke", "seek", "assign", "close"])
def test_an_old_message_no_longer_moves_the_offset(how: str) -> None:
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        live.use_client()
        slot = offset_slot(live, queue)
        assert live.store.offset_take(slot)
        live.producer().send_batch("orders", [b"x"] * 4)
        reader = _core.Reader(live.store)
        reader.assign("orders", queue, 0, 0, slot)
        message, *_ = reader.poll()
        change: dict[str, Callable[[], None]] = {
            "revoke": lambda: reader.revoke(queue),
            "seek": lambda: reader.seek(queue, 0),
            "assign": lambda: reader.assign("orders", queue, 0, 2, slot),
            "close": reader.close,
        }
        change[how]()
        message.ack()
        assert message.settled
        assert live.store.offset_get(slot) == -1


def test_auto_ack_settles_the_message_before_when_the_next_is_taken() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"x"] * 5)
        owner = Owner()
        reader = live.reader(auto_ack=True, owner=owner)
        first = next(reader)
        assert not first.settled
        second = next(reader)
        assert first.settled and not second.settled
        second.nack(3.0)
        third, fourth = reader.poll(2)
        assert (third.settled, fourth.settled) == (False, False)
        assert owner.nacked == [(1, 3.0)]
        fifth = next(reader)
        assert (third.settled, fourth.settled, fifth.settled) == (True, True, False)
        reader.stop()
        assert list(reader) == []
        assert fifth.settled


def test_a_stopped_or_closed_reader_settles_what_it_gave_last() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"x"] * 2)
        reader = live.reader(auto_ack=True)
        for message in reader:
            reader.stop()
            assert not message.settled
        assert message.settled
        assert reader.poll() == []
        again = live.reader(auto_ack=True)
        message = next(again)
        again.close()
        again.close()
        assert message.settled
        assert list(again) == []
        with raises_status(_core.BAD_ARGUMENT, "closed"):
            again.poll()


# ---- giving back -------------------------------------------------------------------------------------------------


def test_a_requeued_message_comes_before_anything_new() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"a", b"b", b"c"])
        reader = live.reader()
        first, second = reader.poll(2)
        second.ack()
        reader.requeue(second)
        reader.requeue(first)
        assert reader.lag() == 1
        assert [m.body for m in reader.poll()] == [b"b", b"a", b"c"]
        assert not second.settled
        with LiveStore() as elsewhere, pytest.raises(TypeError):
            _core.Reader(elsewhere.store).requeue(first)
        with pytest.raises(TypeError):
            reader.requeue(7)  # type: ignore[arg-type]
        reader.requeue(first)
        reader.seek(0, 2)
        assert [m.body for m in reader.poll()] == [b"c"]


def test_a_message_requeued_with_another_reader_settles_with_its_own() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send("orders", b"x")
        reader, other = live.reader(codec=lambda _: "first"), live.reader(codec=lambda _: "second")
        (message,) = reader.poll()
        other.requeue(message)
        assert [message.value for message in other.poll(1)] == ["second"]
        assert reader.assigned()[0][4] == 0
        message.ack()
        assert reader.assigned()[0][4] == 1


def test_a_retry_queue_is_not_filtered_and_shows_where_its_messages_were_sent_to() -> None:
    strays: list[bytes] = []

    class Owner:
        def _stray(self, message: _core.Message) -> None:
            strays.append(message.body)

    with LiveStore() as live:
        topic = live.topic("%RETRY%g", queues=1)
        producer = live.producer()
        for body, origin in ((b"ours", "orders"), (b"theirs", "payments"), (b"ours again", "orders")):
            text = f"TAGS\x01blue\x02RETRY_TOPIC\x01{origin}\x02".encode()
            producer.append("%RETRY%g", body, text, queue_id=0)
        reader = _core.Reader(live.store, owner=Owner(), tags=["red"])
        reader.assign("orders", topic[0], _core.RETRY_QUEUE_BASE, 0)
        found = reader.poll()
        assert [(message.body, message.topic, message.queue_id) for message in found] == [
            (b"ours", "orders", _core.RETRY_QUEUE_BASE),
            (b"ours again", "orders", _core.RETRY_QUEUE_BASE),
        ]
        assert strays == [b"theirs"]


def test_nack_that_requeues_leaves_the_message_open() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send("orders", b"x")

        class Again(Owner):
            def _nack(self, message: _core.Message, after: float | None) -> None:
                message.attempt += 1
                reader.requeue(message)

        reader = live.reader(owner=Again())
        message = next(reader)
        message.nack()
        assert not message.settled
        assert next(reader) is message
        assert message.attempt == 2
        message.ack()
        message.nack()
        assert reader.poll() == []


def test_a_message_asks_its_owner() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"x"] * 4)
        owner = Owner()
        one, two, three, four = live.reader(owner=owner).poll()
        one.nack(after=2.5)
        one.nack()
        two.extend(7.0)
        with pytest.raises(ZeroDivisionError), three:
            raise ZeroDivisionError
        with four as same:
            assert same is four
        assert owner.nacked == [(0, 2.5), (2, None)]
        assert owner.extended == [(1, 7.0)]
        assert [m.settled for m in (one, two, three, four)] == [True, False, True, True]
        (alone, *_) = live.reader().poll()
        with raises_status(_core.BAD_ARGUMENT, "without a group"):
            alone.nack()
        with pytest.raises(TypeError):
            alone.nack(1, 2)  # type: ignore[call-arg]


# ---- waiting -----------------------------------------------------------------------------------------------------


def test_waiting_needs_a_client_slot() -> None:
    with LiveStore() as live:
        live.topic()
        with raises_status(_core.BAD_ARGUMENT, "use_client"):
            live.reader().poll(timeout=0.01)


def test_a_waiting_reader_gets_what_another_process_would_send() -> None:
    with LiveStore() as live:
        live.topic()
        live.use_client()
        other = live.attach(writable=True)
        sender = threading.Timer(0.02, lambda: live.producer(other).send("orders", b"x"))
        sender.start()
        assert [m.body for m in live.reader(slice=30.0).poll(timeout=30.0)] == [b"x"]
        sender.join()
        assert live.reader().poll(timeout=0.001) != []


ECHO = """
import sys
from shmq.bindings import _core
store = _core.Store(*map(int, sys.argv[1:4]), writable=True)
slot = int(sys.argv[4])
store.use_client(slot, _core.BrokerTables(store).client_generation(slot))
producer = _core.Producer(store, resolve=store.topic_find)
reader = _core.Reader(store, slice=30.0, spin_us=int(sys.argv[5]))
reader.assign("ping", store.topic(store.topic_find("ping"))["queues"][0], 0, 0)
print("ready", flush=True)
while (message := reader.poll(1, timeout=30.0)[0]).body != b"end":
    producer.send("pong", message.body)
"""


@pytest.mark.parametrize("spin_us", [0, 50])
def test_no_wake_up_is_lost_between_two_processes(spin_us: int) -> None:
    with LiveStore() as live:
        live.topic("ping", queues=1)
        live.topic("pong", queues=1)
        live.use_client()
        theirs = live.use_client(live.attach(writable=True))
        command = [sys.executable, "-P", "-c", ECHO, *map(str, live.descriptors), str(theirs), str(spin_us)]
        child = subprocess.Popen(command, pass_fds=live.descriptors, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        producer, reader = live.producer(), live.reader("pong", slice=30.0, spin_us=spin_us)
        for i in range(1000):
            producer.send("ping", b"%d" % i)
            assert [m.body for m in reader.poll(1, timeout=30.0)] == [b"%d" % i]
        producer.send("ping", b"end")
        child.communicate(timeout=30)
        assert child.returncode == 0


def test_every_waiting_thread_of_a_process_is_woken_for_its_own_queue() -> None:
    with LiveStore() as live:
        for name in ("a", "b", "c"):
            live.topic(name, queues=2)
        live.use_client()
        found: dict[str, list[bytes]] = {}

        def wait(name: str) -> None:
            with_reader = live.reader(name, slice=30.0)
            found[name] = [message.body for _, message in zip(range(20), with_reader, strict=False)]

        threads = [threading.Thread(target=wait, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        producer = live.producer(live.attach(writable=True))
        for i in range(20):
            for name in ("c", "a", "b"):
                producer.send(name, b"%d" % i)
        for thread in threads:
            thread.join(60)
        expected = sorted(b"%d" % i for i in range(20))
        assert {name: sorted(bodies) for name, bodies in found.items()} == dict.fromkeys(("a", "b", "c"), expected)


def test_i7_under_synchronous_flush_nothing_is_seen_before_it_is_durable() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic(queues=1)
        live.use_client()
        live.keeper.keeper_beat()
        producer, reader = live.producer(), live.reader(slice=30.0)
        producer.send("orders", b"x")
        assert reader.poll(timeout=0.02) == []
        live.keeper.flush()
        producer.send("orders", b"y")
        assert [m.body for m in reader.poll()] == [b"x"]
        assert reader.poll(timeout=0.02) == []
        flusher = threading.Timer(0.02, live.keeper.flush)
        flusher.start()
        assert [m.body for m in reader.poll(timeout=30.0)] == [b"y"]
        flusher.join()


@pytest.mark.parametrize("action", ["wake", "stop", "close"])
def test_a_wait_can_be_ended_from_another_thread(action: str) -> None:
    with LiveStore() as live:
        live.topic()
        live.use_client()
        reader = live.reader(slice=0.05)
        finished: list[list[_core.Message] | BaseException] = []

        def wait() -> None:
            try:
                finished.append(reader.poll(timeout=60.0))
            except _core.CoreError as error:
                finished.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: live.figures.clients()[0][1] == 2)
        getattr(reader, action)()
        thread.join(60)
        assert not thread.is_alive()
        if action == "close":
            assert isinstance(finished[0], _core.CoreError)
        else:
            assert finished == [[]]


def test_a_queue_assigned_during_a_wait_is_waited_for() -> None:
    with LiveStore() as live:
        first, second = live.topic(queues=2)
        live.use_client()
        reader = _core.Reader(live.store, slice=0.05)
        reader.assign("orders", first, 0, 0)
        found: list[_core.Message] = []
        thread = threading.Thread(target=lambda: found.extend(reader.poll(timeout=60.0)))
        thread.start()
        until(lambda: live.figures.clients()[0][1] == 2)
        reader.assign("orders", second, 1, 0)
        live.producer().send("orders", b"x", queue_id=1)
        thread.join(60)
        assert [m.body for m in found] == [b"x"]


def test_the_owner_is_asked_between_slices_and_after_a_wake() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.use_client()
        owner = Owner()
        owner.ends = lambda: owner.idle_calls == 3
        reader = live.reader(owner=owner, slice=0.001)
        assert list(reader) == []
        assert owner.idle_calls == 3
        owner.ends = lambda: False
        live.producer().send_batch("orders", [b"x"] * 3)
        next(reader)
        assert owner.idle_calls == 3
        reader.wake()
        next(reader)
        assert owner.idle_calls == 4
        owner.ends = lambda: bool(1 // 0)
        reader.wake()
        with pytest.raises(ZeroDivisionError):
            next(reader)


def test_a_signal_ends_a_wait() -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with LiveStore() as live:
        live.topic()
        live.use_client()
        before = signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(KeyboardInterrupt):
                next(live.reader(slice=5.0))
        finally:
            signal.signal(signal.SIGALRM, before)


# ---- damage and retention ----------------------------------------------------------------------------------------


def overwrite(live: LiveStore, position: int, data: bytes) -> None:
    live.keeper.flush()  # above the durable end nothing is damage yet
    path = live.path / "commitlog" / f"{position // FILE_BYTES * FILE_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(position % FILE_BYTES)
        file.write(data)


@every_row("damage", ["size", "magic", "queue_offset", "position", "blank", "body_size"])
def test_a_damaged_record_is_never_delivered_and_stepped_over_once(damage: str) -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        receipts = live.producer().send_batch("orders", [b"a", b"b", b"c"])
        at = receipts[1].log_position
        where = {"size": 0, "magic": 4, "queue_offset": 27, "position": 35, "body_size": 84, "blank": 0}[damage]
        overwrite(live, at + where, bytes(8) if damage == "blank" else b"\x01\x02\x03\x04")
        reader = live.reader()
        assert [m.body for m in reader.poll()] == [b"a"]
        with raises_status(_core.CORRUPT, f"log position {at}"):
            reader.poll()
        assert [m.body for m in reader.poll()] == [b"c"]
        fresh = live.reader()
        assert next(fresh).body == b"a"
        with raises_status(_core.CORRUPT, "offset 1"):
            next(fresh)
        assert next(fresh).body == b"c"


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_damage_crashes_the_reader(data: st.DataObject) -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        sent = [os.urandom(20) for _ in range(6)]
        live.producer().send_batch("orders", sent, tag="t", keys=list("abcdef"))
        end = live.store.log_end
        for _ in range(data.draw(st.integers(min_value=1, max_value=20))):
            overwrite(live, data.draw(st.integers(0, end - 1)), data.draw(st.binary(min_size=1, max_size=3)))
        reader = live.reader()
        settled = 0
        while settled < 6:
            try:
                for m in reader.poll(1):
                    settled += 1
                    assert len(m.view) == m.size
                    str((m, m.topic, m.tag, m.keys, m.properties, m.message_id, m.verify(), m.message_group))
                    try:
                        assert isinstance(m.body, bytes)
                    except _core.CoreError:
                        assert m.sys_flag & 1
            except _core.CoreError as error:
                assert error.args[0] == _core.CORRUPT
                settled += 1


def drain_until_told_of_loss(reader: _core.Reader) -> list[_core.Message]:
    found: list[_core.Message] = []
    with raises_status(_core.GONE):
        while batch := reader.poll(1):
            found += batch
    return found


def test_what_retention_deleted_is_skipped_and_counted_as_done() -> None:
    with LiveStore(files=3) as live:
        (queue,) = live.topic(queues=1)
        live.use_client()
        slot = offset_slot(live, queue)
        assert live.store.offset_take(slot)
        producer = live.producer()
        receipts = [producer.send("orders", bytes(10_000)) for _ in range(250)]
        reader = _core.Reader(live.store)
        reader.assign("orders", queue, 0, 0, slot)
        held = reader.poll(10)
        first = next(r.offset for r in receipts if r.log_position >= FILE_BYTES)
        (live.path / "commitlog" / f"{0:020d}").unlink()
        live.keeper.set_log_begin(FILE_BYTES)
        live.keeper.set_queue(queue, offset_min=first, offset_max=250, persisted=0)
        rest = drain(live.reader())
        assert [m.offset for m in rest] == list(range(first, 250))
        buffered = drain_until_told_of_loss(reader)
        assert [m.offset for m in buffered] == list(range(10, buffered[-1].offset + 1))
        assert [m.offset for m in drain(reader)] == list(range(first, 250))  # said once
        held[3].ack()
        assert live.store.offset_get(slot) in (-1, first)
        reader.seek(queue, 0)
        assert reader.poll(1)[0].offset == first
        assert live.store.offset_get(slot) == first
        assert held[0].body == bytes(10_000)


def test_old_units_are_read_from_files_and_missing_ones_are_said_so() -> None:
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        live.producer().send_batch("orders", [b"%d" % i for i in range(500)])
        units = live.keeper.units_read(queue, 0, 500)
        live.keeper.set_persisted(queue, 500)
        assert live.keeper.frames_release(queue, 0, 2, 1.0) == 2
        reader = live.reader()
        for _ in range(2):
            with raises_status(_core.CORRUPT, "from offset 0"):
                reader.poll()
        folder = live.path / "consumequeue" / "orders" / "0"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(units.ljust(300_000 * _core.UNIT_BYTES, b"\0"))
        assert [m.body for m in drain(reader)] == [b"%d" % i for i in range(500)]
        assert live.store.search_time(queue, 0) == 0


def test_a_missing_log_file_is_an_error_that_loses_nothing() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send("orders", b"x")
        store = live.attach(writable=False)
        path = live.path / "commitlog" / f"{0:020d}"
        path.rename(path.with_suffix(".away"))
        reader = live.reader(store=store)
        for _ in range(2):
            with raises_status(_core.SYSTEM):
                reader.poll()
        path.with_suffix(".away").rename(path)
        assert [m.body for m in reader.poll()] == [b"x"]


# ---- leaks -------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_reading_a_lot_leaks_nothing() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        live.use_client()
        live.producer().send_batch("orders", [b"x" * 50] * 100, tag="tag")
        owner, codec, tags = Owner(), bytes.upper, ["tag", "other"]
        objects: list[Any] = [owner, codec, tags, live.store, "orders"]

        def once() -> None:
            reader = live.reader(owner=owner, codec=codec, tags=tags, auto_ack=True)
            for _, message in zip(range(50), reader, strict=False):
                _ = message.body, message.properties, message.value, message.view[3:]
            batch = reader.poll(20)
            reader.requeue(batch[0])
            reader.poll(20)
            reader.poll(20)
            assert reader.poll(timeout=1e-6) == []
            reader.revoke(queue)

        for _ in range(20):
            once()
        gc.collect()
        counts = [sys.getrefcount(item) for item in objects]
        before = resident_bytes()
        for _ in range(1000):
            once()
        gc.collect()
        assert [sys.getrefcount(item) for item in objects] == counts
        assert resident_bytes() - before < 4 << 20


def test_a_cycle_through_reader_owner_and_messages_is_collected() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send("orders", b"x")

        class Keeper(Owner):
            alive = 0

            def __init__(self) -> None:
                super().__init__()
                Keeper.alive += 1
                self.reader = live.reader(owner=self, codec=lambda body: [self, body], auto_ack=True)
                self.message = next(self.reader)
                self.value = self.message.value
                self.reader.requeue(self.message)

            def __del__(self) -> None:
                Keeper.alive -= 1

        Keeper()
        gc.collect()
        assert Keeper.alive == 0
