"""The tables in shared memory behave as the broker's logic expects."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import posix_ipc  # type: ignore[import-untyped,import-not-found,unused-ignore]
import pytest

from shmq.daemon.bridge.store.semaphore import SEMAPHORE_DIRECTORY
from shmq.daemon.bridge.store.tables import _PROBE_HOLDS_SECONDS, StoreTables
from shmq.daemon.keeper.catalog import _TABLES_SECONDS
from shmq.errors import NotMaster, SegmentError, SegmentFull, ShmqError, StoreError, TopicNotFound
from shmq.message import GROUP_BYTES_MAX, TOPIC_BYTES_MAX
from shmq.shm.access import Access
from shmq.shm.core import KeeperStore, ReplicaStore, Store, StoreFigures, process_start
from shmq.shm.instance import Instance
from shmq.shm.segment import create_segments, unlink_segments
from tests.bridge.live_bridge import SIZES

ACCESS = Access(-1)


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[tuple[Instance, Store]]:
    instance, store = create_segments("test", store_path=tmp_path, sizes=SIZES)
    yield instance, store
    store.close()
    unlink_segments(instance)


@pytest.fixture
def tables(segments: tuple[Instance, Store]) -> StoreTables:
    instance, store = segments
    return StoreTables(store, instance, ACCESS)


def put(tables: StoreTables, name: str, queues: int = 2) -> None:
    tables.topic_put(name, read_queues=queues, write_queues=queues, perm=6, flags=0, kind=1)


def test_a_topic_is_found_changed_listed_and_deleted(tables: StoreTables) -> None:
    assert tables.topic("orders") is None and tables.topic_names() == []
    put(tables, "orders")
    topic = tables.topic("orders")
    assert topic is not None
    assert (topic.name, topic.read_queues, topic.write_queues, topic.perm, topic.kind) == ("orders", 2, 2, 6, 1)
    version = tables.version
    put(tables, "orders", 5)
    changed = tables.topic("orders")
    assert changed is not None and changed.queues[:2] == topic.queues and len(changed.queues) == 5
    assert tables.version != version and tables.topics() == [changed]
    tables.topic_delete("orders")
    assert tables.topic("orders") is None and tables.topic_names() == []
    with pytest.raises(TopicNotFound):
        tables.topic_delete("orders")


def test_of_many_topics_those_that_changed_are_read_again(
    segments: tuple[Instance, Store], tables: StoreTables
) -> None:
    instance, store = segments
    other = StoreTables(store, instance, Access(-1))
    for name in "abc":
        put(tables, name)
    a, b, c = tables.topics()
    put(other, "b", 3)
    now = tables.topics()
    assert now[0] is a and now[2] is c
    assert now[1] == b._replace(read_queues=3, write_queues=3, queues=(*b.queues, now[1].queues[-1]))
    other.topic_delete("a")
    assert tables.topics() == now[1:] and tables.topics()[1] is c
    put(other, "a")
    again = next(topic for topic in tables.topics() if topic.name == "a")
    assert again is not a and set(again.queues).isdisjoint(a.queues)
    other.topic_set_flush("c", 2)
    assert [topic.flush for topic in tables.topics() if topic.name == "c"] == [2] != [c.flush]


def test_a_full_topic_table_is_an_error_not_a_crash(tables: StoreTables) -> None:
    for number in range(SIZES.topic_max):
        put(tables, f"t{number}", 1)
    with pytest.raises(ShmqError):
        put(tables, "one-more", 1)
    assert len(tables.topics()) == SIZES.topic_max


def test_a_group_keeps_its_index_and_forgets_its_offsets_when_deleted(tables: StoreTables) -> None:
    put(tables, "orders")
    topic = tables.topic("orders")
    assert topic is not None
    assert tables.group("g") is None
    group = tables.group_put("g")
    assert tables.group_put("g") == group == tables.group("g")
    assert tables.offset_slot(group, topic.queues[0]) is None
    slot = tables.offset_put(group, topic.queues[0])
    assert tables.offset_put(group, topic.queues[0]) == slot == tables.offset_slot(group, topic.queues[0])
    assert tables.committed(slot) == -1
    tables.set_committed(slot, 7)
    assert tables.committed(slot) == 7
    tables.group_delete("g")
    assert tables.groups() == [] and tables.group("g") is None
    assert tables.committed(tables.offset_put(tables.group_put("g"), topic.queues[0])) == -1


def test_a_later_bridge_finds_the_same_places(segments: tuple[Instance, Store], tables: StoreTables) -> None:
    instance, store = segments
    put(tables, "orders")
    topic = tables.topic("orders")
    assert topic is not None
    slots = [tables.offset_put(tables.group_put("g"), queue) for queue in topic.queues]
    later = StoreTables(store, instance, ACCESS)
    group = later.group("g")
    assert group is not None
    assert [later.offset_slot(group, queue) for queue in topic.queues] == slots


def test_places_that_another_bridge_made_are_found(segments: tuple[Instance, Store], tables: StoreTables) -> None:
    instance, store = segments
    put(tables, "orders")
    topic = tables.topic("orders")
    assert topic is not None
    other = StoreTables(store, instance, ACCESS)
    group = tables.group_put("g")
    made = {queue: other.offset_put(group, queue) for queue in topic.queues}
    assert tables.group_offsets(group) == made and tables.group_offsets(group + 1) == {}
    put(tables, "bills")
    bills = tables.topic("bills")
    assert bills is not None
    more = {queue: other.offset_put(group, queue) for queue in bills.queues}
    assert [tables.offset_slot(group, queue) for queue in bills.queues] == list(more.values())
    assert tables.group_offsets(group) == made | more


def test_a_group_has_no_places_of_the_one_that_had_its_entry(
    segments: tuple[Instance, Store], tables: StoreTables
) -> None:
    _, store = segments
    put(tables, "orders")
    topic = tables.topic("orders")
    assert topic is not None
    former = tables.group_put("former")
    slots = {queue: tables.offset_put(former, queue) for queue in topic.queues}
    assert tables.group_offsets(former) == slots
    for number in range(store.head["group_max"] - 1):
        tables.group_put(f"g{number}")
    tables.group_delete("former")
    group = tables.group_put("next")
    assert tables.group_offsets(group) == {} and tables.group_offsets(former) == slots
    made = {queue: tables.offset_put(group, queue) for queue in topic.queues}
    assert tables.group_offsets(group) == made and tables.group_offsets(former) == {}


def test_places_already_known_are_not_read_again(segments: tuple[Instance, Store], tables: StoreTables) -> None:
    _, store = segments
    put(tables, "orders")
    topic = tables.topic("orders")
    assert topic is not None
    slots = [tables.offset_put(tables.group_put("g"), queue) for queue in topic.queues]
    figures = StoreFigures(store)
    assert figures.offset_counts(len(slots)) == figures.offset_counts(1 << 31) == b""
    assert figures.offset_counts(1) == figures.offset_counts()[16:]
    assert len(figures.offset_counts(1)) == 16 * (len(slots) - 1)


def test_settings_of_a_group_are_kept_as_they_are(tables: StoreTables) -> None:
    group = tables.group_put("g")
    version = tables.version
    tables.group_set(group, b'{"retryMaxTimes":3}')
    assert tables.group_settings(group) == b'{"retryMaxTimes":3}'
    assert tables.version > version, "the keeper writes them down when the version moves"


@pytest.mark.parametrize("how", ["given up", "fenced", "following"])
def test_what_is_no_masters_table_is_not_changed(
    segments: tuple[Instance, Store], tables: StoreTables, tmp_path: Path, how: str
) -> None:
    (tmp_path / "config").mkdir()
    tables.check_savable()
    store = segments[1]
    if how == "given up":
        KeeperStore(store).set_retired()
    elif how == "fenced":
        ReplicaStore(store).fence_off("10.0.0.5:10911", 1.0)
    else:
        ReplicaStore(store).follow("10.0.0.5:10911")
    with pytest.raises(NotMaster, match="nothing was changed"):
        tables.check_savable()


def test_the_store_tells_how_it_is_doing(tables: StoreTables) -> None:
    size, used, free = tables.disk()
    assert used >= 0 and free >= 0 and used + free <= size
    facts = tables.facts()
    assert facts.log_begin <= facts.durable_end <= facts.log_end


def test_the_longest_names_fit_and_longer_ones_are_errors(tables: StoreTables) -> None:
    put(tables, "t" * TOPIC_BYTES_MAX, 1)
    tables.group_put("g" * GROUP_BYTES_MAX)
    with pytest.raises(ShmqError):
        put(tables, "t" * (TOPIC_BYTES_MAX + 1), 1)
    with pytest.raises(ShmqError):
        tables.group_put("g" * (GROUP_BYTES_MAX + 1))
    assert tables.topic_names() == ["t" * TOPIC_BYTES_MAX] and tables.groups() == ["g" * GROUP_BYTES_MAX]


def test_the_bounds_of_an_empty_queue_are_zero(tables: StoreTables) -> None:
    put(tables, "orders")
    topic = tables.topic("orders")
    assert topic is not None
    assert tables.queue_bounds(topic.queues[0]) == (0, 0)
    assert tables.search_time(topic.queues[0], 0) == 0


def test_a_slot_comes_with_a_semaphore_at_zero(segments: tuple[Instance, Store], tables: StoreTables) -> None:
    instance, _ = segments
    pid, start = os.getpid(), process_start(os.getpid())
    slot = tables.client_put(pid, start, 3)
    name = f"{instance.semaphore_prefix}{slot}"
    semaphore = posix_ipc.Semaphore(name)
    semaphore.release()
    tables.client_drop(slot)
    assert tables.client_put(pid, start, 3) == slot
    assert semaphore.value == 0
    semaphore.close()
    assert tables.client_is(slot, pid, start)
    assert not tables.client_is(slot, pid, start + 1)
    assert not tables.client_is(slot + 1, pid, start)
    assert tables.dead_clients() == []


def test_a_slot_whose_semaphore_is_taken_is_not_handed_out(
    segments: tuple[Instance, Store], tables: StoreTables
) -> None:
    instance, store = segments
    squatter = SEMAPHORE_DIRECTORY / f"sem.{instance.semaphore_prefix[1:]}0"
    squatter.write_bytes(bytes(32))
    squatter.chmod(0o666)
    with pytest.raises(SegmentError):
        tables.client_put(os.getpid(), process_start(os.getpid()), 3)
    assert not any(state for _, state, *_ in StoreFigures(store).clients())


def test_when_all_slots_are_taken_the_next_is_an_error(tables: StoreTables) -> None:
    pid, start = os.getpid(), process_start(os.getpid())
    for _ in range(SIZES.client_max):
        tables.client_put(pid, start, 1)
    with pytest.raises(SegmentFull):
        tables.client_put(pid, start, 1)


def test_dead_processes_are_distinguished_from_living_ones(tables: StoreTables) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        living = tables.client_put(os.getpid(), process_start(os.getpid()), 3)
        dying = tables.client_put(child.pid, process_start(child.pid), 3)
        reused = tables.client_put(os.getpid(), process_start(os.getpid()) + 1, 3)
        assert tables.dead_clients() == [reused]
        child.kill()
        child.wait()
        assert sorted(tables.dead_clients()) == sorted([dying, reused])
    assert living not in tables.dead_clients()


def test_a_full_table_of_queues_says_how_full_it_is_and_who_holds_it(tables: StoreTables) -> None:
    put(tables, "stays", 96)
    with pytest.raises(SegmentFull) as caught:
        for _ in range(SIZES.queue_max):
            put(tables, "comes-and-goes", 1000)
            tables.topic_delete("comes-and-goes")
    assert "needs 1000 queues: 4096 of 4096 are taken, 4000 of them by topics that were deleted" in str(caught.value)
    assert (caught.value.used, caught.value.limit) == (4096, 4096)
    assert "try again" in caught.value.hint
    put(tables, "stays", 96)


def test_a_refusal_names_the_queues_also_when_they_were_freed_since(tables: StoreTables) -> None:
    """The keeper works on while the error is written: what is full then is not what was."""
    put(tables, "stays", 96)
    refused = tables._full("comes-and-goes", 1000)
    assert "needs 1000 queues: 96 of 4096 are taken" in str(refused), "topics have room, so it was the queues"
    assert "try again" in refused.hint


def test_a_full_table_of_live_queues_asks_for_fewer(tables: StoreTables) -> None:
    put(tables, "first", 1024)
    for number in range(3):
        put(tables, f"more-{number}", 1024)
    with pytest.raises(SegmentFull) as caught:
        put(tables, "last", 1)
    assert "0 of them by topics that were deleted" in str(caught.value) and "--queues" in caught.value.hint


def test_a_full_table_of_topics_says_how_many_there_may_be(tables: StoreTables) -> None:
    with pytest.raises(SegmentFull) as caught:
        for number in range(SIZES.topic_max + 1):
            put(tables, f"topic-{number}", 1)
    assert f"{SIZES.topic_max} of {SIZES.topic_max} topics are there, 0 were deleted" in str(caught.value)
    assert caught.value.limit == SIZES.topic_max and "shmq topic delete" in caught.value.hint


def test_a_table_full_of_topics_that_were_deleted_asks_to_try_again(tables: StoreTables) -> None:
    with pytest.raises(SegmentFull) as caught:
        for number in range(SIZES.topic_max + 1):
            put(tables, f"topic-{number}", 1)
            if number:
                tables.topic_delete(f"topic-{number}")
    assert f"1 of {SIZES.topic_max} topics are there, {SIZES.topic_max - 1} were deleted just now" in str(caught.value)
    assert "try again in a second" in caught.value.hint


def test_a_full_table_of_groups_says_how_many_there_are_and_what_to_type(tables: StoreTables) -> None:
    with pytest.raises(SegmentFull) as caught:
        for number in range(SIZES.group_max + 1):
            tables.group_put(f"group-{number}")
    assert f"{SIZES.group_max} of {SIZES.group_max} groups are there" in str(caught.value)
    assert "shmq group delete" in caught.value.hint
    tables.group_delete("group-0")
    tables.group_put("another")
    assert "another" in tables.groups()


def test_a_keeper_is_not_silent_before_its_first_round(tables: StoreTables, segments: tuple[Instance, Store]) -> None:
    assert tables.keeper_silence_seconds() == 0.0
    KeeperStore(segments[1]).keeper_beat()
    first = tables.keeper_silence_seconds()
    assert 0.0 < first <= tables.keeper_silence_seconds()


def test_what_the_disk_took_is_trusted_for_less_time_than_a_change_waits_for_being_saved() -> None:
    assert _PROBE_HOLDS_SECONDS <= _TABLES_SECONDS / 2


def test_whether_the_disk_takes_a_change_is_tried_at_most_twenty_times_a_second(
    tables: StoreTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("shmq.daemon.bridge.store.tables.time.monotonic", lambda: now)
    (tmp_path / "config").mkdir()
    tables.check_savable()
    (tmp_path / "config").rmdir()
    now += 0.049
    tables.check_savable()
    now += 0.001
    for _ in range(2):  # a refusal holds for no time
        with pytest.raises(StoreError, match="nothing was changed"):
            tables.check_savable()
    (tmp_path / "config").mkdir()
    tables.check_savable()
