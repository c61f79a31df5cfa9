"""Single collectors, for what a healthy broker of this machine does not show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.errors import ReadOnlyStore
from shmq.figures import limits
from shmq.figures.observer import Observer
from shmq.figures.processes import collect_processes
from shmq.figures.residency import residency
from shmq.figures.verdict import Verdict
from shmq.shm.core import KeeperStore
from shmq.shm.liveness import own_mark
from shmq.testing import Broker
from tests.tools.health.situations import of, reported

CLIENT = """import shmq, sys, time
mq = shmq.connect(sys.argv[1])
print('ready', flush=True)
time.sleep(600)  # not a wait: it lives until it is killed
"""


def test_nothing_of_a_broker_is_mapped_writable_and_nothing_can_be_changed() -> None:
    with Broker() as broker, Observer(broker.url) as observer:
        observer.snapshot("deep")
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if f"shmq.{broker.name}." in line]
        assert len(mapped) == 3
        assert {line.split()[1] for line in mapped} == {"r--s"}
        store = observer.store
        assert store is not None
        for change in (lambda: store.offset_set(0, 1), lambda: store.use_client(0, 1), lambda: KeeperStore(store)):
            with pytest.raises(ReadOnlyStore):
                change()


def test_sysv_segments_are_seen_as_ipcs_sees_them() -> None:
    with Broker(segments="sysv", frame_max=2048) as broker, Observer(broker.url) as observer:
        snapshot = observer.snapshot("quick")
        assert snapshot.faults == () and snapshot.log is not None
        own = [segment for segment in snapshot.segments if segment.state == "own" and segment.part != "semaphores"]
        rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
        told = {f"sysv:{row[1]}": (int(row[3]), int(row[2], 8) & 0o777, int(row[7])) for row in rows}
        assert {segment.part for segment in own} == {"control", "units", "readers", "counters"}
        for segment in own:
            if segment.part == "counters":
                continue  # the daemon's own page is a POSIX segment always
            assert told[segment.name] == (segment.size_bytes, segment.mode, segment.uid)


def test_slots_and_members_of_processes_that_died_after_the_daemon_are_reported() -> None:
    with Broker() as broker:
        client = subprocess.Popen([sys.executable, "-P", "-c", CLIENT, broker.url], stdout=subprocess.PIPE)
        assert client.stdout is not None and client.stdout.readline()
        broker.kill_daemon()
        client.kill()
        client.communicate()
        _, report = reported(broker.url, of("process", Verdict.WARNING, str(client.pid), "which is dead"))
        assert report.snapshot.presence.counted == 0
        assert [entry.alive for entry in report.snapshot.clients if entry.pid == client.pid] == [False]


def test_a_process_is_looked_at_only_while_it_is_the_recorded_one() -> None:
    mark = own_mark()
    [seen] = collect_processes({"keeper": mark}, [])
    assert seen.alive and seen.rss_bytes
    [stranger] = collect_processes({"keeper": type(mark)(mark.pid, mark.start + 1)}, [])
    assert (stranger.alive, stranger.state, stranger.rss_bytes) == (False, "dead", None)
    twice = collect_processes({}, [(mark, "b"), (mark, "a"), (mark, "")], depth="quick")
    assert [process.client_ids for process in twice] == [("a", "b")]


def test_a_file_that_was_just_written_is_resident_and_one_that_was_dropped_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(1 << 20))
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        assert residency([path]) == (1 << 20, 1 << 20)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        resident, examined = residency([path])
    assert examined == 1 << 20 and resident < examined


@pytest.mark.parametrize("version", [1, 2])
def test_the_lowest_limit_above_a_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    base = tmp_path if version == 2 else tmp_path / "memory"
    files = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    none = "max" if version == 2 else str((1 << 63) - 4096)
    for group, limit, used in (("", none, 900), ("outer", "500", 300), ("outer/inner", none, 100)):
        directory = base / group
        directory.mkdir(parents=True, exist_ok=True)
        (directory / files[0]).write_text(f"{limit}\n")
        (directory / files[1]).write_text(f"{used}\n")
        (directory / "memory.stat").write_text("anon 1\ninactive_file 40\n")
    monkeypatch.setattr(limits, "_CGROUP_ROOT", tmp_path)
    assert limits._lowest(base, "/outer/inner", files) == (500, 300, 40)
    assert limits._lowest(base, "/", files) == (None, 900, 40)
    assert limits._lowest(base, "/absent", ("no.max", "no.current")) is None
