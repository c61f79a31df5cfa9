"""Every trouble a broker can be in, made for real, is reported with its cause, its cure and the number."""

import gc
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.errors import BrokerBusy
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict
from shmq.shm.core import ABI, StoreFigures
from shmq.shm.instance import read_instance
from shmq.shm.leftovers import find_leftovers
from shmq.shm.segment import open_store
from shmq.testing import Broker
from shmq.tools.doctor.case import open_case
from shmq.tools.doctor.memory_left import check_leftovers
from shmq.version import __version__
from tests.tools.health.situations import all_well, looked, of, reported
from tests.tools.shell import until

CRITICAL, WARNING = Verdict.CRITICAL, Verdict.WARNING

MEMBER = """
import sys, time, shmq
mq = shmq.connect(sys.argv[1])
consumer = mq.subscribe(sys.argv[2], group=sys.argv[3])
if sys.argv[4] == "reads":
    print("ready", flush=True)
    for message in consumer:
        message.ack()
else:  # joins and takes one message, which shows that it owns its queues, and then nothing more
    first = next(iter(consumer))
    first.ack()
    print("ready", flush=True)
    time.sleep(600)  # not a wait: it lives until it is killed
"""

APPENDER = """
import sys
from shmq.shm.core import CoreError, Producer
from shmq.shm.presence import attach_presence
from shmq.shm.segment import Instance, open_store
store = open_store(Instance.from_json(sys.argv[1]), writable=True)
producer = Producer(store, resolve=store.topic_find)
bodies = [bytes(50)] * 512
said = False
while True:
    try:
        producer.send_batch("held", bodies, queue_id=0)
        said = said or print("appending", flush=True) is None
    except CoreError:
        pass
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # The keeper would end a stopped holder of the lock after two seconds.
    with Broker(lease_ms=600_000, file_bytes=64 << 20) as broker:
        yield broker


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-P", "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.parametrize("role", ["supervisor", "keeper", "bridge"])
def test_a_stopped_daemon(broker: Broker, role: str) -> None:
    pid = broker.processes[role].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        finding, report = reported(broker.url, of("daemon", CRITICAL, role, str(pid), "stopped"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert finding.do == f"kill -CONT {pid}"
    assert report.verdict is CRITICAL
    all_well(broker.url)


def test_a_stopped_holder_of_the_append_lock(broker: Broker) -> None:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    with broker.connect() as mq:
        mq.producer().send("held", b"1")
    store = open_store(instance, writable=False)
    process = start(APPENDER, instance.to_json())

    def met_inside() -> bool:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if StoreFigures(store).stats()["lock_tid"] == process.pid:
            return True
        os.kill(process.pid, signal.SIGCONT)
        return False

    try:
        until(met_inside, "the appender to be met inside the lock")
        deaths = StoreFigures(store).stats()["deaths"]
        finding, report = reported(broker.url, of("lock", CRITICAL, str(process.pid), "stopped"))
        lock = report.snapshot.lock
        assert lock is not None and (lock.tid, lock.pid) == (process.pid, process.pid)  # its first thread appends
        assert lock.start == int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
        assert f"kill -CONT {process.pid}" in finding.do
        assert finding.measures["lock_held"].value > 0
        with broker.connect() as mq, pytest.raises(BrokerBusy):
            mq.producer(timeout=0.05).send("held", b"gives up")
        assert StoreFigures(store).stats()["busy"] > report.snapshot.log.busy
    finally:
        end(process)
        store.close()
    with broker.connect() as mq:
        mq.producer().send("held", b"goes on")
    log = all_well(broker.url).snapshot.log
    assert log is not None and log.deaths == deaths + 1


def test_a_killed_consumer(broker: Broker) -> None:
    with broker.connect() as mq:
        mq.producer().send("orders", b"first")
        process = start(MEMBER, broker.url, "orders", "killed", "reads")
        until(lambda: mq.admin.groups["killed"].lag.total == 0, "the first message to be consumed")
        killed = time.monotonic()
        process.kill()
        mq.producer().send("orders", b"second")
        finding, report = reported(
            broker.url, of("group", WARNING, f"pid {process.pid}", "without leaving", "no member is left")
        )
        assert "1 messages wait" in finding.what and "start the consumer again" in finding.do
        [gone] = report.snapshot.group("killed").departed
        assert gone.pid == process.pid and 0 <= gone.age <= time.monotonic() - killed
        process.communicate()
        mq.admin.groups["killed"].delete()
    all_well(broker.url)


def test_consumers_whose_connection_was_closed_have_left(broker: Broker) -> None:
    with broker.connect() as mq:
        mq.producer().send("left", b"first")
        next(iter(mq.subscribe("left", group="leavers"))).ack()
        mq.simple_consumer("left", group="poppers").receive(1, wait=10)
    groups = "leavers", "poppers"
    with broker.connect() as mq:
        with mq.subscribe("left", group="later"):
            until(lambda: looked(broker.url).group("later").members, "a roster that was written since")
        seen = looked(broker.url)
        assert [seen.group(name).departed for name in groups] == [(), ()]
        for name in (*groups, "later"):
            mq.admin.groups[name].delete()


def test_a_consumer_that_is_attached_and_does_not_read(broker: Broker) -> None:
    with broker.connect() as mq:
        producer = mq.producer()
        producer.send("idle", b"first")
        process = start(MEMBER, broker.url, "idle", "sleepers", "sleeps")
        try:
            producer.send("idle", b"second")
            finding, _ = reported(broker.url, of("group", WARNING, f"pid {process.pid}", "has not read"))
            assert "1 messages wait" in finding.what and f"py-spy dump --pid {process.pid}" in finding.do
            store = mq._live().wire.store
            [beat_ns] = [entry[7] for entry in StoreFigures(store).clients() if entry[2] == process.pid]
            assert finding.measures["silent"].value <= (time.monotonic_ns() - beat_ns) / 1e9
        finally:
            end(process)
        until(lambda: not mq.admin.groups["sleepers"].members, "the member to be gone")
        mq.admin.groups["sleepers"].delete()
    all_well(broker.url)


def test_conflicting_subscriptions_in_a_group(broker: Broker) -> None:
    with broker.connect() as first, broker.connect() as second:
        one = first.subscribe("fruits", group="differ", tags="apple")
        began = time.monotonic()
        two = second.subscribe("fruits", group="differ", tags="apple || pear")  # a rolling update is under way
        finding, report = reported(broker.url, of("group", WARNING, "differently", "apple || pear"))
        group = report.snapshot.group("differ")
        assert group.conflicts == 1 and 0 <= group.differs <= time.monotonic() - began
        assert first.client_id in finding.what and second.client_id in finding.what
        assert "same subscription" in finding.do and finding.subject == "differ"
        two.close()
        one.close()
    all_well(broker.url)


@pytest.mark.parametrize("mode", [0o666, 0o640])
def test_a_segment_with_the_wrong_mode(broker: Broker, mode: int) -> None:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    path = Path(f"/dev/shm{instance.segments[0]}")
    path.chmod(mode)
    try:
        finding, _ = reported(broker.url, of("segments", CRITICAL, str(path), f"{mode:04o}", f"{instance.mode:04o}"))
        assert f"chmod {instance.mode:04o} {path}" in finding.do
    finally:
        path.chmod(instance.mode)
    all_well(broker.url)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_segment_with_the_wrong_owner(broker: Broker) -> None:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    path = Path(f"/dev/shm{instance.segments[2]}")
    os.chown(path, 65534, -1)
    try:
        finding, _ = reported(broker.url, of("segments", CRITICAL, str(path), "uid 65534"))
        assert f"chown {instance.uid} {path}" in finding.do
    finally:
        os.chown(path, instance.uid, -1)
    all_well(broker.url)


def test_a_library_of_another_version_than_the_segments(broker: Broker, tmp_path: Path) -> None:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    with open(f"/dev/shm{instance.segments[0]}", "r+b") as file, mmap.mmap(file.fileno(), 4096) as head:
        assert int.from_bytes(head[8:12], sys.byteorder) == ABI  # struct shmq_head: magic, abi
        head[8:12] = (ABI + 1).to_bytes(4, sys.byteorder)
        try:
            finding, _ = reported(broker.url, of("versions", CRITICAL))
            assert f"pip install shmq=={__version__}" in finding.do
        finally:
            head[8:12] = ABI.to_bytes(4, sys.byteorder)
    all_well(broker.url)
    # A broker of another version says so in what it leaves, before anything is mapped.
    place = tmp_path / "other"
    place.mkdir()
    (place / "instance.json").write_text(json.dumps(instance.to_object() | {"abi": ABI + 1, "version": "9.9.9"}))
    finding, _ = reported(f"shmq://{place}", of("versions", CRITICAL, f"layout {ABI + 1}", f"knows {ABI}"))
    assert "pip install shmq==9.9.9" in finding.do


@pytest.mark.slow
def test_a_killed_daemon_its_stale_segments_and_a_flush_that_fails() -> None:
    """One broker for three ends: killed, given up, started again, and then its disk breaks."""
    with Broker() as broker:
        with broker.connect() as mq:
            mq.producer().send("t", b"1")
        marks = broker.processes
        broker.kill_daemon()
        finding, report = reported(broker.url, of("daemon", CRITICAL, f"pid {marks['supervisor'].pid}", "dead"))
        assert finding.do == f"shmq serve --name {broker.name} --store {broker.store}"
        assert {"keeper", "bridge"} <= {one.subject for one in report.findings if one.verdict is CRITICAL}

        hidden = broker.place.instance_path.rename(broker.directory / "instance.json")
        finding, report = reported(broker.url, of("segments", WARNING, f"{broker.name}."))
        assert finding.do.startswith("shmq serve") and report.verdict is CRITICAL
        segments = list(Path("/dev/shm").glob(f"shmq.{broker.name}.*"))
        semaphores = list(Path("/dev/shm").glob(f"sem.shmq.{broker.name}.*"))
        taken = sum(path.stat().st_blocks * 512 for path in (*segments, *semaphores))
        assert len(segments) == 4 and finding.measures["waiting_bytes"].value == taken
        _doctor_says_the_same_of(broker, "waiting", finding)
        gc.collect()  # the client above has had it mapped
        (broker.store / "commitlog").rename(broker.store / "hidden")
        finding, _ = reported(broker.url, of("segments", WARNING, f"{broker.name}.", "left of dead brokers"))
        assert finding.do == "shmq doctor --fix" and finding.measures["stale_bytes"].value == taken
        _doctor_says_the_same_of(broker, "dead", finding)
        (broker.store / "hidden").rename(broker.store / "commitlog")

        hidden.rename(broker.place.instance_path)
        broker.restart()
        all_well(broker.url)
        _break_the_disk(broker)


def _doctor_says_the_same_of(broker: Broker, state: str, finding: Finding) -> None:
    [leftover] = [entry for entry in find_leftovers(broker.place) if entry.broker_name == broker.name]
    assert leftover.state == state and f"{leftover.generation:016x}" in finding.what
    with open_case(broker.url) as case:
        told = [found for found in check_leftovers(case) if broker.name in str(found.figures.get("generations"))]
    assert [found.check for found in told] == [{"dead": "memory.stale"}.get(state, f"memory.{state}")]
    measure = {"dead": "stale_bytes"}.get(state, f"{state}_bytes")
    assert [found.figures["bytes"] for found in told] == [finding.measures[measure].value]


def _break_the_disk(broker: Broker) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace plays the broken disk and is not installed")
    keeper = broker.processes["keeper"].pid
    faults = ["-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"]
    with subprocess.Popen([strace, "-f", "-p", str(keeper), *faults], stderr=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stderr is not None
            line = tracer.stderr.readline()
            if "attached" not in line:
                pytest.skip(f"this process may not trace others: {line}")
            with broker.connect() as mq:
                mq.producer().send("t", b"not flushed")
                finding, _ = reported(broker.url, of("store", CRITICAL, "the disk refused to write"))
            assert "shmq stop; shmq serve" in finding.do
        finally:
            tracer.terminate()


NEARLY_FULL = """
import os, sys
from pathlib import Path
from shmq.testing import Broker
from shmq.figures.verdict import Verdict
from tests.tools.health.situations import of, reported

