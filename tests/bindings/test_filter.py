"""Readers and pulls that filter: what is passed over, where the offset is meanwhile, and how long it takes the GIL."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shmq.bindings import _core
from shmq.filter.sql import sql_filter
from shmq.filter.translation import sql_program
from tests.bindings.live_store import LiveStore, raises_status, until

WHERE = "qty BETWEEN 3 AND 5"


@pytest.fixture
def live() -> Iterator[LiveStore]:
    with LiveStore() as store:
        yield store


def fill(live: LiveStore, count: int = 10, **options: Any) -> None:
    producer = live.producer()
    for qty in range(count):
        producer.send("orders", b"%d" % qty, tag=f"t{qty % 2}", properties={"qty": str(qty)}, queue_id=0, **options)


def member_reader(live: LiveStore, **options: Any) -> tuple[_core.Reader, int]:
    """A reader of one queue that keeps a group's offset; the offset slot."""
    queue = live.topic("orders", queues=1)[0]
    live.use_client()
    slot = live.tables.offset_put(live.tables.group_put("g"), queue)
    assert live.store.offset_take(slot)
    reader = _core.Reader(live.store, **options)
    reader.assign("orders", queue, 0, 0, slot)
    return reader, slot


def bodies(messages: list[_core.Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_reader_delivers_what_its_filter_selects(live: LiveStore) -> None:
    live.topic("orders", queues=2)
    fill(live)
    assert bodies(live.reader(where=sql_filter(WHERE)).poll()) == [b"3", b"4", b"5"]
    assert bodies(live.reader(where=sql_filter(WHERE), tags=["t1"]).poll()) == [b"3", b"5"]
    assert bodies(live.reader(where=None).poll(64)) == [b"%d" % qty for qty in range(10)]


@pytest.mark.parametrize("options", [{"where": sql_filter(WHERE)}, {"tags": ["t9"]}], ids=["where", "tags"])
def test_the_groups_offset_passes_what_was_not_wanted(live: LiveStore, options: dict[str, Any]) -> None:
    reader, slot = member_reader(live, **options)
    fill(live)
    for message in reader.poll():
        message.ack()
    assert reader.poll() == [] and live.store.offset_get(slot) == 10


def test_the_offset_waits_for_what_is_in_flight_among_the_unwanted(live: LiveStore) -> None:
    reader, slot = member_reader(live, where=sql_filter("qty = 3 OR qty = 7"))
    fill(live, 300)
    first, second = reader.poll()
    assert reader.poll() == [] and live.store.offset_get(slot) == 3
    second.ack()
    assert live.store.offset_get(slot) == 3
    first.ack()
    assert live.store.offset_get(slot) == 300


def test_runs_of_unwanted_units_are_counted_one_by_one_while_something_is_in_flight(live: LiveStore) -> None:
    reader, slot = member_reader(live, tags=["t1"])
    producer = live.producer()
    for number in range(500):
        producer.send("orders", b"x", tag="t1" if number % 100 == 50 else "other", queue_id=0)
    messages = reader.poll(64)
    assert [message.offset for message in messages] == [50, 150, 250, 350, 450] and reader.poll() == []
    for message in messages[1:]:
        message.ack()
    assert live.store.offset_get(slot) == 50
    messages[0].ack()
    assert live.store.offset_get(slot) == 500


def test_many_tags_are_distinguished(live: LiveStore) -> None:
    live.topic("orders", queues=1)
    producer = live.producer()
    names = [f"tag-{number}" for number in range(200)]
    for name in names:
        producer.send("orders", name.encode(), tag=name)
    wanted = names[::3]
    assert bodies(live.reader(tags=wanted).poll(500)) == [name.encode() for name in wanted]


def test_a_pull_passes_over_what_its_filter_refuses(live: LiveStore) -> None:
    (queue,) = live.topic("orders", queues=1)
    fill(live)
    where = sql_filter(WHERE)
    offset, count, records = live.log.pull(queue, 0, 32, 1 << 20, None, 800, where)
    assert (offset, count) == (10, 3) and bodies(_core.records_read(records)) == [b"3", b"4", b"5"]
    assert live.log.pull(queue, 0, 32, 1 << 20, [_core.tag_hash("t0")], 800, where)[:2] == (10, 1)
    assert live.log.pull(queue, 0, 2, 1 << 20, None, 800, where)[:2] == (5, 2)
    assert live.log.pull(queue, 6, 32, 1 << 20, None, 2, where)[:2] == (8, 0)
    assert live.log.pull(queue, 0, 32, 1 << 20, None, 800, None)[:2] == (10, 10)


def test_messages_and_property_text_are_judged_alike(live: LiveStore) -> None:
    live.topic("orders", queues=1)
    fill(live)
    where = sql_filter(WHERE)
    messages = live.reader().poll(64)
    assert [where.matches(message) for message in messages] == [3 <= qty <= 5 for qty in range(10)]
    assert where.matches(b"qty\x013\x02") and where.matches(memoryview(b"qty\x013")) and not where.matches(b"")


def test_only_filters_and_programs_are_taken(live: LiveStore) -> None:
    (queue,) = live.topic("orders", queues=1)
    with pytest.raises(TypeError, match="where is a Filter or None, not str"):
        live.reader(where="qty > 5")
    with pytest.raises(TypeError, match="where is a Filter or None, not bytes"):
        live.log.pull(queue, 0, 1, 1, None, 800, b"")  # type: ignore[arg-type]
    with raises_status(_core.BAD_ARGUMENT, "this is no filter program: it does not begin"):
        _core.Filter(b"")
    with pytest.raises(TypeError):
        _core.Filter("qty > 5")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        sql_filter(WHERE).matches("qty")  # type: ignore[arg-type]


def test_a_filter_lives_as_long_as_its_readers(live: LiveStore) -> None:
    live.topic("orders", queues=1)
    fill(live)
    reader = live.reader(where=_core.Filter(sql_program(WHERE)))
    gc.collect()
    assert bodies(reader.poll()) == [b"3", b"4", b"5"]
    reader.close()
    reader.close()
    with raises_status(_core.BAD_ARGUMENT, "closed"):
        reader.poll()


@pytest.fixture
def large() -> Iterator[LiveStore]:
    """A queue whose filtering takes several stretches."""
    with LiveStore(frame_max=2048, frame_ready=2048, file_bytes=1 << 27) as store:
        store.topic("orders", queues=1)
        for _ in range(200):
            store.producer().send_batch("orders", [b""] * 1000)
        yield store


def test_other_threads_run_while_much_is_filtered_out(large: LiveStore) -> None:
    met: set[int] = set()

    def one_scan() -> bool:
        reader, ended = large.reader(where=sql_filter("a = 1")), threading.Event()

        def watch() -> None:
            while not ended.is_set():
                met.add(reader.assigned()[0][3])

        thread = threading.Thread(target=watch)
        thread.start()
        assert reader.poll(32, 0.0) == [] and reader.assigned()[0][3] == 200_000
        ended.set()
        thread.join(60)
        return bool(met - {0, 200_000})  # it looked while the one call was under way

    until(one_scan)


def test_a_reader_may_be_closed_while_it_filters(large: LiveStore) -> None:
    large.use_client()
    for _ in range(10):
        reader, begun = large.reader(where=sql_filter("a = 1")), threading.Event()

        def close(reader: _core.Reader = reader, begun: threading.Event = begun) -> None:
            begun.wait(60)
            reader.close()

        thread = threading.Thread(target=close)
        thread.start()
        begun.set()
        with contextlib.suppress(_core.CoreError):
            assert reader.poll(32, 60.0) == []  # comes back at once, however long it would have waited
        thread.join(60)
        with raises_status(_core.BAD_ARGUMENT, "the reader is closed"):
            reader.poll()
