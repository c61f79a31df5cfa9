"""The keeper's flush thread, those who wait for the disk, and the descriptor that tells an event loop of it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shmq.bindings import _core
from shmq.waits import is_ready
from tests.bindings.live_store import LiveStore, until

LONG = 60.0  # seconds; only a hung test sees the end of it


def test_what_is_wanted_is_flushed_within_one_stretch() -> None:
    with LiveStore() as live, ThreadPoolExecutor(2) as threads:
        live.topic()
        producer = live.producer()
        live.keeper.keeper_beat()
        stretch = threads.submit(live.keeper.keep_flushed, LONG, interval=LONG, bounds=(1, 1 << 62))
        for _ in range(20):  # each sent only after the one before is durable
            end = producer.append("orders", b"x", b"", queue_id=0)[3]
            threads.submit(live.store.wait_durable, end, LONG).result(LONG)
            assert live.store.durable_end >= end
        producer.append("orders", b"not waited for", b"", queue_id=0)
        assert live.store.durable_end < live.store.log_end
        live.keeper.set_allocated_end(0)
        with pytest.raises(_core.CoreError):
            producer.append("orders", bytes(1000), b"", queue_id=0, timeout=0.01)  # rings for room
        rung, began_ms, counts = stretch.result(LONG)
        assert rung and began_ms > 0
        assert counts[0] == 0 and 1 <= counts[1] <= 20 and counts[2] == 0 and counts[3] > 0


def test_a_synchronous_broker_flushes_whatever_comes() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic()
        live.producer().send("orders", b"x")
        assert live.store.durable_end < live.store.log_end
        assert live.keeper.keep_flushed(0.0)[0] is False
        assert live.store.durable_end == live.store.log_end
        assert live.keeper.keep_flushed(0.0) == (False, 0, ())


def test_an_asynchronous_one_when_it_is_time() -> None:
    with LiveStore() as live:
        live.topic()
        live.keeper.keep_flushed(0.0, interval=LONG)
        live.producer().send("orders", b"x")
        live.keeper.keep_flushed(0.0, interval=LONG)
        assert live.store.durable_end < live.store.log_end
    with LiveStore() as live:
        live.topic()
        live.producer().send("orders", b"x")
        live.keeper.keep_flushed(0.01, interval=0.0)
        assert live.store.durable_end == live.store.log_end


def test_a_wish_beyond_the_log_end_keeps_no_thread_busy() -> None:
    with LiveStore() as live:
        live.topic()
        live.keeper.keeper_beat()
        with pytest.raises(_core.CoreError):
            live.store.wait_durable(1 << 60, 0.001)
        assert live.keeper.keep_flushed(0.01, interval=LONG, bounds=(1,)) == (False, 0, ())


def test_a_failed_flush_ends_every_wait() -> None:
    with LiveStore(flush_sync=True) as live, ThreadPoolExecutor(8) as threads:
        live.topic()
        live.keeper.keeper_beat()
        end = live.producer().append("orders", b"x", b"", queue_id=0)[3]
        waiting = [threads.submit(live.store.wait_durable, end, LONG) for _ in range(8)]
        log = next(Path(live.path, "commitlog").iterdir())
        log.rename(log.with_suffix(".away"))
        other = live.attach(writable=True)  # it has not mapped the file, and will not find it
        with pytest.raises(_core.CoreError):
            _core.KeeperStore(other).keep_flushed(0.0)
        for each in waiting:
            with pytest.raises(_core.CoreError) as told:
                each.result(LONG)
            assert told.value.args[0] == _core.READ_ONLY
        assert live.keeper.keep_flushed(0.0) == (False, 0, ())  # final: nothing is tried again
        assert live.store.durable_end < end


@pytest.mark.parametrize("threads_count", [1, 16])
def test_many_waiters_each_return_when_their_own_record_is_durable(threads_count: int) -> None:
    with LiveStore(files=4, flush_sync=True) as live, ThreadPoolExecutor(threads_count + 1) as threads:
        live.topic()
        live.keeper.keeper_beat()
        stopping = threading.Event()

        def keep() -> None:
            while not stopping.is_set():
                live.keeper.keep_flushed(0.05)

        def send(number: int) -> None:
            producer = live.producer(live.attach(writable=True), wait_durable=True, timeout=LONG)
            for _ in range(200):
                receipt = producer.send("orders", b"%d" % number)
                assert live.store.durable_end > receipt.log_position

        keeping = threads.submit(keep)
        try:
            for each in [threads.submit(send, number) for number in range(threads_count)]:
                each.result(LONG)
        finally:
            stopping.set()
        keeping.result(LONG)


def test_the_descriptor_tells_of_a_wish_once() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic()
        live.keeper.keeper_beat()
        end = live.producer().append("orders", b"x", b"", queue_id=0)[3]
        descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        watch = _core.DurableWatch(live.store, descriptor)
        assert not is_ready(descriptor, 0.0)
        watch.want(end)
        assert not is_ready(descriptor, 0.05)  # not durable: nothing may come, however long one looks
        live.keeper.flush()
        assert is_ready(descriptor, LONG)
        os.eventfd_read(descriptor)
        assert not is_ready(descriptor, 0.05)
        watch.want(end)  # it is durable already
        assert is_ready(descriptor, LONG)
        os.eventfd_read(descriptor)
        watch.want(end + 1)
        live.keeper.set_read_only(1)
        assert is_ready(descriptor, LONG)  # it never will be
        watch.close()
        watch.close()
        os.close(descriptor)


def test_shipping_learns_of_records_that_no_sender_rings_for() -> None:
    with LiveStore() as live:
        live.topic()
        descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        watch = _core.DurableWatch(live.store, descriptor, ships=True)
        for _ in range(3):
            end = live.store.log_end
            watch.want(end + 1)
            assert not is_ready(descriptor, 0.05), "there is none yet"
            live.producer().append("orders", b"x", b"", queue_id=0)
            assert is_ready(descriptor, LONG)
            os.eventfd_read(descriptor)
        watch.close()
        os.close(descriptor)


def test_a_store_stays_mapped_as_long_as_it_is_watched() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic()
        end = live.producer().append("orders", b"x", b"", queue_id=0)[3]
        store = live.attach(writable=True)
        descriptor = os.eventfd(0, os.EFD_NONBLOCK)
        watch = _core.DurableWatch(store, descriptor)
        store.close()
        watch.want(end)
        live.keeper.flush()
        assert is_ready(descriptor, LONG)
        watch.close()
        os.close(descriptor)


def test_who_follows_the_durable_end_wants_nothing() -> None:
    with LiveStore(flush_sync=True) as live, ThreadPoolExecutor(1) as threads:
        live.topic()
        live.producer().send("orders", b"x")
        assert live.keeper.durable_follow(0, 0.0) is False
        following = threads.submit(live.keeper.durable_follow, 0, LONG)
        live.keeper.flush()
        assert following.result(LONG) is True
        until(lambda: live.keeper.durable_follow(0, 0.0))