def fill(directory, percent):
    hog = Path(directory, "hog")
    hog.unlink(missing_ok=True)
    room = os.statvfs(directory)
    wanted = room.f_blocks * percent // 100 - (room.f_blocks - room.f_bfree) + 1
    with open(hog, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, wanted * room.f_frsize)

os.system("mount -t tmpfs -o size=64m tmpfs /dev/shm")
disk = sys.argv[1]  # also where the broker's directory is made
os.system(f"mount -t tmpfs -o size=128m tmpfs {disk}")
with Broker(disk_warn_percent=75, disk_force_percent=85, disk_refuse_percent=90, topic_max=64, queue_max=512,
            offset_max=1024, group_max=64, client_max=16) as broker:
    for percent, verdict in ((85, Verdict.WARNING), (97, Verdict.CRITICAL)):
        fill("/dev/shm", percent)
        finding, report = reported(broker.url, of("memory", verdict, "/dev/shm"))
        room = os.statvfs("/dev/shm")
        used = round(100 * (room.f_blocks - room.f_bavail) / room.f_blocks, 1)
        is_counted = finding.measures["shm_used"].value == used
        print("shm", verdict.name, is_counted, report.verdict.name, "shmq doctor --fix" in finding.do)
    Path("/dev/shm/hog").unlink()
    for percent, verdict in ((76, Verdict.WARNING), (86, Verdict.WARNING), (93, Verdict.CRITICAL)):
        fill(disk, percent)
        finding, report = reported(broker.url, of("disk", verdict, f"{percent} %"))
        room = os.statvfs(disk)
        print("disk", percent, verdict.name, finding.measures["disk_used"].value == 100 * (room.f_blocks - room.f_bfree)
              // room.f_blocks, "make room" in finding.do)
    reported(broker.url, of("store", Verdict.CRITICAL, "the disk is full"))
    print("refused")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small /dev/shm and a small disk needs root")
def test_dev_shm_nearly_full_and_a_disk_above_its_marks() -> None:
    root = Path(__file__).parents[3]
    with tempfile.TemporaryDirectory() as directory:  # short: a socket's path has 107 bytes at most
        result = subprocess.run(
            ["unshare", "--mount", "--ipc", sys.executable, "-P", "-c", NEARLY_FULL, directory],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(root), "TMPDIR": directory},
        )
    assert result.stdout.splitlines() == [
        "shm WARNING True WARNING True",
        "shm CRITICAL True CRITICAL True",
        "disk 76 WARNING True True",
        "disk 86 WARNING True True",
        "disk 93 CRITICAL True True",
        "refused",
    ], result.stdout + result.stderr


def test_lag_is_judged_by_what_the_subscription_selects(broker: Broker) -> None:
    with broker.connect() as mq:
        producer = mq.producer()
        consumer = mq.subscribe("many", group="slow", tags="apple")
        until(lambda: mq.admin.groups["slow"].members, "the member")
        for _ in range(3):
            producer.send_batch("many", [b"x"] * 10, tag="pear", queue_id=0)
        producer.send_batch("many", [b"x"] * 5, tag="apple", queue_id=0)
        wanted = Thresholds(lag_warn=5, lag_crit=30, idle_warn=None)
        finding, _ = reported(broker.url, of("group", WARNING, "lag 35, ready 5"), thresholds=wanted)
        assert finding.measures["ready"].value == 5
        consumer.close()
        mq.admin.groups["slow"].delete()
