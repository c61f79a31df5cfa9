"""Which log files go: by age, by hour, by what is consumed; the last ones never."""

import dataclasses
import errno
import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from shmq.errors import CorruptionError, FlowControl
from shmq.progress import Backlog
from shmq.protocol.pop import REVIVE_TOPIC_PREFIX
from shmq.protocol.system_topics.pop_records import (
    REVIVE_GROUP,
    AckRecord,
    CheckpointRecord,
    encode_record,
)
from shmq.shm.core import READ_ONLY_DISK_FULL, BrokerTables, CoreError, KeeperStore
from shmq.shm.lease import take_lease
from shmq.store.commitlog import CommitLogFiles
from shmq.store.durable import DurableMark
from shmq.timing import TIMER_AT_GROUP, TIMER_DUE_GROUP, TIMER_GROUP, TIMER_GROUPS, TIMER_TOPIC

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]


def filled(running: Any, eventually: Eventually, files: int) -> list[Any]:
    """Fill some log files."""
    receipts = []
    while running.store.log_end < files * running.options.file_bytes:
        eventually(lambda: running.store.allocated_end - running.store.log_end > running.options.file_bytes)
        receipts.append(running.send("orders", bytes(20_000)))
    index = running.queue_index("orders")
    eventually(lambda: running.store.queue(index)[2] == len(receipts))
    durable(running, eventually)
    return receipts


def durable(running: Any, eventually: Eventually) -> None:
    """Wait for the flusher, which goes on when the keeper's thread is halted: only durable files are removed."""
    eventually(lambda: running.store.durable_end == running.store.log_end, "everything is durable")


def age(running: Any, count: int, hours: float) -> None:
    """Make the oldest files look as if they had been written long ago."""
    moment = time.time() - hours * 3600
    for name in sorted(os.listdir(running.root / "commitlog"))[:count]:
        os.utime(running.root / "commitlog" / name, (moment, moment))


