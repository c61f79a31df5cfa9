"""The entries of deleted topics' queues are used again, whatever happens to the keeper meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest

from shmq.shm.core import BrokerTables, CoreError, StoreFigures
from tests.keeper.conftest import Running, StartKeeper

Eventually = Callable[..., Any]


def used(keeper: Running) -> int:
    return StoreFigures(keeper.store).stats()["queues_used"]


def put(keeper: Running, name: str, queues: int) -> list[int]:
    tables = BrokerTables(keeper.store)
    index = tables.topic_put(name, read_queues=queues, write_queues=queues)
    return list(keeper.store.topic(index)["queues"])


def test_a_table_that_deleted_topics_would_have_filled_stays_empty(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    keeper = start_keeper()
    (stays, _) = put(keeper, "stays", 2)
    keeper.send("stays", b"first")
    frames = keeper.keeper.frames_used
    seen: set[int] = set()
    for number in range(30):
        queues = put(keeper, f"comes-{number % 3}", 500)
        assert not seen & set(queues), "a number is never given twice"
        seen |= set(queues)
        for queue_id in (0, 499):
            keeper.send_batch(f"comes-{number % 3}", [b"%d" % number] * 3, queue_id=queue_id)
        BrokerTables(keeper.store).topic_delete(f"comes-{number % 3}")
        eventually(lambda: used(keeper) == 2)
    assert keeper.keeper.frames_used <= frames + 2
    assert StoreFigures(keeper.store).frames_used <= frames + 2
    assert len(StoreFigures(keeper.store).queue_counts()) == 16 * 502
    assert keeper.store.queue(stays)[:2] == (0, 1)


def test_what_a_killed_keeper_had_closed_its_successor_frees(start_keeper: StartKeeper, eventually: Eventually) -> None:
    keeper = start_keeper()
    queues = put(keeper, "comes-and-goes", 300)
    keeper.send_batch("comes-and-goes", [b"x"] * 500)
    keeper.halt()
    BrokerTables(keeper.store).topic_delete("comes-and-goes")
    closed = keeper.keeper._keeper_store.queues_close(1.0)
    assert {queue for queue, _ in closed} == set(queues) and (queues[0], 500) in closed
    assert used(keeper) == 300 and put(keeper, "beside", 700)
    with pytest.raises(CoreError):
        put(keeper, "no-room", 300)
    keeper.abandon()
    keeper = start_keeper()
    eventually(lambda: used(keeper) == 700)
    assert StoreFigures(keeper.store).frames_used == 0
    assert len(put(keeper, "fits", 300)) == 300


def test_a_number_of_a_deleted_queue_belongs_to_no_topic(start_keeper: StartKeeper, eventually: Eventually) -> None:
    keeper = start_keeper()
    (old, _) = put(keeper, "orders", 2)
    keeper.send_batch("orders", [b"old"] * 3)
    tables = BrokerTables(keeper.store)
    group = tables.group_put("billing")
    slot = tables.offset_put(group, old)
    keeper.store.offset_set(slot, 3)
    tables.topic_delete("orders")
    eventually(lambda: used(keeper) == 0)
    (new, _) = put(keeper, "orders", 2)
    keeper.send_batch("orders", [b"new"] * 5)
    mask = keeper.store.head["queue_mask"]
    assert old != new and old & mask == new & mask
    assert keeper.store.queue(old)[:3] == (0, 0, 0) and keeper.store.units_stored(old, 0, 5) == b""
    assert keeper.store.queue(new)[1] == 5
    again = tables.offset_put(group, new)
    with pytest.raises(CoreError):
        tables.offset_put(group, old)  # its slot is the next queue's
    assert len(keeper.store.offsets()) == 1 and keeper.store.offset_get(again) == -1
    keeper.store.offset_set(slot, 9)
    assert (keeper.store.offset_get(slot), keeper.store.offset_get(again)) == (-1, -1)
    keeper.store.offset_set(again, 4)
    keeper.store.offset_set(slot, 9)
    assert keeper.store.offset_get(again) == 4 and tables.offset_find(group, old) == -1
    assert tables.offset_find(group, new) == again


def test_the_unit_file_of_a_topics_next_life_is_not_taken_for_the_one_that_is_open(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    keeper = start_keeper()
    firsts = []
    for body in (b"old", b"new"):
        (queue, _) = put(keeper, "orders", 2)
        positions = [receipt.log_position for receipt in keeper.send_batch("orders", [body] * 204)]
        keeper.send("orders", body)
        eventually(lambda queue=queue: keeper.store.queue(queue)[2] == 205)
        assert keeper.keeper._keeper_store.frames_release(queue, 0, 1, 1.0) == 1
        unit = keeper.store.units_stored(queue, 0, 1)  # from the file, which stays open
        assert int.from_bytes(unit[:8], "big") == positions[0]
        firsts.append(unit)
        BrokerTables(keeper.store).topic_delete("orders")
        eventually(lambda: used(keeper) == 0)
    assert firsts[0] != firsts[1]
