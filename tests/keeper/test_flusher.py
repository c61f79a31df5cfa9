"""The first flush error is final: nothing is acknowledged after it, and the next start recovers."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# A synchronous broker whose fdatasync fails from some call on; strace plays the broken disk.
BROKEN_DISK = """
    import sys, threading, time
    from shmq.daemon.event_log import EventLog
    from shmq.daemon.keeper.attachment import attach
    from shmq.daemon.keeper.keeper import Keeper
    from shmq.options.broker import Options
    from shmq.shm.core import BrokerTables, CoreError, Producer
    from shmq.shm.place import prepare_runtime
    from shmq.shm.segment import unlink_segments
    root, flush = sys.argv[1:]
    options = Options(broker_name="broken", runtime_dir=root + "/run", store=root + "/store", file_bytes=256 << 10,
                      flush=flush, frame_max=4096, populate_bytes=0, queue_max=64, topic_max=64, offset_max=64)
    prepare_runtime(options.place, mode=0o700, gid=-1)
    attached = attach(options, EventLog("keeper"))
    keeper = Keeper(attached, options, EventLog("keeper"))
    keeper.start()
    stopping = threading.Event()
    thread = threading.Thread(target=keeper.run, args=(stopping,))
    thread.start()
    store = attached.store
    index = BrokerTables(store).topic_put("orders", read_queues=1, write_queues=1)
    producer = Producer(store, resolve=store.topic_find, timeout=60.0, wait_durable=flush == "sync")
    acknowledged, errors = 0, []
    until = time.monotonic() + 180
    while len(errors) < 5 and time.monotonic() < until:
        try:
            producer.send("orders", b"%d" % acknowledged)
            acknowledged += 1
            time.sleep(0.001)  # not a wait: the load
        except CoreError as error:
            errors.append(type(error).__name__)
    print(acknowledged > 0, sorted(set(errors)), store.read_only)
    print(store.message_at(0).body)
    stopping.set(); keeper.wake(); thread.join()
    print(keeper.stop(), acknowledged)
    unlink_segments(attached.instance)
"""

RECOVERED = """
    import sys
    from shmq.daemon.event_log import EventLog
    from shmq.daemon.keeper.attachment import attach
    from shmq.options.broker import Options
    from shmq.shm.segment import unlink_segments
    root = sys.argv[1]
    options = Options(broker_name="broken", runtime_dir=root + "/run", store=root + "/store", file_bytes=256 << 10,
                      frame_max=4096, queue_max=64, topic_max=64, offset_max=64)
    attached = attach(options, EventLog("keeper"))
    print(attached.store.read_only, attached.store.queue(0)[1], attached.report.clean)
    attached.store.close()
    unlink_segments(attached.instance)
"""


@pytest.mark.parametrize("flush", [pytest.param("async", marks=pytest.mark.slow), "sync"])
def test_the_first_flush_error_is_final_until_the_next_recovery(tmp_path: Path, flush: str) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace plays the broken disk and is not installed")
    tracing = [strace, "-f", "-o", str(tmp_path / "trace"), "-e", "trace=fdatasync"]
    broken = subprocess.run(
        [
            *tracing,
            "-e",
            "inject=fdatasync:error=EIO:when=20+",
            sys.executable,
            "-c",
            textwrap.dedent(BROKEN_DISK),
            str(tmp_path),
            flush,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in broken.stderr and broken.returncode:
        pytest.skip("this process may not trace others")
    lines = broken.stdout.splitlines()
    assert lines[:2] == ["True ['ReadOnlyStore'] 1", "b'0'"], broken.stderr
    saved, acknowledged = lines[2].split()
    assert saved == "False"
    assert (tmp_path / "store/abort").exists()
    assert broken.stderr.count("flush.failed") == 1
    recovered = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RECOVERED), str(tmp_path)], capture_output=True, text=True, check=False
    )
    read_only, stored, clean = recovered.stdout.split()
    assert (read_only, clean) == ("0", "False"), recovered.stderr
    assert int(stored) >= int(acknowledged)
