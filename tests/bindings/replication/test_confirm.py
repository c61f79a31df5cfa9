"""What is confirmed: on the disks of this host and of every replica in sync, and not visible until then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from shmq.bindings import _core
from shmq.shm.core import READ_ONLY_DISK_FULL, READ_ONLY_FEW_REPLICAS
from shmq.waits import is_ready
from tests.bindings.live_store import LiveStore, until

LONG = 60.0  # seconds; only a hung test sees the end of it
NOT_NEEDED = (1 << 64) - 1


class Master(LiveStore):
    """A log that waits for replicas, and what its shipping process says of them."""

    def __init__(self) -> None:
        super().__init__(confirms=True, files=16)
        self.topic()
        self.replica = _core.ReplicaStore(self.store)
        self.replica.confirm(0, 0, LONG)

    def append(self, body: bytes = b"x") -> int:
        """Store a message without waiting; return the log position behind it."""
        return self.producer().append("orders", body, b"", queue_id=0)[3]


@pytest.fixture
def master() -> Iterator[Master]:
    with Master() as live:
        yield live


def ends(live: LiveStore) -> tuple[int, int, int]:
    return live.store.log_end, live.store.durable_end, live.store.confirmed_end


def test_the_head_says_the_rule() -> None:
    for options, rule, is_sync in (({}, 0, False), ({"flush_sync": True}, 1, True), ({"confirms": True}, 2, True)):
        with LiveStore(**options) as live:
            assert (live.store.head["ack_rule"], live.store.head["flush_sync"]) == (rule, is_sync)


def test_what_is_confirmed_is_the_least_of_this_disk_and_of_the_replicas(master: Master) -> None:
    first, second = master.append(), master.append()
    master.replica.confirm(second, 1, LONG)
    assert ends(master) == (second, 0, 0), "a replica may be ahead of this disk"
    master.keeper.flush()
    assert ends(master) == (second, second, second)
    third = master.append()
    master.keeper.flush()
    assert ends(master) == (third, third, second)
    assert master.replica.confirm(third, 1, LONG) == third
    assert first < master.store.confirmed_end == master.store.safe_end == master.store.visible_end


def test_it_never_falls(master: Master) -> None:
    end = master.append()
    master.keeper.flush()
    assert master.replica.confirm(None, 0, LONG) == end
    assert master.store.in_sync_end == NOT_NEEDED
    assert master.replica.confirm(1, 1, LONG) == end
    assert (master.store.in_sync_end, master.store.in_sync_count) == (end, 1), (
        "no replica counts that lacks a byte of it"
    )
    later = master.append()
    master.keeper.flush()
    assert ends(master) == (later, later, end)


def test_a_flush_after_the_last_replica_went_confirms_by_itself(master: Master) -> None:
    master.replica.confirm(None, 0, LONG)
    for _ in range(3):
        end = master.append()
        master.keeper.flush()
        assert master.store.confirmed_end == end


def test_a_waiter_is_woken_by_the_report_and_not_by_the_flush(master: Master) -> None:
    with ThreadPoolExecutor(1) as threads:
        end = master.append()
        master.keeper.keeper_beat()
        waiting = threads.submit(master.attach(writable=True).wait_durable, end, LONG)
        master.keeper.keep_flushed(0.1)
        assert master.store.durable_end == end and not waiting.done()
        master.replica.confirm(end, 1, LONG)
        waiting.result(LONG)


def test_a_wait_that_is_too_long_says_what_for(master: Master) -> None:
    end = master.append()
    master.keeper.keeper_beat()
    with pytest.raises(_core.CoreError, match="the disk has it only up to 0"):
        master.store.wait_durable(end, 0.0)
    master.keeper.flush()
    with pytest.raises(_core.CoreError, match="its slaves confirm it only up to 0"):
        master.store.wait_durable(end, 0.0)


def test_what_is_not_confirmed_is_not_visible(master: Master) -> None:
    master.use_client()
    reader = master.reader()
    end = master.append(b"hidden")
    master.keeper.flush()
    queue = master.store.topic(0)["queues"][0]
    assert reader.poll(1, 0.0) == []
    assert master.log.pull(queue, 0, 1, 1 << 20, None)[1] == 0
    assert master.log.wait_queues([queue], [0], 0.0) is False
    assert master.store.queue_visible(queue) == 0
    master.replica.confirm(end, 1, LONG)
    assert master.store.queue_visible(queue) == 1
    assert [bytes(message.body) for message in reader.poll(1, LONG)] == [b"hidden"]


@pytest.mark.parametrize(("mode", "visible"), [(1, True), (2, False)], ids=["asynchronous", "synchronous"])
def test_a_topic_of_its_own_flush_waits_for_all_or_for_nothing(master: Master, mode: int, visible: bool) -> None:
    master.tables.topic_set_flush(0, mode)
    queue = master.store.topic(0)["queues"][0]
    end = master.append()
    assert (master.store.queue_visible(queue) == 1) is visible
    master.keeper.flush()
    master.replica.confirm(end, 1, LONG)
    assert master.store.queue_visible(queue) == 1


def test_a_watch_of_answers_wakes_when_it_is_confirmed_and_one_of_shipping_when_it_is_written(master: Master) -> None:
    safe, shipped = os.eventfd(0), os.eventfd(0)
    watch = _core.DurableWatch(master.store, safe)
    shipping = _core.DurableWatch(master.store, shipped, ships=True)
    try:
        shipping.want(1)
        assert not is_ready(shipped, 0.0)
        end = master.append()
        watch.want(end)
        assert is_ready(shipped, LONG)
        master.keeper.flush()
        assert not is_ready(safe, 0.1)
        master.replica.confirm(end, 1, LONG)
        assert is_ready(safe, LONG)
    finally:
        watch.close()
        shipping.close()
        os.close(safe)
        os.close(shipped)


def test_too_few_replicas_refuse_before_anything_is_stored(master: Master) -> None:
    before = master.store.log_end
    master.replica.confirm(0, 0, LONG, lacks_replicas=True)
    assert master.store.read_only == READ_ONLY_FEW_REPLICAS
    with pytest.raises(_core.CoreError, match=r"fewer replicas .* --in-sync-min 1"):
        master.append()
    assert master.store.log_end == before
    master.replica.confirm(0, 2, LONG)
    assert master.store.read_only == 0 and master.append() > before


def test_a_full_disk_and_too_few_replicas_are_reported_one_after_the_other(master: Master) -> None:
    master.keeper.set_read_only(READ_ONLY_DISK_FULL)
    master.replica.confirm(0, 0, LONG, lacks_replicas=True)
    assert master.store.read_only == READ_ONLY_DISK_FULL
    master.keeper.set_read_only(0)
    assert master.store.read_only == READ_ONLY_FEW_REPLICAS
    master.replica.confirm(0, 2, LONG)
    assert master.store.read_only == 0


def test_who_was_killed_before_it_confirmed_is_made_good_by_who_waits(master: Master) -> None:
    """Its words are stored, and nothing follows: no flush, no report."""
    end = master.append()
    master.replica.confirm(end, 1, LONG)
    master.keeper.set_log_end(end)  # as recovery does; it says no more than that
    assert master.store.confirmed_end == end
    master.store.wait_durable(end, LONG)


def test_only_a_log_that_waits_for_replicas_takes_their_reports() -> None:
    with LiveStore(flush_sync=True) as live, pytest.raises(_core.CoreError, match="confirming"):
        _core.ReplicaStore(live.store).confirm(0, 1, LONG)


def test_joins_under_load_never_leave_more_confirmed_than_a_replica_has(master: Master) -> None:
    """A flush that read the end before a join may still raise what is confirmed; the join says how far."""
    with ThreadPoolExecutor(1) as threads:
        stop = False

        def load() -> None:
            producer = master.producer(master.attach(writable=True))
            flusher = _core.KeeperStore(master.attach(writable=True))
            while not stop:
                producer.append("orders", b"x", b"", queue_id=0)
                flusher.flush()

        master.replica.confirm(None, 0, LONG)
        loading = threads.submit(load)
        try:
            for _ in range(100):
                assert until(lambda seen=master.store.confirmed_end: master.store.confirmed_end > seen)
                joined = master.replica.confirm(0, 1, LONG)
                for _ in range(20):
                    assert master.store.confirmed_end == joined == master.store.in_sync_end
                master.replica.confirm(None, 0, LONG)
        finally:
            stop = True
            loading.result(LONG)
