"""A broker doubts what clients bring as long as its epoch is young, from where the oldest young one begins."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.daemon.bridge.store.log import StoreLog
from shmq.daemon.bridge.store.parting import PARTING_MS, find_parting
from shmq.daemon.broker.log import NewRecord, Stored
from shmq.daemon.broker.tables import Topic
from shmq.shm.core import BrokerTables, KeeperStore, Store
from shmq.shm.segment import create_segments, unlink_segments
from shmq.store.lineage.epochs import FIRST, Epoch, Epochs
from tests.bridge.live_bridge import SIZES

FILES = 2


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "commitlog").mkdir()
    for number in range(FILES):
        (tmp_path / "commitlog" / f"{number * SIZES.file_bytes:020d}").write_bytes(bytes(SIZES.file_bytes))
    instance, store = create_segments("test", store_path=tmp_path, sizes=SIZES)
    KeeperStore(store).set_allocated_end(FILES * SIZES.file_bytes)
    yield store
    store.close()
    unlink_segments(instance)


def append(store: Store, body_bytes: int = 10) -> Stored:
    topic = store.topic(BrokerTables(store).topic_put("orders", read_queues=2, write_queues=2))
    log = StoreLog(store, report=pytest.fail)
    return log.append(Topic("orders", 2, 2, 6, 0, 0, tuple(topic["queues"])), 0, NewRecord(bytes(body_bytes), b""))


def parted_at(store: Store, epochs: Epochs, now_ms: int) -> int | None:
    parting = find_parting(store, epochs, now_ms=now_ms)
    return None if parting is None else parting.log_position


def test_a_log_that_was_never_switched_has_not_parted(store: Store) -> None:
    now_ms = append(store).store_ms
    assert parted_at(store, FIRST, now_ms) is None


def test_an_epoch_is_young_until_its_first_record_is_two_minutes_old(store: Store) -> None:
    begin = append(store).end
    epochs = (*FIRST, Epoch(1, begin))
    assert parted_at(store, epochs, 0) == begin, "it has no record yet"
    began_ms = append(store).store_ms
    assert parted_at(store, epochs, began_ms + PARTING_MS - 1) == begin
    assert parted_at(store, epochs, began_ms + PARTING_MS) is None


def test_of_several_young_epochs_the_oldest_counts(store: Store) -> None:
    begin = append(store).end
    first = append(store)
    epochs = (*FIRST, Epoch(1, begin), Epoch(2, first.end))
    assert parted_at(store, epochs, first.store_ms) == begin
    assert parted_at(store, epochs, first.store_ms + PARTING_MS) == first.end


def test_an_epoch_may_begin_with_the_rest_of_a_file(store: Store) -> None:
    begin = [append(store, 300_000) for _ in range(3)][-1].end
    stored = append(store, 300_000)
    assert stored.log_position == SIZES.file_bytes > begin
    epochs = (*FIRST, Epoch(1, begin))
    assert parted_at(store, epochs, stored.store_ms + PARTING_MS - 1) == begin
    assert parted_at(store, epochs, stored.store_ms + PARTING_MS) is None
