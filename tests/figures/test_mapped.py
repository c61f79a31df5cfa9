"""Figures of mapped segments are joined over living topics, and say what each table says."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from shmq.figures.mapped import MappedFigures, QueueOf, group_offsets
from shmq.figures.model import QueueInfo, QueueLag
from shmq.shm.core import StoreFigures
from tests.bindings.live_store import LiveStore


@pytest.fixture
def live() -> Iterator[LiveStore]:
    with LiveStore() as store:
        yield store


def figures(live: LiveStore, popped: dict[tuple[str, str, int], int] | None = None) -> MappedFigures:
    store = live.attach(writable=False)
    return MappedFigures(lambda: store, lambda: popped or {})


def test_a_topic_has_its_settings_and_what_its_queues_store(live: LiveStore) -> None:
    live.topic("orders", queues=2, perm=6, kind=1)
    live.tables.topic_set_flush(live.store.topic_find("orders"), 2)
    live.producer().send("orders", b"one", queue_id=1)
    [seen] = figures(live).topics(["orders"])
    assert seen[3:] == (2, 2, 6, "sync")
    assert (seen.kind, seen.role, seen.own_flush, seen.messages) == ("fifo", "fifo", "sync", 1)
    assert seen.queues[0] == QueueInfo(0, 0, 0, 0)
    assert seen.queues[1][:3] == (1, 0, 1)
    assert seen.queues[1].size_bytes == seen.size_bytes > 0
    assert figures(live).topics(["order"]) == [] and not figures(live).has_topic("order")


def test_topics_are_listed_by_name_and_chosen_by_names(live: LiveStore) -> None:
    for name in ("b", "%RETRY%g", "a"):
        live.topic(name)
    mapped = figures(live)
    assert [topic.name for topic in mapped.topics()] == mapped.topic_names() == ["%RETRY%g", "a", "b"]
    assert [topic.name for topic in mapped.topics(["b", "nothing"])] == ["b"]
    assert [topic.role for topic in mapped.topics()] == ["retry", "normal", "normal"]


def test_progress_joins_offsets_owners_losses_and_what_is_popped(live: LiveStore) -> None:
    queues = live.topic("orders", queues=2)
    producer = live.producer()
    for _ in range(5):
        producer.send("orders", b"x", queue_id=0)
    group = live.tables.group_put("billing")
    first, second = (live.tables.offset_put(group, queue) for queue in queues)
    live.use_client()
    assert live.store.offset_take(first)
    live.store.offset_set(first, 3)
    [mine, other] = figures(live, {("billing", "orders", 1): 4}).progress()["billing"]
    assert mine[:6] == ("orders", 0, 3, 0, 5, live.store.client_slot)
    assert (mine.owner_pid, mine.offset, mine.behind, mine.lost) == (os.getpid(), 3, 2, 0)
    assert other[:6] == ("orders", 1, -1, 0, 0, -1)
    assert (other.owner_pid, other.offset, other.behind, other.in_flight) == (None, None, 4, 4)
    assert live.store.offset_get(second) == -1


def test_the_number_of_an_offset_is_its_entrys_in_the_arrays_of_the_core(live: LiveStore) -> None:
    queues = live.topic("orders", queues=2)
    groups = {live.tables.group_put(name): name for name in ("unwanted", "billing")}
    for group in groups:
        for queue in queues:
            live.tables.offset_put(group, queue)
    live.tables.offset_put(max(groups), live.topic("other", queues=1)[0])
    store = live.attach(writable=False)
    known = {index: QueueOf("orders", queue_id, index, 0, 0) for queue_id, index in enumerate(queues)}
    wanted = {group: name for group, name in groups.items() if name == "billing"}
    found = list(group_offsets(store, wanted, known.get, dict))
    slots = memoryview(StoreFigures(store).offset_counts()).cast("Q")[1::2]
    assert [entry.queue.queue_id for entry in found] == [0, 1] and found[0].number > 0
    assert [slots[entry.number] for entry in found] == [entry.slot for entry in found]


def test_progress_of_one_group_is_that_of_all_without_the_others(live: LiveStore) -> None:
    queues = live.topic("orders", queues=1)
    for name in ("b", "a"):
        live.tables.offset_put(live.tables.group_put(name), queues[0])
    live.tables.group_put("idle")
    mapped = figures(live)
    assert list(mapped.progress()) == ["a", "b"]
    assert mapped.progress("b") == {"b": mapped.progress()["b"]}
    assert mapped.progress("idle") == mapped.progress("nothing") == {}
    assert mapped.group_names() == ["a", "b", "idle"]
    assert mapped.has_group("idle") and not mapped.has_group("nothing") and not mapped.has_group("ü")


def test_an_offset_of_a_deleted_topic_is_none_of_the_topic_that_has_its_name_again(live: LiveStore) -> None:
    old = live.topic("orders", queues=1)
    live.tables.offset_put(live.tables.group_put("g"), old[0])
    live.tables.topic_delete("orders")
    assert figures(live).progress() == {}
    new = live.topic("orders", queues=1)
    assert new != old
    assert figures(live).progress() == {}
    live.tables.offset_put(live.store.group_find("g"), new[0])
    assert [row[:2] for row in figures(live).progress()["g"]] == [QueueLag("orders", 0, -1, 0, 0, -1, 0)[:2]]
