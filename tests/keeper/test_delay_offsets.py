"""Progress of delayed messages on disk: RocketMQ's file, never ahead of the copies it speaks of."""

import json
from collections.abc import Callable
from typing import Any

from shmq.delay_levels import SCHEDULE_GROUP, SCHEDULE_TOPIC
from shmq.shm.core import BrokerTables, KeeperStore
from shmq.store.fastjson import loads
from shmq.timing import TIMER_GROUP, TIMER_GROUPS, TIMER_TOPIC

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]


def deliver(running: Any, level: int, offset: int) -> None:
    """What the broker does: the committed offset of its own group says how far it is."""
    store = running.store
    if store.topic_find(SCHEDULE_TOPIC) < 0:
        BrokerTables(store).topic_put(SCHEDULE_TOPIC, read_queues=18, write_queues=18)
    for _ in range(offset):
        running.send(SCHEDULE_TOPIC, b"x", queue_id=level - 1)
    tables = BrokerTables(store)
    slot = tables.offset_put(tables.group_put(SCHEDULE_GROUP), running.queue_index(SCHEDULE_TOPIC, level - 1))
    store.offset_set(slot, offset)


def progress(running: Any, level: int) -> int:
    store = running.store
    group = store.group_find(SCHEDULE_GROUP)
    queue = running.queue_index(SCHEDULE_TOPIC, level - 1)
    return next((row[3] for row in store.offsets() if row[1:3] == (group, queue)), -1)


def test_progress_survives_a_clean_stop_in_rocketmqs_own_file(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    deliver(running, 3, 7)
    assert running.stop()
    config = running.root / "config"
    assert json.loads((config / "delayOffset.json").read_text())["offsetTable"] == {"3": 7}
    assert SCHEDULE_GROUP not in (config / "consumerOffset.json").read_text()
    assert SCHEDULE_GROUP not in (config / "subscriptionGroup.json").read_text()
    running = start_keeper()
    assert progress(running, 3) == 7


def test_a_stop_writes_the_last_progress_even_if_an_older_one_still_waits(start_keeper: StartKeeper) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    deliver(running, 1, 2)
    running.halt()
    running.keeper._catalog.save_offsets()
    store = running.store
    slot = next(row[0] for row in store.offsets())
    store.offset_set(slot, 1)
    assert running.stop()
    assert loads((running.root / "config" / "delayOffset.json").read_text())["offsetTable"] == {"1": 1}


def test_progress_is_written_only_when_the_copies_are_on_disk(start_keeper: StartKeeper) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    running.halt()
    KeeperStore(running.store).flush()
    deliver(running, 2, 3)
    path = running.root / "config" / "delayOffset.json"
    running.keeper._catalog.save_offsets()
    running.send("orders", b"later")
    running.keeper._catalog.round(0.0)
    assert not path.exists()
    KeeperStore(running.store).flush()
    running.keeper._catalog.round(0.0)
    assert loads(path.read_text())["offsetTable"] == {"2": 3}


def test_the_file_of_a_stock_broker_is_read(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    deliver(running, 1, 9)
    deliver(running, 5, 9)
    assert running.stop()
    (running.root / "config" / "delayOffset.json").write_text('{\n\t"offsetTable":{1:4,2:0,5:9\n\t}\n}')
    running = start_keeper()
    assert [progress(running, level) for level in (1, 2, 5)] == [4, 0, 9]


def test_progress_beyond_the_queue_is_lowered(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    deliver(running, 1, 2)
    assert running.stop()
    (running.root / "config" / "delayOffset.json").write_text('{"offsetTable":{"1":400,"x":3,"0":1}}')
    running = start_keeper()
    assert progress(running, 1) == 2


WORDS = (3, 1_795_178_336_448, 7 << 20 | 1_795_178_336_448 & 0xFFFFF, 2)


def set_words(running: Any) -> None:
    """What the broker does: four words of the timer topic's queue, two of which are no offsets of it."""
    store, tables = running.store, BrokerTables(running.store)
    if store.topic_find(TIMER_TOPIC) < 0:
        tables.topic_put(TIMER_TOPIC, read_queues=1, write_queues=1)
    for _ in range(3):
        running.send(TIMER_TOPIC, b"x", queue_id=0)
    for group, word in zip(TIMER_GROUPS, WORDS, strict=True):
        store.offset_set(tables.offset_put(tables.group_put(group), running.queue_index(TIMER_TOPIC, 0)), word)


def words(running: Any) -> tuple[int, ...]:
    store = running.store
    queue = running.queue_index(TIMER_TOPIC, 0)
    committed = {(row[1], row[2]): row[3] for row in store.offsets()}
    return tuple(committed.get((store.group_find(group), queue), -1) for group in TIMER_GROUPS)


def test_the_progress_of_timed_messages_survives_a_clean_stop_in_a_file_of_its_own(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    set_words(running)
    assert running.stop()
    config = running.root / "config"
    stored = json.loads((config / "timerProgress.json").read_text())["timerProgress"]
    assert tuple(stored[group] for group in TIMER_GROUPS) == WORDS
    assert TIMER_GROUP not in (config / "consumerOffset.json").read_text()
    assert TIMER_GROUP not in (config / "subscriptionGroup.json").read_text()
    running = start_keeper()
    assert words(running) == WORDS


def test_a_damaged_word_of_progress_is_read_from_the_generation_before(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    set_words(running)
    assert running.stop()
    path = running.root / "config" / "timerProgress.json"
    for wrong in ("-1", '"7"', "1.5", str(1 << 63), "null"):
        table = json.dumps({"timerProgress": dict(zip(TIMER_GROUPS, WORDS, strict=True))})
        path.write_text(table.replace(str(WORDS[1]), wrong, 1))
        running = start_keeper()
        assert words(running) == WORDS
        assert running.stop()


def test_the_progress_of_timed_messages_is_written_only_when_the_copies_are_on_disk(start_keeper: StartKeeper) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    running.halt()
    KeeperStore(running.store).flush()
    set_words(running)
    path = running.root / "config" / "timerProgress.json"
    running.keeper._catalog.save_offsets()
    assert not path.exists()
    KeeperStore(running.store).flush()
    running.keeper._catalog.save_offsets()
    assert path.exists()
    assert running.stop()


def test_i6_no_progress_on_disk_is_ahead_of_the_log_on_disk(start_keeper: StartKeeper) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    running.halt()
    running.send("orders", b"x")
    store = running.store
    slot = BrokerTables(store).offset_put(BrokerTables(store).group_put("billing"), running.queue_index("orders"))
    store.offset_set(slot, 1)
    path = running.root / "config" / "consumerOffset.json"
    running.keeper._catalog.save_offsets()
    assert not path.exists() or "orders@billing" not in path.read_text()
    KeeperStore(running.store).flush()
    running.keeper._catalog.round(0.0)
    assert json.loads(path.read_text())["offsetTable"]["orders@billing"] == {"0": 1}
