"""The durable mark follows the log whatever the unit files do, and never moves over a sync that failed."""

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.shm.access import Access
from shmq.shm.core import KeeperStore
from shmq.shm.unit import unpack_unit
from shmq.store.checkpoint import read_checkpoint
from shmq.store.durable import DurableMark
from shmq.store.layout import StoreLayout, file_name
from shmq.store.unit_repair import find_faults
from tests.crash.disk.disk import FaultyDisk, Kind
from tests.crash.disk.recovered import RecoveredStore

StartKeeper = Callable[..., Any]
Eventually = Callable[..., Any]


def test_the_durable_end_is_marked_while_unit_files_cannot_be_written(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(flush="sync")
    (running.root / "consumequeue" / "orders").write_bytes(b"no directory can be made here")
    for number in range(50):
        running.send("orders", b"%d" % number)
    running.send("payments", b"x")
    end = running.store.log_end
    mark: DurableMark = running.attached.files.mark
    eventually(lambda: mark.current.durable_end == end)
    assert mark.current.dispatched == 0
    eventually(lambda: running.events.named("units.not_written"))
    # A queue that cannot be written holds up no other.
    eventually(lambda: running.store.queue(running.queue_index("payments"))[2] == 1)
    (running.root / "consumequeue" / "orders").unlink()
    eventually(lambda: mark.current.dispatched == end)


def test_no_mark_says_more_of_the_log_than_was_flushed(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    running.send("orders", b"x")
    mark: DurableMark = running.attached.files.mark
    eventually(lambda: mark.current.dispatched == running.store.log_end)
    flushed, end, layout = running.store.durable_end, running.store.log_end, running.attached.files.layout
    running.abandon()  # ends the threads that write marks, each behind its last one
    known = DurableMark(layout).load()
    assert known is not None
    assert known.durable_end <= flushed < end


def test_the_checkpoint_of_an_idle_broker_says_what_was_flushed_after_its_units(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper(flush_interval_ms=60_000)
    running.send("orders", b"x")
    mark: DurableMark = running.attached.files.mark
    eventually(lambda: mark.current.dispatched == running.store.log_end)
    layout, end = running.attached.files.layout, running.store.log_end
    eventually(lambda: read_checkpoint(layout).logics_ms > 0)
    before = read_checkpoint(layout)
    assert before.flushed < end and before.physic_ms == 0
    # Flushed by another thread than the keeper's own, whose times therefore say nothing.
    KeeperStore(running.store).flush()
    eventually(lambda: read_checkpoint(layout).flushed == end)
    assert read_checkpoint(layout).physic_ms >= before.logics_ms


def test_units_that_were_not_marked_are_written_again_by_the_next_keeper(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    running.send("orders", b"marked")
    mark: DurableMark = running.attached.files.mark
    eventually(lambda: mark.current.dispatched == running.store.log_end)
    for number in range(1000):
        running.send("orders", b"%d" % number)
    eventually(lambda: running.store.queue(running.queue_index("orders"))[2] == 1001)
    end = running.store.log_end
    running.abandon()
    path = running.root / "consumequeue/orders/0" / file_name(0)
    before = path.read_bytes()
    known = DurableMark(running.attached.files.layout)
    known.load()
    if known.current.dispatched < end:
        with path.open("r+b") as file:  # as after a write-back that failed: the kernel reads the disk's old bytes
            file.seek(20 * 900)
            file.write(bytes(20 * 101))
    again = start_keeper()
    assert again.attached.report is None
    assert path.read_bytes() == before
    files = again.attached.files.consumequeue
    assert (files.sums.end(("orders", 0)), find_faults(files, ("orders", 0))) == (1001, [])


def test_a_batch_of_checksums_that_finds_its_file_truncated_is_not_written_and_says_so(
    start_keeper: StartKeeper, eventually: Eventually
) -> None:
    running = start_keeper()
    running.send("orders", b"x")
    eventually(lambda: running.attached.files.mark.current.dispatched == running.store.log_end)
    running.halt()
    marks, path = running.keeper._marks, StoreLayout(running.root, Access(-1)).unit_sums
    marks.step(wait=True)
    os.truncate(path, path.stat().st_size - 1)
    running.send("orders", b"x")
    marks.begin()
    marks.step(wait=True)
    assert running.events.named("mark.not_written") == [{"reason": f"{path} was truncated"}]
    assert marks.finish(), "the next one is a whole file"


def test_units_are_rebuilt_while_the_broker_runs(start_keeper: StartKeeper, eventually: Eventually) -> None:
    running = start_keeper()
    for number in range(1000):
        running.send("orders", b"%d" % number)
    mark: DurableMark = running.attached.files.mark
    eventually(lambda: mark.current.dispatched == running.store.log_end)
    running.halt()
    path = running.root / "consumequeue/orders/0" / file_name(0)
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(4000)
        file.write(os.urandom(8000))
    assert running.keeper.rebuild_units(("orders", 0), 100, 700) == 700
    assert path.read_bytes() == before
    assert unpack_unit(before, 999).log_position < running.store.log_end


# A keeper and a producer on a disk that the test breaks at some point: stdin says when to go on.
ON_A_FAULTY_DISK = """
    import sys, threading, time
    from shmq.daemon.event_log import EventLog
    from shmq.daemon.keeper.attachment import attach
    from shmq.daemon.keeper.keeper import Keeper
    from shmq.options.broker import Options
    from shmq.shm.core import BrokerTables, Producer
    from shmq.shm.place import prepare_runtime
    from shmq.shm.segment import unlink_segments
    root = sys.argv[1]
    options = Options(broker_name="broken", runtime_dir=root + "/run", store=root + "/store", file_bytes=256 << 10,
                      flush="sync", frame_max=4096, populate_bytes=0, queue_max=64, topic_max=64, offset_max=64)
    prepare_runtime(options.place, mode=0o700, gid=-1)
    attached = attach(options, EventLog("keeper"))
    keeper = Keeper(attached, options, EventLog("keeper"))
    keeper.start()
    stopping = threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stopping,))
    thread.start()
    store, mark = attached.store, attached.files.mark
    BrokerTables(store).topic_put("orders", read_queues=1, write_queues=1)
    producer = Producer(store, resolve=store.topic_find, timeout=60.0, wait_durable=True)
    print("ready", flush=True)
    for line in sys.stdin:
        for number in range(int(line)):
            producer.send("orders", b"%d" % number)
        until = time.monotonic() + 60
        while mark.current.dispatched < store.log_end and time.monotonic() < until:
            threading.Event().wait(0.01)
        print(mark.current.dispatched == store.log_end, store.read_only, flush=True)
    stopping.set(); keeper.wake(); thread.join()
    print(keeper.stop())
    unlink_segments(attached.instance)
"""


@pytest.mark.parametrize(
    ("path", "kind", "event"),
    [
        ("consumequeue/orders/0/", Kind.SYNC, "units.rewritten"),
        ("consumequeue/orders", Kind.SYNC_DIRECTORY, "mark.not_written"),
        ("shmq.units", Kind.SYNC, "mark.not_written"),
        ("shmq.durable", Kind.SYNC, "mark.not_written"),
    ],
)
@pytest.mark.slow
def test_what_a_failed_sync_covered_is_on_disk_when_the_mark_has_moved(
    tmp_path: Path, path: str, kind: Kind, event: str
) -> None:
    root = tmp_path / "store"
    with FaultyDisk(root) as disk:
        with disk.around():
            program = [sys.executable, "-c", textwrap.dedent(ON_A_FAULTY_DISK), str(tmp_path)]
            with (tmp_path / "log").open("w") as log:
                ran = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert ran.stdin is not None and ran.stdout is not None
        assert ran.stdout.readline() == "ready\n"

        def send(count: int) -> None:
            assert ran.stdin is not None and ran.stdout is not None
            ran.stdin.write(f"{count}\n")
            ran.stdin.flush()
            assert ran.stdout.readline() == "True 0\n"

        if kind is Kind.SYNC:
            send(100)
        disk.fail({kind}, at=1, error=errno.EIO, only=path)
        send(300)
        assert disk.failed == 1
        (tmp_path / "copy").mkdir()
        snapshot = disk.snapshot(tmp_path / "copy")
        ran.stdin.close()
        assert ran.stdout.readline() == "True\n"
        assert ran.wait() == 0
        ran.stdout.close()
    assert event in (tmp_path / "log").read_text()
    sent = 300 + (100 if kind is Kind.SYNC else 0)
    for share in (0.0, 1.0):
        image = tmp_path / f"image{share}"
        snapshot.image(1, image, share=share)
        # What the mark speaks of is there, and nothing has to be repaired to make it so.
        recovered = RecoveredStore(image, file_bytes=256 << 10)
        try:
            assert recovered.bounds()["orders", 0] == (0, sent)
            assert (recovered.report.records, recovered.report.units_repaired) == (0, 0), (share, recovered.events)
        finally:
            recovered.close()


def test_the_mark_follows_a_slow_disk_without_waiting_for_the_units(tmp_path: Path, eventually: Eventually) -> None:
    # Each sync of a unit file fails for a while; what was acknowledged is below the mark all the same.
    root = tmp_path / "store"
    with FaultyDisk(root) as disk:
        disk.slow(0, 30)
        disk.fail({Kind.SYNC}, at=1, error=errno.EIO, only="consumequeue/", after=True)
        with disk.around():
            program = [sys.executable, "-c", textwrap.dedent(ON_A_FAULTY_DISK), str(tmp_path)]
            with (tmp_path / "log").open("w") as log:
                ran = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        assert ran.stdin is not None and ran.stdout is not None
        assert ran.stdout.readline() == "ready\n"
        ran.stdin.write("50\n")
        ran.stdin.flush()
        layout = StoreLayout(root, Access(-1))

        def marked() -> bool:
            mark = DurableMark(layout).load()
            return mark is not None and mark.durable_end >= 50 * 100 and mark.dispatched == 0

        eventually(marked)
        disk.fail({Kind.SYNC}, at=0, error=errno.EIO)  # repaired
        assert ran.stdout.readline() == "True 0\n"
        ran.stdin.close()
        assert ran.stdout.readline() == "True\n"
        assert ran.wait() == 0
        ran.stdout.close()
