"""Every number of `shmq health --json` is what another source says; docs/reference/numbers.md has the table."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shmq.figures.observer import Observer
from shmq.shm.liveness import ProcessMark
from shmq.store.verify import verify_store
from shmq.testing import Broker
from tests.figures import sources
from tests.tools.shell import Inside, Shell, until

FRAME_UNITS = 204  # bindings/shmq.h
MARKS = {"disk_warn_percent": 97, "disk_force_percent": 98, "disk_refuse_percent": 99}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(**MARKS) as broker:
        yield broker


@pytest.fixture
def shell(broker: Broker, capsysbinary: pytest.CaptureFixture[bytes]) -> Shell:
    return Inside(broker.url, capsysbinary)


def health(shell: Shell) -> dict[str, Any]:
    """What `shmq health --deep --json` prints; its exit status is the one that it names."""
    result = shell.run("health", "--deep", "--json")
    document: dict[str, Any] = json.loads(result.out)
    assert result.status == document["exit"] == ["OK", "WARNING", "CRITICAL", "UNKNOWN"].index(document["verdict"])
    return document


@contextmanager
def standing_still(broker: Broker) -> Iterator[dict[str, ProcessMark]]:
    """Stop all of a broker: what /proc and its files say of it does not change meanwhile."""
    marks = broker.processes
    for mark in marks.values():
        os.kill(mark.pid, signal.SIGSTOP)
    try:
        until(lambda: sources.stopped(marks), "all to stand still")
        yield marks
    finally:
        for mark in marks.values():
            os.kill(mark.pid, signal.SIGCONT)


def written(broker: Broker) -> None:
    """Wait until everything is in the files, and the files' marks say so."""
    with Observer(broker.url) as observer:

        def is_written() -> bool:
            log = observer.snapshot("quick").log
            assert log is not None
            behind = (log.flush_behind_bytes, log.dispatch_behind_bytes, log.units_behind)
            return behind == (0, 0, 0) and sources.mark(broker.store) == (log.end, log.end)

        until(is_written, "everything to be written")


def test_processes_use_what_proc_and_ps_say(broker: Broker) -> None:
    with standing_still(broker) as marks, Observer(broker.url) as observer:
        for role, mark in marks.items():

            def shown(role: str = role) -> sources.Used:
                process = observer.snapshot("deep").process(role)
                assert process is not None and process.cpu_seconds is not None
                figures = {name: getattr(process, name) for name in sources.Used._fields[1:]}
                return sources.Used(round(process.cpu_seconds * sources.TICKS), **figures)

            sources.agreed(shown, lambda pid=mark.pid: sources.used(pid), f"the figures of the {role}")
            before = sources.elapsed(mark.pid)
            process = observer.snapshot().process(role)
            after = sources.elapsed(mark.pid)
            assert process is not None and process.age is not None
            assert before - sources.ELAPSED_SLACK <= process.age <= after + sources.ELAPSED_SLACK
            kib, threads = map(int, sources.said("ps", "-o", "rss=,nlwp=", "-p", str(mark.pid)).split())
            assert (process.rss_bytes, process.threads) == (kib << 10, threads)
            assert process.pid == mark.pid


def test_the_broker_is_who_its_segments_say(broker: Broker, shell: Shell) -> None:
    before = time.time()
    told = health(shell)
    assert before <= told["at"] <= time.time()
    instance = broker._instance()
    assert instance is not None
    control = Path(f"/dev/shm{instance.segments[0]}")
    status = control.stat()
    assert (told["broker"]["uid"], told["broker"]["mode"]) == (status.st_uid, status.st_mode & 0o7777)
    head = control.read_bytes()[:16]  # struct shmq_head: magic, abi
    assert told["broker"]["abi"] == int.from_bytes(head[8:12], "little")
    with broker.connect() as mq:
        mq.send("writable", b"1")  # so it takes appends
    assert told["broker"]["read_only"] == 0


