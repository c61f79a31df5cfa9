"""The standing of a log: following, leading, being fenced, and a lease that ends."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore, raises_status, until
from tests.bindings.replication.test_replicate import DELAYS, MASTER, Pair

FENCED, FOLLOWER = 8, 6
HOUR_NS = 3_600_000_000_000
TOGETHER = ("orders", 0, b"x", b"", 0, 0, 0, b"", 0, 0, None)


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def test_a_promoted_follower_takes_records_behind_those_of_its_master() -> None:
    with Pair() as pair:
        pair.send()
        pair.catch_up()
        end = pair.end
        pair.replica.lead(1)
        store = pair.slave.store
        assert (store.read_only, store.standing, store.epoch, store.leader) == (0, 0, 1, "")
        assert pair.slave.producer().append("orders", b"mine", queue_id=0)[1] >= end
        assert pair.replica.replicate(pair.bytes_from(0), 0, DELAYS, 1.0)[2] == _core.READ_ONLY


def test_a_promotion_fences_the_transactions_of_before() -> None:
    with Pair() as pair:
        pair.send()
        pair.catch_up()
        pair.replica.lead(1)
        producer, end = pair.slave.producer(), pair.end
        assert producer.append_together((TOGETHER,), end - 1) is None
        assert producer.append_together((TOGETHER,), end) is not None


def test_no_record_of_an_older_epoch_is_taken() -> None:
    with Pair() as pair:
        first = pair.send()
        pair.send()
        data = pair.bytes_from(0)
        second = pair.master.store.log_end
        middle = len(data) // 2
        assert pair.replica.replicate(data[:middle], 0, DELAYS, 1.0, 0, 3)[0] == middle
        assert pair.slave.store.epoch == 3
        with raises_status(_core.FENCED):
            pair.replica.replicate(data[middle:], middle, DELAYS, 1.0, 0, 2)
        assert pair.end == middle
        assert pair.replica.replicate(data[middle:], middle, DELAYS, 1.0, 0, 4)[0] == second
        assert first == 0


def test_an_older_epoch_cannot_lead() -> None:
    with Pair() as pair:
        pair.replica.lead(5)
        with raises_status(_core.FENCED):
            pair.replica.lead(4)
        pair.replica.lead(5)


def test_a_fenced_master_names_who_takes_messages() -> None:
    with LiveStore(files=3) as live:
        live.topic()
        producer = live.producer()
        producer.append("orders", b"x", queue_id=0)
        assert _core.ReplicaStore(live.store).fence_off(MASTER, 1.0)
        assert (live.store.read_only, live.store.standing, live.store.leader) == (FENCED, FENCED, MASTER)
        with raises_status(_core.NOT_MASTER, MASTER):
            producer.append("orders", b"x", queue_id=0)
        live.keeper.set_read_only(0)  # the disk has room again
        assert live.store.read_only == FENCED


def test_a_send_that_waits_while_another_broker_becomes_the_master_is_in_doubt_at_once() -> None:
    with LiveStore(files=3, flush_sync=True, confirms=True) as live, ThreadPoolExecutor(1) as threads:
        live.topic()
        live.keeper.keeper_beat()
        sending = threads.submit(live.producer(wait_durable=True, timeout=3600.0).send, "orders", b"x")
        until(lambda: live.store.log_end > 0 or sending.done())
        assert _core.ReplicaStore(live.store).fence_off(MASTER, 1.0)
        error = sending.exception(60.0)
        assert isinstance(error, _core.CoreError) and error.args[0] == _core.DOUBTED
        assert error.maybe_stored is True  # type: ignore[attr-defined]


def test_a_master_that_was_fenced_before_its_successor_was_known_names_it_then() -> None:
    with LiveStore(files=3) as live:
        live.topic()
        producer, replica = live.producer(), _core.ReplicaStore(live.store)
        replica.fence_off("", 1.0)
        with raises_status(_core.NOT_MASTER, "the new one is not known"):
            producer.append("orders", b"x", queue_id=0)
        replica.fence_off(MASTER, 1.0)
        assert live.store.leader == MASTER
        with raises_status(_core.NOT_MASTER, MASTER):
            producer.append("orders", b"x", queue_id=0)
        replica.fence_off("other:1", 1.0)  # it may be read just now
        assert live.store.leader == MASTER


def test_the_master_that_was_followed_before_is_no_successor() -> None:
    with Pair() as pair:
        pair.send()
        pair.catch_up()
        pair.replica.lead(1)
        pair.replica.lease(1)  # over
        with raises_status(_core.NOT_MASTER, "the new one is not known"):
            for _ in range(100_000):  # the clock is looked at four times a millisecond
                with contextlib.suppress(_core.CoreError):
                    pair.slave.producer().append("orders", b"x", queue_id=0)
                if pair.slave.store.read_only == FENCED:
                    break
            pair.slave.producer().append("orders", b"x", queue_id=0)


def test_a_follower_is_not_fenced() -> None:
    with Pair() as pair, raises_status(_core.NOT_MASTER):
        pair.replica.fence_off("x:1", 1.0)


def test_a_lease_that_is_over_fences() -> None:
    with LiveStore(files=3) as live:
        live.topic()
        producer, replica = live.producer(), _core.ReplicaStore(live.store)
        replica.lease(boottime_ns() + HOUR_NS)
        producer.append("orders", b"x", queue_id=0)
        end = live.store.log_end
        replica.lease(1)  # as if an hour had passed
        with raises_status(_core.DOUBTED, "it is stored here, but this broker is the master no more"):
            for _ in range(100_000):  # the clock is looked at four times a millisecond
                producer.append("orders", b"x", queue_id=0)
        assert live.store.read_only == FENCED
        # What was stored before the clock was looked at was not acknowledged: the first answer was the refusal.
        assert 0 < live.store.log_end - end <= 200
        with raises_status(_core.NOT_MASTER, "the new one is not known"):
            producer.append("orders", b"x", queue_id=0)
        replica.lease(boottime_ns() + HOUR_NS)
        with raises_status(_core.NOT_MASTER):
            producer.append("orders", b"x", queue_id=0)
        replica.lead(0)
        producer.append("orders", b"x", queue_id=0)


def test_a_lease_lasts_until_its_time_whether_or_not_the_log_is_fenced() -> None:
    with LiveStore(files=3) as live:
        store, replica = live.store, _core.ReplicaStore(live.store)
        assert store.lease_lasts
        replica.lease(boottime_ns() + HOUR_NS)
        assert store.lease_lasts
        replica.lease(1)
        assert not store.lease_lasts and store.standing == FENCED, "the next append finds it fenced"
        replica.lead(0)
        replica.lease(boottime_ns() + HOUR_NS)
        replica.fence_off(MASTER, 1.0)
        assert store.lease_lasts
        replica.lease(1)
        assert not store.lease_lasts


def test_without_a_lease_records_are_taken_for_ever() -> None:
    with LiveStore(files=3) as live:
        live.topic()
        replica = _core.ReplicaStore(live.store)
        replica.lease(1)
        replica.lease(0)
        live.producer().append("orders", b"x", queue_id=0)
        assert live.store.lease_until_ns == 0


@pytest.mark.parametrize("leader", ["h" * 300])
def test_a_master_has_an_address(leader: str) -> None:
    with LiveStore(files=3) as live, raises_status(_core.BAD_ARGUMENT):
        _core.ReplicaStore(live.store).follow(leader)