def test_expired_files_go_and_the_queue_minimum_follows(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(retention_hours=10)
    receipts = filled(running, eventually, 4)
    running.halt()
    age(running, 2, 11)
    running.keeper.clean(time.time())
    begin = 2 * running.options.file_bytes
    assert running.store.log_begin == begin
    assert sorted(os.listdir(running.root / "commitlog"))[0] == f"{begin:020d}"
    running.keeper.round(time.monotonic())
    kept = next(receipt.offset for receipt in receipts if receipt.log_position >= begin)
    assert running.store.queue(running.queue_index("orders"))[:2] == (kept, len(receipts))
    with pytest.raises(CoreError):
        running.store.message_at(receipts[0].log_position)


def test_the_mark_says_the_new_begin_before_a_file_goes_and_without_it_the_file_stays(
    start_keeper: StartKeeper, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start_keeper(retention_hours=10)
    filled(running, eventually, 3)
    running.halt()
    mark, size = running.attached.files.mark, running.options.file_bytes
    seen: list[tuple[int | None, int]] = []
    real = CommitLogFiles.remove_first

    def removed(files: CommitLogFiles) -> int:
        known = DurableMark(running.attached.files.layout).load()
        seen.append((known.log_begin if known else None, files.positions[1]))
        return real(files)

    def refused(*args: Any, **values: Any) -> bool:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(CommitLogFiles, "remove_first", removed)
    age(running, 2, 11)
    with monkeypatch.context() as patch:
        patch.setattr(mark, "advance", refused)
        assert running.keeper.clean(time.time()) == running.keeper.clean(time.time()) == 0
    assert running.store.log_begin == running.attached.files.commitlog.begin == 0
    assert len(running.events.named("log.file_kept")) == 1
    assert running.keeper.clean(time.time()) == 2
    assert seen == [(size, size), (2 * size, 2 * size)]


def test_what_has_a_lease_stays_until_the_lease_ends(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(retention_hours=10)
    filled(running, eventually, 4)
    running.halt()
    age(running, 3, 11)
    second = running.options.file_bytes
    assert take_lease(running.root, second + 17, 600)
    running.keeper.clean(time.time())
    assert running.store.log_begin == second  # the file before it has no lease
    running.keeper.clean(time.time() + 601)
    assert running.store.log_begin > second


def test_the_file_in_use_and_the_spare_stay_whatever_their_age(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(retention_hours=1)
    filled(running, eventually, 2)
    running.halt()
    age(running, 100, 1000)
    running.keeper.clean(time.time())
    in_use = running.store.log_end - running.store.log_end % running.options.file_bytes
    assert running.store.log_begin == in_use
    assert f"{in_use:020d}" in os.listdir(running.root / "commitlog")
    running.send("orders", b"goes on")


def test_a_disk_that_is_too_full_costs_the_oldest_files_even_before_they_expire(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(disk_warn_percent=1, disk_force_percent=1, when_full="delete-oldest")
    running.halt()
    for _ in range(3):
        while running.store.allocated_end - running.store.log_end <= running.options.file_bytes:
            KeeperStore(running.store).set_allocated_end(running.attached.files.commitlog.create_next())
        for _ in range(14):
            running.send("orders", bytes(20_000))
    durable(running, eventually)
    running.keeper.clean(time.time())
    assert running.store.log_begin > 0
    assert running.events.named("log.file_removed")[0]["expired"] is False


def test_a_file_that_is_not_durable_yet_stays(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(
        disk_warn_percent=1, disk_force_percent=1, when_full="delete-oldest", flush_interval_ms=60_000
    )
    running.halt()
    for _ in range(2 * running.options.file_bytes // 20_000):
        running.send("orders", bytes(20_000))
    before = running.store.durable_end
    running.keeper.clean(time.time())
    assert running.store.log_begin == 0 and running.store.durable_end == before < running.options.file_bytes
    KeeperStore(running.store).flush()
    running.keeper.clean(time.time())
    assert running.store.log_begin == running.options.file_bytes


def test_above_its_mark_a_full_disk_refuses_sends_with_the_numbers_and_readers_go_on(
    start_keeper: StartKeeper,
) -> None:
    running = start_keeper(disk_refuse_percent=100)
    running.halt()
    kept = running.send("orders", b"before")
    retention = running.keeper._retention
    # This disk is more than 1 % full, wherever the test runs.
    retention._options = dataclasses.replace(running.options, disk_refuse_percent=1)
    retention.watch_disk()
    with pytest.raises(FlowControl, match=r"is \d+ % full, above 1 % nothing is stored") as raised:
        running.send("orders", b"refused")
    assert (raised.value.used > 1, raised.value.limit, raised.value.code) == (True, 1, 14)
    assert running.store.read_only == READ_ONLY_DISK_FULL and raised.value.retryable
    assert running.store.message_at(kept.log_position).body == b"before"
    retention._options = dataclasses.replace(running.options, disk_refuse_percent=100)
    retention.watch_disk()
    assert running.send("orders", b"after").offset == kept.offset + 1
    assert [len(running.events.named(name)) for name in ("disk.full", "disk.room")] == [1, 1]


@pytest.mark.parametrize("reason", [1, 2])
def test_room_on_the_disk_repairs_no_damage(start_keeper: StartKeeper, reason: int) -> None:
    running = start_keeper(disk_refuse_percent=1)
    running.halt()
    running.keeper._retention.watch_disk()
    KeeperStore(running.store).set_read_only(reason)
    KeeperStore(running.store).set_read_only(0)
    running.keeper._retention._options = dataclasses.replace(running.options, disk_refuse_percent=100)
    running.keeper._retention.watch_disk()
    assert running.store.read_only == reason


SHORT = {"disk_warn_percent": 1, "disk_force_percent": 1}  # this disk is more than 1 % full, wherever the test runs


def short_of_room(running: Any, **options: Any) -> None:
    """End the keeper's thread, and let its disk be too full from now on."""
    running.halt()
    running.keeper._retention._options = running.options.replaced(**{**SHORT, **options})


def group_offset(running: Any, group: str, topic: str, offset: int, queue_id: int = 0) -> int:
    """Let a group be at an offset; returns its slot."""
    tables = BrokerTables(running.store)
    slot = tables.offset_put(tables.group_put(group), running.queue_index(topic, queue_id))
    running.store.offset_set(slot, offset)
    return int(slot)


def test_a_full_disk_costs_no_message_that_is_not_consumed(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    receipts = filled(running, eventually, 4)
    short_of_room(running)
    running.keeper.clean(time.time())
    assert running.store.log_begin == 0  # nothing was read
    assert running.events.named("disk.held")[-1] | {"log_position": 0} == {
        "log_position": 0,
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": 0,
        "group": "",
    }
    second = next(receipt for receipt in receipts if receipt.log_position >= running.options.file_bytes)
    group_offset(running, "fast", "orders", len(receipts))
    slot = group_offset(running, "slow", "orders", second.offset - 1)
    running.keeper.clean(time.time())
    assert running.store.log_begin == 0 and running.events.named("disk.held")[-1]["group"] == "slow"
    running.store.offset_set(slot, second.offset)
    assert running.keeper.clean(time.time()) == 1
    assert running.store.log_begin == running.options.file_bytes
    running.store.offset_set(slot, len(receipts))
    running.keeper.clean(time.time())
    assert running.store.log_begin == running.store.log_end - running.store.log_end % running.options.file_bytes


def test_a_group_that_has_not_begun_a_queue_of_its_topic_holds_it(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    running.send("orders", b"not read yet", queue_id=1)
    receipts = filled(running, eventually, 3)
    short_of_room(running)
    group_offset(running, "readers", "orders", len(receipts))
    running.keeper.clean(time.time())
    held = running.events.named("disk.held")[-1]
    assert (running.store.log_begin, held["queue_id"], held["group"]) == (0, 1, "readers")
    group_offset(running, "readers", "orders", 1, queue_id=1)
    assert running.keeper.clean(time.time()) > 0


def test_refusing_brokers_delete_nothing_but_what_expired(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(retention_hours=10)
    receipts = filled(running, eventually, 3)
    short_of_room(running, when_full="refuse")
    group_offset(running, "readers", "orders", len(receipts))
    assert running.keeper.clean(time.time()) == 0
    age(running, 1, 11)
    assert running.keeper.clean(time.time()) == 1


@pytest.mark.parametrize(
    ("topic", "holds"), [("RMQ_SYS_TRACE_TOPIC", False), ("OFFSET_MOVED_EVENT", False), ("SCHEDULE_TOPIC_XXXX", True)]
)
def test_topics_that_a_broker_fills_for_itself_hold_what_it_will_read_again(
    start_keeper: StartKeeper, eventually: Eventually, topic: str, holds: bool
) -> None:
    running = start_keeper()
    running.send(topic, b"of the broker")
    receipts = filled(running, eventually, 3)
    short_of_room(running)
    group_offset(running, "readers", "orders", len(receipts))
    assert (running.keeper.clean(time.time()) == 0) == holds


def test_a_popped_message_is_needed_until_it_is_settled(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    receipts = filled(running, eventually, 3)
    group_offset(running, "readers", "orders", len(receipts))
    pop = CheckpointRecord(so=0, pt=1, it=60_000, q=0, t="orders", c="readers", d=[0, 1, 2], n=3)
    log = f"{REVIVE_TOPIC_PREFIX}DefaultCluster"

    def write(record: CheckpointRecord | AckRecord) -> int:
        return int(running.send(log, encode_record(record), tag=record.tag).offset)

    first = write(pop)
    for _ in range(running.options.file_bytes // 20_000):
        eventually(lambda: running.store.allocated_end - running.store.log_end > running.options.file_bytes)
        receipts.append(running.send("orders", bytes(20_000)))
    durable(running, eventually)
    group_offset(running, "readers", "orders", len(receipts))
    short_of_room(running)
    running.keeper.clean(time.time())
    assert (running.store.log_begin, running.events.named("disk.held")[-1]["queue_offset"]) == (0, 0)
    write(AckRecord(so=0, pt=1, q=0, t="orders", c="readers", aol=[0, 2]))
    running.keeper.clean(time.time())
    assert running.store.log_begin == 0
    done = write(AckRecord(so=0, pt=1, q=0, t="orders", c="readers", ao=1))
    running.keeper.clean(time.time())
    begun = running.store.log_begin
    assert begun > 0  # and now the records of the log of pops hold it: they are not noted as done
    assert running.events.named("disk.held")[-1]["topic"] == log
    group_offset(running, REVIVE_GROUP, log, done)
    assert first < done and running.keeper.clean(time.time()) > 0


def test_a_timed_message_is_needed_until_it_is_delivered(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    now = int(time.time() * 1000)
    for offset, due in enumerate((now + 5000, now + 1000)):
        producer_append(running, TIMER_TOPIC, due)
        assert running.store.queue(running.queue_index(TIMER_TOPIC))[1] == offset + 1
    receipts = filled(running, eventually, 3)
    group_offset(running, "readers", "orders", len(receipts))
    short_of_room(running)
    words = dict.fromkeys(TIMER_GROUPS, 0) | {TIMER_GROUP: 2}

    def clean(due: int, at: int) -> int:
        words.update({TIMER_DUE_GROUP: due, TIMER_AT_GROUP: at << 20 | due & ((1 << 20) - 1)})
        for group, word in words.items():
            group_offset(running, group, TIMER_TOPIC, word)
        return int(running.keeper.clean(time.time()))

    assert clean(0, 0) == 0
    assert clean(now + 1000, 2) == 0  # the second one, which is due first
    assert running.events.named("disk.held")[-1]["topic"] == TIMER_TOPIC
    assert clean(now + 5000, 1) > 0


def producer_append(running: Any, topic: str, tag_code: int) -> None:
    """Store a record whose unit says a number of its own."""
    running.topic(topic)
    running._producer.append(topic, b"later", b"", queue_id=0, tag_code=tag_code)


def test_expired_files_wait_for_their_hour_unless_the_disk_is_short(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    hour = time.localtime().tm_hour
    running = start_keeper(retention_hours=10, delete_hour=str((hour + 12) % 24))
    filled(running, eventually, 3)
    short_of_room(running, disk_warn_percent=100, disk_force_percent=100)
    age(running, 2, 11)
    retention = running.keeper._retention
    assert running.keeper.clean(time.time()) == 0
    retention._options = retention._options.replaced(delete_hour=f"{(hour + 12) % 24};{hour}")
    now = time.time()
    if time.localtime(now).tm_hour == hour:
        age(running, 2, 9)
        age(running, 1, 11)
        assert running.keeper.clean(now) == 1
    age(running, 1, 11)
    retention._options = retention._options.replaced(delete_hour=str((hour + 12) % 24), disk_warn_percent=1)
    assert running.keeper.clean(time.time()) == 1


def test_empty_spare_files_go_before_full_ones_and_come_again_when_they_are_needed(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    filled(running, eventually, 2)
    short_of_room(running, disk_force_percent=100)
    files, size = running.attached.files.commitlog, running.options.file_bytes
    for _ in range(5):
        KeeperStore(running.store).set_allocated_end(files.create_next())
    KeeperStore(running.store).populate(files.end - size, size)
    running.keeper.clean(time.time())
    in_use = running.store.log_end - running.store.log_end % size
    assert files.end == running.store.allocated_end == in_use + 2 * size
    assert len(os.listdir(running.root / "commitlog")) == len(files.positions)
    assert running.events.named("log.spares_removed")[0]["files"] >= 5 and running.store.log_begin == 0
    receipts = []
    while running.store.log_end < in_use + 4 * size:
        running.keeper.round(time.monotonic())
        receipts.append(running.send("orders", bytes(20_000)))
    for receipt in receipts:
        assert running.store.message_at(receipt.log_position).offset == receipt.offset
    name = f"{receipts[-1].log_position // size * size:020d}"
    assert any((running.root / "commitlog" / name).read_bytes())  # not a file that has lost its name


def test_what_cleaning_takes_from_a_group_is_counted_apart_from_its_lag(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    receipts = filled(running, eventually, 3)
    short_of_room(running, when_full="delete-oldest")
    slow, queue = group_offset(running, "slow", "orders", 3), running.queue_index("orders")
    group_offset(running, "fast", "orders", len(receipts))
    assert running.keeper.clean(time.time()) > 0
    running.keeper.round(time.monotonic())
    kept = running.store.queue(queue)[0]
    [(group, of_queue, count, seconds)] = running.store.offsets_lost()
    assert (group, of_queue, count) == (running.store.group_find("slow"), queue, kept - 3)
    assert abs(seconds - time.time()) < 3600
    assert Backlog(running.store.offset_get(slow), kept, len(receipts), cleaned=count).lost == count
    [event] = running.events.named("group.lost")
    assert (event["group"], event["messages"], event["next_offset"]) == ("slow", kept - 3, kept)
    assert running.stop()
    running = start_keeper()  # the count outlives the segments
    assert running.store.offsets_lost() == [
        (running.store.group_find("slow"), running.queue_index("orders"), count, seconds)
    ]
    BrokerTables(running.store).group_delete("slow")
    assert running.store.offsets_lost() == []
    assert running.stop()
    assert start_keeper().store.offsets_lost() == []


def test_first_files_that_are_missing_and_accepted_count_for_groups_as_what_cleaning_takes(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    receipts = filled(running, eventually, 3)
    size = running.options.file_bytes
    group_offset(running, "slow", "orders", 3)
    group_offset(running, "fast", "orders", len(receipts))
    assert running.stop()
    (running.root / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(CorruptionError, match="were on disk"):
        start_keeper()
    running = start_keeper(accept_loss=f"0-{size}")
    kept = next(receipt.offset for receipt in receipts if receipt.log_position >= size)
    slow, queue = running.store.group_find("slow"), running.queue_index("orders")
    assert [each[:3] for each in running.store.offsets_lost()] == [(slow, queue, kept - 3)]
    assert running.events.named("recovery.loss_accepted") == [{"log_position": 0, "end": size, "messages": kept}]
    assert running.store.offsets_lost()[0][3] > 0
    assert running.stop()
    assert [each[:3] for each in start_keeper().store.offsets_lost()] == [(slow, queue, kept - 3)]