def test_every_segment_is_shown_with_the_size_and_mode_that_stat_says(broker: Broker, shell: Shell) -> None:
    own = [segment for segment in health(shell)["segments"] if segment["broker"] == broker.name]
    files = {path.name: path.stat() for path in Path("/dev/shm").glob(f"shmq.{broker.name}.*")}
    assert {segment["name"] for segment in own if segment["path"]} == files.keys()
    for segment in own:
        if segment["path"]:
            status = files[segment["name"]]
            assert (segment["size_bytes"], segment["used_bytes"]) == (status.st_size, status.st_blocks * 512)
            assert (segment["uid"], segment["mode"]) == (status.st_uid, status.st_mode & 0o7777)
    semaphores = [path.stat() for path in Path("/dev/shm").glob(f"sem.shmq.{broker.name}.*")]
    [told] = [segment for segment in own if segment["part"] == "semaphores"]
    assert told["size_bytes"] == sum(status.st_size for status in semaphores)
    assert told["used_bytes"] == sum(status.st_blocks for status in semaphores) * 512
    assert (told["uid"], told["mode"]) == (semaphores[0].st_uid, semaphores[0].st_mode & 0o7777)


def test_room_is_what_df_and_the_control_group_say(broker: Broker) -> None:
    def disk_of(path: object) -> tuple[int, ...]:
        return tuple(map(int, sources.said("df", "-B1", "--output=size,used,avail", str(path)).split()[-3:]))

    with Observer(broker.url) as observer:

        def disk() -> tuple[int, ...]:
            seen = observer.snapshot("quick").disk
            assert seen is not None
            assert (seen.warn_percent, seen.force_percent, seen.refuse_percent) == tuple(MARKS.values())
            assert seen.used_percent == 100 * seen.used_bytes // seen.size_bytes
            return seen.size_bytes, seen.used_bytes, seen.free_bytes

        def shm() -> tuple[int, ...]:
            seen = observer.snapshot("quick").memory
            assert seen is not None
            return seen.shm_bytes, seen.shm_free_bytes

        def group() -> tuple[int | None, int | None]:
            seen = observer.snapshot("quick").memory
            assert seen is not None
            return seen.cgroup_limit_bytes, seen.cgroup_used_bytes

        sources.agreed(disk, lambda: disk_of(broker.store), "the disk to be as df says")
        sources.agreed(shm, lambda: disk_of("/dev/shm")[::2], "/dev/shm to be as df says")
        keeper = broker.processes["keeper"].pid
        sources.agreed(group, lambda: sources.limits_of(keeper), "the control group's figures")


