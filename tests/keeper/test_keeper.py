"""The keeper: units, flushes, marks and tables follow the log; the stop leaves a clean store."""

import fcntl
import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shmq.daemon.keeper.frames import FRAMES_FREE_MIN
from shmq.errors import CorruptionError
from shmq.shm.core import FRAME_BYTES, READ_ONLY_FOLLOWER, BrokerTables, CoreError, KeeperStore, StoreFigures
from shmq.shm.segment import SHM_DIRECTORY
from shmq.shm.unit import unpack_unit
from shmq.store.checkpoint import read_checkpoint
from shmq.store.lineage.epochs import Epoch, store_epochs
from tests.interruption import interrupted_everywhere

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]


def test_units_reach_their_files(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    receipts = [running.send("orders", b"%d" % number, tag="t") for number in range(500)]
    index = running.queue_index("orders")
    eventually(lambda: running.store.queue(index)[2] == 500)
    content = (running.root / "consumequeue/orders/0/00000000000000000000").read_bytes()
    assert [unpack_unit(content, number)[0] for number in range(500)] == [receipt.log_position for receipt in receipts]
    assert content[500 * 20 :].strip(b"\0") == b""


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_was_appended_becomes_durable_by_itself(
    start_keeper: StartKeeper, eventually: Eventually, flush: str
) -> None:
    running = start_keeper(flush=flush, flush_interval_ms=20)
    running.send("orders", b"x")
    end = running.store.log_end
    if flush == "sync":
        running.store.wait_durable(end, 30.0)
    eventually(lambda: running.store.durable_end == end)
    assert running.store.visible_end == end


def test_the_mark_and_the_checkpoint_follow(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(flush_interval_ms=20)
    running.send("orders", b"x")
    end = running.store.log_end
    mark = running.attached.files.mark
    eventually(lambda: (mark.current.durable_end, mark.current.dispatched) == (end, end))
    # The mark of the log goes ahead; the checkpoint comes with that of the units.
    eventually(lambda: read_checkpoint(running.attached.files.layout).flushed == end)
    checkpoint = read_checkpoint(running.attached.files.layout)
    assert checkpoint.physic_ms > 0 and checkpoint.logics_ms > 0


def test_an_idle_log_has_two_files_and_a_filling_one_is_never_full(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    assert len(os.listdir(running.root / "commitlog")) == 2
    assert running.store.allocated_end == 2 * running.options.file_bytes


def test_the_next_file_is_there_when_the_log_rolls(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    for _ in range(30):
        eventually(lambda: running.store.allocated_end - running.store.log_end > running.options.file_bytes)
        running.send("orders", bytes(100_000))
    assert len(os.listdir(running.root / "commitlog")) > 10


def test_tables_are_saved_when_they_change(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    BrokerTables(running.store).topic_put("fifo", read_queues=3, write_queues=2, kind=1)
    BrokerTables(running.store).group_put("billing")

    def saved() -> bool:
        names = ("topics", "subscriptionGroup", "shmq")
        texts = [(running.root / "config" / f"{name}.json").read_text() for name in names]
        return "fifo" in texts[0] and "billing" in texts[1] and json.loads(texts[2])["topics"]["fifo"]["kind"] == 1

    eventually(saved)


def test_a_deleted_topic_leaves_a_tombstone_no_files_and_no_memory(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    running.send("kept", b"x")
    running.send_batch("orders", [b"x"] * 500)
    index = running.queue_index("orders")
    eventually(lambda: running.store.queue(index)[2] == 500)
    BrokerTables(running.store).topic_delete("orders")
    eventually(lambda: not (running.root / "consumequeue/orders").exists())
    assert "orders" in json.loads((running.root / "config/shmq.json").read_text())["deleted"]
    eventually(lambda: KeeperStore(running.store).units_read(index, 499, 1) == b"")
    assert KeeperStore(running.store).units_read(running.queue_index("kept"), 0, 1)


def test_a_topic_that_is_made_anew_begins_with_empty_files(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    for _ in range(10):
        running.send("orders", b"old")
    old = running.queue_index("orders")
    eventually(lambda: running.store.queue(old)[2] == 10)
    BrokerTables(running.store).topic_delete("orders")
    running.topic("orders")
    new = running.send("orders", b"new")
    index = running.queue_index("orders")
    assert (index != old, new.offset) == (True, 0)
    eventually(lambda: running.store.queue(index)[2] == 1)
    path = running.root / "consumequeue/orders/0/00000000000000000000"
    content = eventually(lambda: path.exists() and path.read_bytes())
    assert unpack_unit(content)[0] == new.log_position
    assert content[20:].strip(b"\0") == b""


def test_nothing_is_written_into_a_store_that_another_broker_has_put_in_place_of_ours(
    start_keeper: StartKeeper,
) -> None:
    running = start_keeper()
    running.halt()
    running.send("orders", b"x")
    running.root.rename(running.root.with_name("ours"))
    running.root.mkdir()
    theirs = os.open(running.root, os.O_RDONLY)
    fcntl.flock(theirs, fcntl.LOCK_EX)
    running.keeper.round(1e9)
    [lost] = running.events.named("file.lost")
    assert not running.stop()
    os.close(theirs)
    assert "ours" in lost["do"] and os.listdir(running.root) == []


def test_offsets_of_messages_that_were_truncated_away_are_not_given_again(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    running.send("orders", b"kept")
    end = running.store.log_end
    running.send("orders", b"lost")
    os.truncate(running.root / "commitlog" / ("0" * 20), end)
    eventually(lambda: running.events.named("file.lost"))
    assert not running.stop()
    again = start_keeper()
    assert again.store.message_at(0).body == b"kept"
    assert again.send("orders", b"new").offset == 2


def test_a_clean_stop_retires_saves_and_says_so(start_keeper: StartKeeper) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    for number in range(50):
        running.send("orders", b"%d" % number)
    group = BrokerTables(running.store).group_put("billing")
    running.store.offset_set(BrokerTables(running.store).offset_put(group, running.queue_index("orders")), 17)
    assert (running.root / "abort").exists()
    log_end = running.store.log_end
    running.halt()
    assert running.keeper.stop()
    assert not (running.root / "abort").exists()
    offsets = json.loads((running.root / "config/consumerOffset.json").read_text())
    assert offsets["offsetTable"] == {"orders@billing": {"0": 17}}
    running.end()
    again = start_keeper()
    assert again.attached.report.clean
    assert (again.attached.report.records, again.store.log_end) == (0, log_end)
    assert [committed for _, _, _, committed, _, _ in again.store.offsets()] == [17]
    again.store.offset_set(again.store.offsets()[0][0], 18)
    again.halt()
    assert again.keeper.stop()
    texts = [(again.root / "config" / f"consumerOffset.json{end}").read_bytes() for end in ("", ".bak")]
    assert b"18" in texts[0] and texts[1] == texts[0], "a backup is as new as its table"


def test_a_producer_learns_that_the_broker_stopped(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    running.send("orders", b"x")
    running.halt()
    KeeperStore(running.store).set_retired()
    with pytest.raises(CoreError) as caught:
        running.send("orders", b"x")
    from shmq.errors import BrokerNotRunning

    assert isinstance(caught.value, BrokerNotRunning)


def test_unit_memory_stays_within_its_budget_and_old_units_are_in_the_files(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(unit_memory_bytes=4 << 20, file_bytes=4 << 20)
    count = (6 << 20) // FRAME_BYTES * 204
    for _ in range(count // 512):
        eventually(lambda: running.store.allocated_end - running.store.log_end > running.options.file_bytes)
        running.send_batch("orders", [b""] * 512)
    index = running.queue_index("orders")
    sent = running.store.queue(index)[1]
    eventually(lambda: KeeperStore(running.store).units_read(index, 0, 1) == b"")
    eventually(lambda: running.keeper.frames_used <= (4 << 20) // FRAME_BYTES)
    assert KeeperStore(running.store).units_read(index, sent - 1, 1)
    files = (
        running.attached.files.consumequeue
    )  # the last units are written a moment after those that had to leave memory
    eventually(lambda: len(files.read(("orders", 0), 0, sent)) == sent * 20)


def test_frames_are_reserved_ahead_of_need_in_small_steps(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(file_bytes=4 << 20)
    figures = StoreFigures(running.store)
    before = figures.stats()["frame_ready"]
    for _ in range(FRAMES_FREE_MIN * 204 * 3 // 2 // 512):
        eventually(lambda: running.store.allocated_end - running.store.log_end > running.options.file_bytes)
        running.send_batch("orders", [b""] * 512)
    index = running.queue_index("orders")
    eventually(lambda: running.store.queue(index)[2] == running.store.queue(index)[1])
    eventually(lambda: figures.stats()["frame_ready"] - running.keeper.frames_used >= FRAMES_FREE_MIN)
    assert before < figures.stats()["frame_ready"] <= before + 2 * FRAMES_FREE_MIN


def test_the_keeper_says_that_it_lives(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    seen = running.store.keeper_beat_ns
    eventually(lambda: running.store.keeper_beat_ns > seen)


def test_a_stop_may_come_at_every_line_of_a_round(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    running.halt()
    rounds = running.keeper.rounds

    class Asked(threading.Event):
        def is_set(self) -> bool:
            return running.keeper.rounds >= rounds + 3

    assert interrupted_everywhere(lambda: running.keeper.run(Asked()), running.keeper.wake) > 100


def test_a_slave_that_has_its_epochs_from_the_backup_says_so_at_its_start(start_keeper: StartKeeper) -> None:
    """With fewer of them its log would be said to part from its master's."""
    layout = start_keeper().attached.files.layout
    store_epochs(layout, (Epoch(0, 0), Epoch(1, 0)))
    layout.epochs.write_bytes(b"2\n")
    running = start_keeper(role="slave", master="127.0.0.1:1", master_ha="127.0.0.1:2")
    assert [told["epoch"] for told in running.events.named("epochs.from_backup")] == [1]


def test_a_slave_whose_epochs_cannot_be_read_serves_its_readers_and_says_so(start_keeper: StartKeeper) -> None:
    layout = start_keeper().attached.files.layout
    store_epochs(layout, (Epoch(0, 0), Epoch(1, 0)))
    for path in (layout.epochs, layout.epochs.with_name(f"{layout.epochs.name}.bak")):
        path.write_bytes(b"2\n")
    running = start_keeper(role="slave", master="127.0.0.1:1", master_ha="127.0.0.1:2")
    [told] = running.events.named("epochs.unreadable")
    assert str(layout.epochs) in told["reason"] and told["hint"]
    assert running.store.standing == READ_ONLY_FOLLOWER
    with pytest.raises(CorruptionError):
        start_keeper(role="master")


def test_nothing_stays_in_dev_shm(start_keeper: StartKeeper) -> None:
    running = start_keeper()
    running.send("orders", b"x")
    assert [name for name in os.listdir(SHM_DIRECTORY) if running.options.broker_name in name]
    running.stop()
    assert not [name for name in os.listdir(SHM_DIRECTORY) if running.options.broker_name in name]
