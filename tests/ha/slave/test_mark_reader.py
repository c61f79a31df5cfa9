"""The marks that a slave finds in its log: each once, wherever its queue begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shmq.daemon.ha.slave.mark_reader import MarkReader
from shmq.protocol.body import TopicConfig
from shmq.protocol.system_topics.table_marks import TABLES_TOPIC, TablesMark, encode_tables_mark
from shmq.shm.unit import log_positions_of
from tests.bindings.live_store import LiveStore


@pytest.fixture
def live() -> Iterator[LiveStore]:
    with LiveStore() as store:
        yield store


def store_marks(live: LiveStore, *names: str) -> None:
    producer = live.producer()
    for name in names:
        mark = TablesMark(topics=[TopicConfig(name)])
        producer.append(TABLES_TOPIC, encode_tables_mark(mark), b"", queue_id=0)


def names_of(found: list[tuple[int, TablesMark | None]]) -> list[str]:
    """The topic in each mark, "" for what cannot be read."""
    return [mark.topics[0].topicName if mark is not None else "" for _, mark in found]


def test_each_mark_is_found_once_and_with_its_place(live: LiveStore) -> None:
    reader = MarkReader(live.store)
    assert reader.take() == [], "no mark was ever stored"
    (queue,) = live.topic(TABLES_TOPIC, queues=1)
    live.topic("orders", queues=1)
    live.producer().append("orders", encode_tables_mark(TablesMark(deleted_topics=["a"])), b"", queue_id=0)
    store_marks(live, "a", "b")
    found = reader.take()
    assert names_of(found) == ["a", "b"] and reader.take() == []
    units = log_positions_of(live.store.units_stored(queue, 0, 2))
    assert [position for position, _ in found] == units
    store_marks(live, *(str(number) for number in range(300)))
    assert names_of(reader.take()) == [str(number) for number in range(300)]


def test_marks_of_before_are_passed_over(live: LiveStore) -> None:
    live.topic(TABLES_TOPIC, queues=1)
    store_marks(live, "of before")
    reader = MarkReader(live.store)
    store_marks(live, "new")
    assert names_of(reader.take()) == ["new"]


def test_a_record_that_is_no_mark_is_reported_in_its_place(live: LiveStore) -> None:
    live.topic(TABLES_TOPIC, queues=1)
    reader = MarkReader(live.store)
    store_marks(live, "a")
    live.producer().append(TABLES_TOPIC, b"{", b"", queue_id=0)
    store_marks(live, "b")
    assert names_of(reader.take()) == ["a", "", "b"] and reader.take() == []


def test_units_that_are_missing_are_reported(live: LiveStore) -> None:
    (queue,) = live.topic(TABLES_TOPIC, queues=1)
    reader = MarkReader(live.store)
    bounds: dict[str, Any] = {"offset_min": 0, "offset_max": 300, "persisted": 300}
    live.keeper.set_queue(queue, **bounds)
    assert set(names_of(reader.take())) == {""} and reader.take() == []
    store_marks(live, "new")
    assert names_of(reader.take()) == ["new"]


@pytest.mark.parametrize("first", [1, 300])
def test_a_queue_that_begins_where_the_masters_is_cut_off_is_read_from_there(live: LiveStore, first: int) -> None:
    (queue,) = live.topic(TABLES_TOPIC, queues=1)
    reader = MarkReader(live.store)
    bounds: dict[str, Any] = {"offset_min": first, "offset_max": first, "persisted": first}
    live.keeper.set_queue(queue, **bounds)
    store_marks(live, "new")
    assert names_of(reader.take()) == ["new"]