@pytest.mark.slow
def test_what_is_behind_is_what_the_files_lack(broker: Broker, shell: Shell) -> None:
    with broker.connect() as mq:
        producer = mq.producer()
        for number in range(50):
            producer.send("behind", b"x" * number, key=str(number), queue_id=number % 4)
        written(broker)
        with standing_still(broker):
            at_rest, before = sources.units(broker.store), list(sources.records(broker.store))
            for number in range(30):
                producer.send("behind", b"y" * number, key=str(number), queue_id=number % 4)
            log = health(shell)["log"]
            _is_behind_the_files(broker.store, log, before)
            top = shell.json("top", "top", "--interval", "100ms")
            assert (top["log_end"], top["flush_behind_bytes"]) == (log["end"], log["flush_behind_bytes"])
            held = sources.units(broker.store)
            assert held == at_rest and log["units_behind"] == 30
            queues = {(record.topic, record.queue_id) for record in before}
            counted = {
                queue: count + (30 - queue[1] + 3) // 4 * (queue[0] == "behind") for queue, count in held.items()
            }
            assert log["frames_used"] == sum(-(-counted[queue] // FRAME_UNITS) for queue in queues)


def _is_behind_the_files(store: Path, log: dict[str, Any], before: list[sources.Record]) -> None:
    """The ends of the log against its files, its marks, and a walk through its records."""
    after = list(sources.records(store))
    added = sum(record.size for record in after[len(before) :])
    assert len(after) == len(before) + 30 and added > 0
    files = sorted((store / "commitlog").iterdir())
    assert log["begin"] == int(files[0].name) and log["end"] == after[-1].position + after[-1].size
    assert (log["appended"], log["appended_bytes"]) == (len(after), sum(record.size for record in after))
    assert (log["files"], log["file_bytes"]) == (len(files), files[0].stat().st_size)
    assert log["allocated_end"] == sum(path.stat().st_size for path in files)
    assert log["spare_files"] == sum(int(path.name) >= log["end"] for path in files)
    durable_end, dispatched = sources.mark(store)
    indexed = json.loads((store / "shmq.index").read_text())["indexed"]
    assert log["durable_end"] == durable_end and log["flush_behind_bytes"] == log["end"] - durable_end == added
    assert log["dispatch_behind_bytes"] == log["end"] - dispatched == added
    assert log["index_behind_bytes"] == log["end"] - indexed >= added
    offline = verify_store(store)
    assert (offline.fault_count, offline.complete) == (0, True)
    assert (offline.log_begin, offline.log_end, offline.durable_end) == (log["begin"], log["end"], log["durable_end"])


def test_the_page_cache_holds_what_fincore_says(broker: Broker) -> None:
    files = sorted(map(str, (broker.store / "commitlog").iterdir()))

    def cached() -> tuple[int, int]:
        rows = sources.said("fincore", "-b", "-n", "-r", "-o", "RES,SIZE", *files).splitlines()
        return sum(int(row.split()[0]) for row in rows), sum(int(row.split()[1]) for row in rows)

    with standing_still(broker), Observer(broker.url) as observer:

        def shown() -> tuple[int | None, int | None]:
            log = observer.snapshot("deep").log
            assert log is not None
            return log.resident_bytes, log.examined_bytes

        resident, examined = sources.agreed(shown, cached, "the residency that fincore says")
        assert 0 < resident <= examined


def test_clients_have_sent_and_received_what_they_did(broker: Broker, shell: Shell) -> None:
    with broker.connect() as mq, mq.pull_consumer("counted", group="counting", start="begin") as consumer:
        producer = mq.producer()
        for number in range(17):
            producer.send("counted", b"%d" % number)
        polled = time.monotonic()
        got = consumer.poll(11)
        told = health(shell)
        [client] = [client for client in told["clients"] if client["pid"] == os.getpid()]
        assert client["start"] == sources.used(os.getpid()).start
        assert (client["sent"], client["received"]) == (17, len(got))
        assert client["in_hand"] == 11
        assert client["slot"] == mq._live().wire.store.client_slot
        assert 0 <= client["idle"] <= time.monotonic() - polled
        assert told["presence"]["counted"] == told["presence"]["registered"] == len(broker.processes) + 1


@pytest.mark.slow
def test_lag_is_what_the_files_hold_and_the_group_has_not_consumed(broker: Broker, shell: Shell) -> None:
    with broker.connect() as mq, Observer(broker.url) as observer:
        began = time.time()
        for number in range(60):
            mq.send("waiting", b"%d" % number, tag=("red", "blue")[number % 2], queue_id=number % 3)
        ended = time.time()
        consumer = mq.subscribe("waiting", group="waiters", tags="red")
        for _, message in zip(range(12), consumer, strict=False):
            message.ack()

        def is_settled() -> bool:
            group = observer.snapshot().group("waiters")
            return group is not None and bool(group.members) and group.ready == 18

        until(is_settled, "the progress to be written down")
        written(broker)
        told = health(shell)
        [group] = [group for group in told["groups"] if group["name"] == "waiters"]
        _agree_with_the_files(broker.store, shell, group)
        assert (group["ready"], group["in_flight"], group["conflicts"], group["departed"]) == (18, 0, 0, [])
        assert group["differs"] is None and [member["pid"] for member in group["members"]] == [os.getpid()]
        looked = time.time()
        oldest = shell.json("topic-show", "topic", "show", "waiting")["oldest_age_seconds"]
        updated = shell.json("group-show", "group", "show", "waiters")["updated_age_seconds"]
        assert looked - ended - 0.1 <= oldest <= time.time() - began + 0.1
        assert 0 <= updated <= time.time() - ended + 0.1
        assert told["at"] - ended - 0.1 <= group["oldest"] <= time.time() - began + 0.1
        consumer.close()


def _agree_with_the_files(store: Path, shell: Shell, group: dict[str, Any]) -> None:
    """The group's lag, `group`, `offset`, `topic` and `top` against the units and records in the files."""
    name, topic = group["name"], "waiting"
    stored = {queue: count for (of, queue), count in sources.units(store).items() if of == topic}
    sizes = {queue: 0 for queue in stored}
    for record in sources.records(store):
        if record.topic == topic:
            sizes[record.queue_id] += record.size
    shown = shell.json("group-show", "group", "show", name)
    mine = {row["queue"]: row for row in shown["queues"] if row["topic"] == topic}
    rows = {queue: row for queue, row in mine.items() if row["offset_max"]}
    assert {queue: (row["offset_min"], row["offset_max"]) for queue, row in rows.items()} == {
        queue: (0, count) for queue, count in stored.items()
    }
    left = {queue: count - (rows[queue]["offset"] or 0) for queue, count in stored.items()}
    assert {queue: row["lag"] for queue, row in rows.items()} == left
    assert {row["reader"] for row in rows.values()} == {os.getpid()} == set(shown["readers"])
    [listed] = [row for row in shell.json("group-list", "group", "list")["groups"] if row["group"] == name]
    assert group["lag"] == shown["lag"] == listed["lag"] == sum(left.values())
    assert [member["pid"] for member in shown["members"]] == listed["readers"] == [os.getpid()]
    offsets = shell.json("offset-show", "offset", "show", name, topic)["queues"]
    without_age = [{key: row[key] for key in row if key != "updated_age_seconds"} for row in offsets]
    assert without_age == [{key: row[key] for key in row if key != "updated_age_seconds"} for row in mine.values()]
    _topic_agrees(shell, topic, stored, sizes, {"group": name, "lag": sum(left.values())})
    top = shell.json("top", "top", "--interval", "100ms")
    assert [row["lag"] for row in top["processes"] if row["pid"] == os.getpid()] == [group["lag"]]
    [row] = [row for row in top["groups"] if row["name"] == name]
    assert (row["lag"], row["ready"], row["members"]) == (group["lag"], group["ready"], 1)
    assert row["topics"] == len(shown["topics"]) and group["oldest"] <= row["oldest"]


def _topic_agrees(
    shell: Shell, topic: str, stored: dict[int, int], sizes: dict[int, int], group: dict[str, Any]
) -> None:
    """`topic show`, `topic list` and `top` against the messages and bytes of each queue."""
    document = shell.json("topic-show", "topic", "show", topic)
    queues = {row["queue"]: row for row in document["queue_list"]}
    told = {queue: (row["messages"], row["size_bytes"]) for queue, row in queues.items() if row["messages"]}
    assert told == {queue: (count, sizes[queue]) for queue, count in stored.items()}
    assert all(row["offset_max"] - row["offset_min"] == row["messages"] for row in queues.values())
    whole = (len(queues), sum(stored.values()), sum(sizes.values()))
    assert document["groups"] == [group]
    for rows, key in ((shell.json("topic-list", "topic", "list"), "topic"), (shell.json("top", "top"), "name")):
        [row] = [row for row in rows["topics"] if row[key] == topic]
        assert (row["queues"], row["messages"], row["size_bytes"]) == whole
    assert (document["queues"], document["messages"], document["size_bytes"]) == whole


def test_an_open_claim_is_the_callers_own(broker: Broker) -> None:
    with broker.connect() as mq, Observer(broker.url) as observer:
        mq.send("claimed", b"1")
        before = time.monotonic()
        with mq.producer().reserve("claimed", 100_000) as space:
            opened = time.monotonic()
            looked = time.monotonic()
            claim = observer.snapshot("quick").claim
            ended = time.monotonic()
            space.view[:5] = b"hello"
        assert claim is not None
        assert (claim.pid, claim.start, claim.alive) == (os.getpid(), sources.used(os.getpid()).start, True)
        assert looked - opened <= claim.age <= ended - before
        assert claim.size_bytes >= 100_000
        assert observer.snapshot("quick").claim is None


def test_a_stopped_keepers_last_sign_of_life_grows_as_old_as_time_passes(broker: Broker) -> None:
    with Observer(broker.url) as observer:
        began = time.monotonic()
        first = observer.snapshot("quick").broker.keeper_beat_age
        assert first is not None
        with standing_still(broker):
            still = time.monotonic()
            until(lambda: time.monotonic() - still > 0.05, "time to pass")
            looked = time.monotonic()
            age = observer.snapshot("quick").broker.keeper_beat_age
            ended = time.monotonic()
        assert age is not None and looked - still <= age <= ended - began + first


def test_recovery_is_shown_as_the_brokers_log_says_it(broker: Broker, shell: Shell) -> None:
    document = health(shell)
    recovery = document["recovery"]
    [line] = [line for line in broker.log.splitlines() if " recovery.done " in line]
    said = dict(word.split("=", 1) for word in line.split() if "=" in word)
    for name in ("records", "queues", "zeroed_bytes", "damages"):
        assert recovery[name] == int(said[name])
    begun, logged = (datetime.fromisoformat(each.split()[0]).timestamp() for each in (broker.log.splitlines()[0], line))
    assert begun - 0.1 <= document["at"] - recovery["age"] <= logged + 0.1, "it is over before it is reported"
    assert abs(recovery["seconds"] - float(said["seconds"])) <= 0.001
