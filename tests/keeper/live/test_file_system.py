"""A file system that takes no more writes: appends are refused, the log can be read, nothing is said to be saved."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.daemon.keeper.live.file_system import FileSystemWatch
from shmq.shm.core import READ_ONLY_FLUSH_FAILED, CoreError, KeeperStore
from shmq.store.mounts import Mount
from tests.keeper.conftest import Events

WRITABLE = Mount("/data", "ext4", ("rw", "rw", "errors=remount-ro"))
REFUSING = Mount("/data", "ext4", ("rw", "rw", "errors=remount-ro", "emergency_ro"))


def test_it_is_reported_once_and_stays_so_even_if_the_mount_recovers(start_keeper: Callable[..., Any]) -> None:
    running, events = start_keeper(), Events()
    running.send("orders", b"before")
    mounts = iter([None, WRITABLE, REFUSING, WRITABLE, REFUSING])
    watch = FileSystemWatch(KeeperStore(running.store), lambda: next(mounts), events)  # type: ignore[arg-type]
    for now in (0, 1000):
        watch.round(now)
        assert running.store.read_only == 0 and not events.lines
    for now in (2000, 3000, 4000):
        watch.round(now)
        assert running.store.read_only == READ_ONLY_FLUSH_FAILED
    (told,) = events.named("disk.read_only")
    assert (told["mount"], told["options"]) == ("/data", "rw,rw,errors=remount-ro,emergency_ro")
    with pytest.raises(CoreError, match="the disk refused to write"):
        running.send("orders", b"after")
    assert running.store.message_at(0).body == b"before"


READ_ONLY_MOUNT = """
    import os, sys, threading, time
    from pathlib import Path
    root = Path(sys.argv[1])
    def mount(*words):
        assert os.spawnlp(os.P_WAIT, "mount", "mount", *words) == 0
    from shmq.daemon.bridge.store.tables import StoreTables
    from shmq.daemon.event_log import EventLog
    from shmq.daemon.keeper.attachment import attach
    from shmq.daemon.keeper.keeper import Keeper
    from shmq.options.broker import Options
    from shmq.errors import ShmqError
    from shmq.shm.access import Access
    from shmq.shm.core import READ_ONLY_FLUSH_FAILED, BrokerTables, Producer
    from shmq.shm.place import prepare_runtime
    from shmq.shm.segment import open_store, unlink_segments
    options = Options(broker_name="refusing", runtime_dir=sys.argv[2], store=str(root / "store"),
                      file_bytes=512 << 10, frame_max=4096, populate_bytes=0, queue_max=64, topic_max=64,
                      offset_max=64, disk_warn_percent=100, disk_force_percent=100, disk_refuse_percent=100)
    prepare_runtime(options.place, mode=0o700, gid=-1)
    def attempt(send, *arguments, **values):
        try:
            send(*arguments, **values)
            return "done"
        except ShmqError as error:
            return f"{type(error).__name__}: {error.args[-1] if len(error.args) < 2 else error.args[1]}"
    attached = attach(options, EventLog("keeper"))
    keeper = Keeper(attached, options, EventLog("keeper"))
    keeper.start()
    tables = StoreTables(attached.store, attached.instance, Access(-1))
    BrokerTables(attached.store).topic_put("orders", read_queues=1, write_queues=1)
    Producer(attached.store, resolve=attached.store.topic_find).send("orders", b"before")
    keeper.round(0.0)
    print(attempt(tables.check_savable))
    mount("--bind", str(root), str(root))  # above that of the files that are open
    mount("-o", "remount,bind,ro", str(root))
    late = open_store(attached.instance, writable=True)
    print(late.message_at(0).body)
    sender = Producer(late, resolve=late.topic_find, timeout=0.2)
    print(attempt(sender.send, "orders", b"unseen"))
    print(attempt(StoreTables(attached.store, attached.instance, Access(-1)).check_savable))  # which has not tried yet
    keeper.round(1000.0)
    print(attached.store.read_only == READ_ONLY_FLUSH_FAILED, attempt(sender.send, "orders", b"seen"))
    print(late.message_at(0).body)
    late.close()
    print(keeper.stop())
    unlink_segments(attached.instance)
    assert os.spawnlp(os.P_WAIT, "umount", "umount", "--lazy", str(root)) == 0
    again = attach(options, EventLog("keeper"))
    print(again.store.message_at(0).body, again.store.log_end > 0, again.store.read_only)
    again.store.close()
    unlink_segments(again.instance)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_where_writing_is_refused_the_log_is_read_and_no_change_is_called_saved(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    program = [sys.executable, "-c", textwrap.dedent(READ_ONLY_MOUNT), str(tmp_path / "disk"), str(tmp_path / "run")]
    result = subprocess.run(["unshare", "--mount", *program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    why = f"nothing was changed, as it cannot be saved in {tmp_path}/disk/store/config: Read-only file system"
    refused = "the disk refused to write; repair it and restart the broker, it recovers from the disk"
    assert result.stdout.splitlines() == [
        "done",
        "b'before'",
        "SegmentError: topic 'orders', queue 0: Read-only file system",
        f"StoreError: {why}",
        f"True ReadOnlyStore: topic 'orders', queue 0: the store is read-only: {refused}",
        "b'before'",
        "False",
        "b'before' True 0",
    ], result.stderr
    assert result.stderr.count("disk.read_only") == 1
