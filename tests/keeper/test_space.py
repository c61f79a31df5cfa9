"""The log's files ahead of the writers: a full disk is only an error, and what is empty is given back."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FULL_DISK = """
    import os, sys, threading, time
    from pathlib import Path
    root = Path(sys.argv[1])
    os.system(f"mount -t tmpfs -o size=3m tmpfs {root}")
    from shmq.daemon.event_log import EventLog
    from shmq.daemon.keeper.attachment import attach
    from shmq.daemon.keeper.keeper import Keeper
    from shmq.options.broker import Options
    from shmq.shm.core import BrokerTables, CoreError, Producer
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
    index = BrokerTables(store).topic_put("orders", read_queues=1, write_queues=1)
    producer = Producer(store, resolve=store.topic_find, timeout=0.2)
    sent, until = 0, time.monotonic() + 180
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
    # It says so to a waiting sender while its last sign of life is fresh.
    while (refusal := append()) != "SegmentFull" and time.monotonic() < until:
        pass
    print(refusal, store.read_only, sent > 50)
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
