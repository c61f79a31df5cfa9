"""The log's files: the oldest ones go in time, the last ones never, and a full disk is only an error."""

import dataclasses
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import FlowControl
from shmq.shm.core import READ_ONLY_DISK_FULL, CoreError
from shmq.shm.lease import take_lease

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


def test_what_somebody_has_a_lease_on_stays_until_the_lease_ends(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(retention_hours=10)
    filled(running, eventually, 4)
    running.halt()
    age(running, 3, 11)
    second = running.options.file_bytes
    assert take_lease(running.root, second + 17, 600)
    running.keeper.clean(time.time())
    assert running.store.log_begin == second  # the file before it is nobody's
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
    running = start_keeper(disk_warn_percent=1, disk_force_percent=1)
    running.halt()
    for _ in range(3):
        while running.store.allocated_end - running.store.log_end <= running.options.file_bytes:
            running.store.set_allocated_end(running.attached.files.commitlog.create_next())
        for _ in range(14):
            running.send("orders", bytes(20_000))
    durable(running, eventually)
    running.keeper.clean(time.time())
    assert running.store.log_begin > 0
    assert running.events.named("log.file_removed")[0]["expired"] is False


def test_a_file_that_is_not_durable_yet_stays(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(disk_warn_percent=1, disk_force_percent=1, flush_interval_ms=60_000)
    running.halt()
    for _ in range(2 * running.options.file_bytes // 20_000):
        running.send("orders", bytes(20_000))
    before = running.store.durable_end
    running.keeper.clean(time.time())
    assert running.store.log_begin == 0 and running.store.durable_end == before < running.options.file_bytes
    running.store.flush()
    running.keeper.clean(time.time())
    assert running.store.log_begin == running.options.file_bytes


FULL_DISK = """
    import os, sys, threading, time
    from pathlib import Path
    root = Path(sys.argv[1])
    os.system(f"mount -t tmpfs -o size=3m tmpfs {root}")
    from shmq.daemon.event_log import EventLog
    from shmq.daemon.keeper.attachment import attach
    from shmq.daemon.keeper.keeper import Keeper
    from shmq.daemon.options import Options
    from shmq.shm.core import CoreError, Producer
    from shmq.shm.place import prepare_runtime
    from shmq.shm.segment import unlink_segments
    options = Options(broker_name="full", runtime_dir=str(root / "run"), store=str(root / "store"),
                      file_bytes=512 << 10, frame_max=4096, populate_bytes=0, queue_max=64, topic_max=64,
                      offset_max=64, disk_warn_percent=100, disk_force_percent=100)
    prepare_runtime(options.place, mode=0o700, gid=-1)
    attached = attach(options, EventLog("keeper"))
    keeper = Keeper(attached, options, EventLog("keeper"))
    keeper.start()
    stopping = threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stopping,))
    thread.start()
    store = attached.store
    index = store.topic_put("orders", read_queues=1, write_queues=1)
    producer = Producer(store, resolve=store.topic_find, timeout=0.2)
    sent, until = 0, time.monotonic() + 60
    def append():
        global sent
        try:
            producer.send("orders", bytes(10000))
            sent += 1
            return ""
        except CoreError as error:
            return type(error).__name__
    # A refusal counts only when the keeper has tried and everything allocated is used up.
    while time.monotonic() < until:
        if append() and not keeper.has_room and store.allocated_end - store.log_end < 20000:
            break
    print(append(), store.read_only, sent > 50)
    first = store.message_at(0)
    print(len(first.body))
    os.system(f"mount -o remount,size=8m {root}")
    while append() and time.monotonic() < until:
        time.sleep(0.01)  # not a wait: a program of its own, with its deadline
    print("goes on", store.read_only)
    stopping.set(); keeper.wake(); thread.join()
    print(keeper.stop())
    unlink_segments(attached.instance)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_refuses_appends_and_nothing_else_until_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    result = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path / "small")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["SegmentFull 0 True", "10000", "goes on 0", "True"], result.stderr
    assert result.stderr.count("log.no_spare") == 1


def test_above_its_mark_a_full_disk_refuses_sends_with_the_numbers_and_readers_go_on(
    start_keeper: StartKeeper,
) -> None:
    running = start_keeper(disk_refuse_percent=100)
    running.halt()
    kept = running.send("orders", b"before")
    space = running.keeper._space
    # This disk is more than 1 % full, wherever the test runs.
    space._options = dataclasses.replace(running.options, disk_refuse_percent=1)
    space._watch_disk()
    with pytest.raises(FlowControl, match=r"is \d+ % full, above 1 % nothing is stored") as raised:
        running.send("orders", b"refused")
    assert (raised.value.used > 1, raised.value.limit, raised.value.code) == (True, 1, 14)
    assert running.store.read_only == READ_ONLY_DISK_FULL and raised.value.retryable
    assert running.store.message_at(kept.log_position).body == b"before"
    space._options = dataclasses.replace(running.options, disk_refuse_percent=100)
    space._watch_disk()
    assert running.send("orders", b"after").offset == kept.offset + 1
    assert [len(running.events.named(name)) for name in ("disk.full", "disk.room")] == [1, 1]


@pytest.mark.parametrize("reason", [1, 2])
def test_room_on_the_disk_repairs_no_damage(start_keeper: StartKeeper, reason: int) -> None:
    running = start_keeper(disk_refuse_percent=1)
    running.halt()
    running.keeper._space._watch_disk()
    running.store.set_read_only(reason)
    running.store.set_read_only(0)
    running.keeper._space._options = dataclasses.replace(running.options, disk_refuse_percent=100)
    running.keeper._space._watch_disk()
    assert running.store.read_only == reason
