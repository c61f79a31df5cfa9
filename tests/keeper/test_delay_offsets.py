"""Progress of delayed messages on disk: RocketMQ's file, never ahead of the copies it speaks of."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from shmq.delay_levels import SCHEDULE_COPIES_GROUP, SCHEDULE_GROUP, SCHEDULE_TOPIC
from shmq.errors import StoreError
from shmq.shm.core import BrokerTables, KeeperStore
from shmq.store.fastjson import loads
from shmq.timing import TIMER_COPIES_GROUP, TIMER_GROUP, TIMER_GROUPS, TIMER_TOPIC

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


def test_progress_that_could_not_be_written_is_tried_again_after_a_second(
    start_keeper: StartKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    running.halt()
    deliver(running, 2, 3)
    path, catalog = running.root / "config" / "delayOffset.json", running.keeper._catalog
    now = catalog._offsets_at  # progress is noted, and waits for the disk
    catalog.round(now)
    KeeperStore(running.store).flush()

    def refuse(offsets: object) -> bool:
        raise StoreError("no space left on the device")

    with monkeypatch.context() as context:
        context.setattr(catalog._config, "save_delays", refuse)
        catalog.round(now + 0.2)
    catalog.round(now + 0.4)
    assert not path.exists() and len(running.events.named("config.not_saved")) == 1
    catalog.round(now + 1.3)
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


MARKS = ((SCHEDULE_TOPIC, SCHEDULE_COPIES_GROUP), (TIMER_TOPIC, TIMER_COPIES_GROUP))


def marks(running: Any) -> list[int]:
    store = running.store
    committed = {(row[1], row[2]): row[3] for row in store.offsets()}
    places = [(store.group_find(group), running.queue_index(topic, 0)) for topic, group in MARKS]
    return [committed.get(place, -1) for place in places]


def set_marks(running: Any, position: int) -> None:
    tables = BrokerTables(running.store)
    for topic, group in MARKS:
        running.store.offset_set(tables.offset_put(tables.group_put(group), running.queue_index(topic, 0)), position)


def test_a_stop_that_nothing_is_in_doubt_at_marks_the_end_of_the_log(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    deliver(running, 1, 2)
    set_words(running)
    end = running.store.log_end
    assert running.stop()
    config = running.root / "config"
    assert json.loads((config / "delayOffset.json").read_text())["copiesFrom"] == end
    assert json.loads((config / "timerProgress.json").read_text())["timerProgress"][TIMER_COPIES_GROUP] == end
    assert not any(group in (config / "consumerOffset.json").read_text() for _, group in MARKS)
    running = start_keeper()
    assert marks(running) == [end, end]
    set_marks(running, 0)
    running.send("orders", b"x")
    end = running.store.log_end
    assert running.stop()
    assert marks(start_keeper()) == [end, end]


def test_a_mark_of_copies_that_are_in_doubt_survives_a_stop_as_it_is(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    deliver(running, 1, 2)
    set_words(running)
    set_marks(running, 77)
    assert running.stop()
    assert marks(start_keeper()) == [77, 77]


def test_files_without_a_mark_or_with_an_impossible_one_leave_none(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    deliver(running, 1, 2)
    set_words(running)
    assert running.stop()
    config = running.root / "config"
    for mark in ({}, {"copiesFrom": -1}, {"copiesFrom": "7"}):
        (config / "delayOffset.json").write_text(json.dumps({"offsetTable": {"1": 1}} | mark))
        table = dict(zip(TIMER_GROUPS, WORDS, strict=True))
        for value in mark.values():
            table[TIMER_COPIES_GROUP] = value  # type: ignore[assignment]
        (config / "timerProgress.json").write_text(json.dumps({"timerProgress": table}))
        running = start_keeper()
        assert marks(running) == [-1, -1]
        assert (progress(running, 1), words(running)) == (1, WORDS)
        assert running.stop()


def test_the_end_is_read_before_the_mark_and_the_mark_before_the_words(
    start_keeper: StartKeeper, monkeypatch: Any
) -> None:
    """A copy that is stored while the words are read is covered by them, or lies behind the mark."""
    running = start_keeper()
    deliver(running, 1, 2)
    set_words(running)
    set_marks(running, 0)
    running.halt()
    end = running.store.log_end
    tables = running.keeper._catalog._tables
    collect, reads = tables.collect_offsets, []

    def collect_and_deliver(*arguments: Any) -> Any:
        found = collect(*arguments)
        reads.append(running.store.log_end)
        set_marks(running, running.store.log_end)
        running.send("orders", b"a copy")
        return found

    monkeypatch.setattr(type(tables), "collect_offsets", lambda self, *arguments: collect_and_deliver(*arguments))
    progress_read = tables.collect_progress(running.store, running.keeper._catalog._figures)
    assert len(reads) == 2
    assert [progress_read[key][0] for key in MARKS] == [end, end]
