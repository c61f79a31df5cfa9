"""One snapshot shows what /proc, ipcs, /dev/shm and the file system say, and needs no daemon for it."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shmq.figures.observer import Observer
from shmq.figures.snapshot import Snapshot
from shmq.shm.instance import read_instance
from shmq.testing import Broker
from tests.deadline import eventually
from tests.tools.shell import Shell, until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def observer(broker: Broker) -> Iterator[Observer]:
    with Observer(broker.url) as observer:
        yield observer


def members_of(snapshot: Snapshot, group: str) -> list[str]:
    found = snapshot.group(group)
    return [member.client_id for member in found.members] if found else []


def ipcs(key: int) -> tuple[int, int]:
    """(processes attached, owner's uid) as util-linux' ipcs prints a semaphore set."""
    for line in Path("/proc/sysvipc/sem").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[0]) & 0xFFFFFFFF == key:
            text = subprocess.run(["ipcs", "-s", "-i", fields[1]], capture_output=True, text=True, check=True).stdout
            row = next(row.split() for row in text.splitlines() if row.split()[:1] == ["0"])
            return int(row[1]), int(fields[4])
    raise AssertionError(f"no semaphore {key:#x}")


def test_processes_are_those_of_proc_with_their_figures(broker: Broker, observer: Observer) -> None:
    with broker.connect():
        snapshot = observer.snapshot("deep")
        marks = {process.role: (process.pid, process.start) for process in snapshot.processes}
        assert {role: (mark.pid, mark.start) for role, mark in broker.processes.items()}.items() <= marks.items()
        assert marks["client"][0] == os.getpid()
        keeper = snapshot.process("keeper")
        assert keeper is not None and keeper.alive and keeper.state in ("sleeping", "running", "disk")
        proc = psutil.Process(keeper.pid)
        assert keeper.start == int(Path(f"/proc/{keeper.pid}/stat").read_text().rpartition(")")[2].split()[19])
        eventually(lambda: _counts(observer) == _counts_of_proc(proc))
        assert keeper.uss_bytes and keeper.pss_bytes and keeper.rss_bytes
        assert keeper.uss_bytes <= keeper.pss_bytes <= keeper.rss_bytes
        assert keeper.cpu_seconds is not None and keeper.cpu_seconds <= sum(proc.cpu_times()[:2])


def _counts(observer: Observer) -> tuple[int | None, ...]:
    """Of the keeper, which opens, maps and closes a file now and then."""
    keeper = observer.snapshot("deep").process("keeper")
    assert keeper is not None
    return keeper.mappings, keeper.threads, keeper.fds


def _counts_of_proc(process: psutil.Process) -> tuple[int, ...]:
    directory = Path(f"/proc/{process.pid}")
    mappings = len((directory / "maps").read_text().splitlines())
    return mappings, process.num_threads(), len(os.listdir(directory / "fd"))


def test_the_kernel_counts_as_many_attached_processes_as_are_registered(broker: Broker, observer: Observer) -> None:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    with broker.connect():
        presence = observer.snapshot("quick").presence
        assert presence.counted == presence.registered == ipcs(instance.presence_key)[0]


def test_segments_are_those_of_dev_shm(broker: Broker, observer: Observer) -> None:
    own = [segment for segment in observer.snapshot("quick").segments if segment.state == "own" and segment.path]
    assert {segment.part for segment in own} == {"control", "units", "readers", "counters"}
    for segment in own:
        status = os.stat(segment.path)
        assert (segment.size_bytes, segment.used_bytes) == (status.st_size, status.st_blocks * 512)
        assert (segment.uid, segment.mode) == (status.st_uid, status.st_mode & 0o7777)


def test_the_log_disk_and_memory_are_those_of_the_file_system(broker: Broker, observer: Observer) -> None:
    with broker.connect() as mq:
        mq.producer().send("observed", b"x" * 1000)
    snapshot = until(
        lambda: (look := observer.snapshot("deep")).log and look.log.flush_behind_bytes == 0 and look, "flush"
    )
    log, disk, memory = snapshot.log, snapshot.disk, snapshot.memory
    files = sorted((broker.store / "commitlog").iterdir())
    assert (log.files, log.spare_files) == (len(files), len(files) - 1)
    assert log.allocated_end == sum(path.stat().st_size for path in files)
    assert 0 < log.resident_bytes <= log.examined_bytes == log.allocated_end
    usage = psutil.disk_usage(str(broker.store))
    assert disk is not None and disk.size_bytes == os.statvfs(broker.store).f_blocks * os.statvfs(broker.store).f_frsize
    assert abs(disk.used_bytes - usage.used) < 64 << 20  # others write to this disk too
    assert memory is not None and memory.shm_bytes == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize


def test_lag_and_ready_differ_by_what_the_subscription_leaves_out(broker: Broker, observer: Observer) -> None:
    with broker.connect() as mq:
        producer = mq.producer()
        consumer = mq.subscribe("fruits", group="eaters", tags="apple")
        until(lambda: members_of(observer.snapshot(), "eaters"), "the member to be in the snapshot")
        for tag in ("apple", "pear", "apple", "plum"):
            producer.send("fruits", b"1", tag=tag, queue_id=0)
        group = observer.snapshot().group("eaters")
        assert group is not None
        assert (group.lag, group.ready, group.ready_exact) == (4, 2, True)
        assert group.members[0].subscription == {"fruits": "apple"}
        assert group.oldest is not None and group.oldest < 60
        consumer.close()
    shell = Shell(broker.url)
    document = shell.json("group-show", "group", "show", "eaters")
    assert document["lag"] == sum(queue.lag for queue in group.queues)


def test_a_snapshot_needs_no_daemon(observer: Observer, broker: Broker) -> None:
    marks = broker.processes
    for mark in marks.values():
        os.kill(mark.pid, signal.SIGSTOP)
    try:
        snapshot = until(
            lambda: (
                (look := observer.snapshot()) and {look.process(role).state for role in marks} == {"stopped"} and look
            ),
            "all to have stopped",
        )
        assert snapshot.broker.served and snapshot.log is not None and snapshot.faults == ()
    finally:
        for mark in marks.values():
            os.kill(mark.pid, signal.SIGCONT)


def test_a_broker_that_left_nothing_is_a_fault_with_the_next_command(tmp_path: Path) -> None:
    with Observer(f"shmq://{tmp_path}/absent") as observer:
        snapshot = observer.snapshot()
    assert [(fault.what, fault.kind) for fault in snapshot.faults] == [("instance", "BrokerNotRunning")]
    assert snapshot.faults[0].hint == "shmq serve --name absent"
    assert snapshot.log is None and snapshot.processes == ()
