"""Numbers that `shmq top` and `shmq doctor` show beside those of health are what another source says."""

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.figures.observer import Observer
from shmq.figures.snapshot import Snapshot
from shmq.shm.core import ABI
from shmq.testing import Broker
from shmq.tools.top.rates import picture_of
from tests.figures import sources
from tests.tools.shell import Shell, until

SENT, TAKEN = 40, 15


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        yield broker


def of_name(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    [row] = [row for row in rows if row["name"] == name]
    return row


def test_rates_are_what_was_sent_and_consumed_between_two_looks(broker: Broker) -> None:
    with broker.connect() as mq, Observer(broker.url) as observer:
        mq.send("rated", b"first")
        with mq.pull_consumer("rated", group="raters", start="begin") as consumer:
            assert len(consumer.poll(1, 60.0)) == 1
            consumer.commit()
            first = observer.snapshot()
            before = list(sources.records(broker.store))
            for number in range(SENT):
                mq.send("rated", b"x" * number)
            taken = 0
            while taken < TAKEN:
                taken += len(consumer.poll(TAKEN - taken, 60.0))
            consumer.commit()

            def moved() -> Snapshot | None:
                look = observer.snapshot()
                group = look.group("raters")
                return look if group is not None and group.lag == SENT - TAKEN else None

            second = until(moved, "the progress to be written down")
        document = picture_of(first, second).document()
    seconds = second.at - first.at
    stored = list(sources.records(broker.store))[len(before) :]
    assert (document["at"], document["at_ms"], document["seconds"], document["log_end"]) == (
        int(second.at),
        int(second.at * 1000),
        seconds,
        stored[-1].position + stored[-1].size,
    )
    assert document["in_rate"] * seconds == pytest.approx(SENT) and len(stored) == SENT
    assert document["in_bytes_rate"] * seconds == pytest.approx(sum(record.size for record in stored))
    assert document["out_rate"] * seconds == pytest.approx(TAKEN)
    topic, group = of_name(document["topics"], "rated"), of_name(document["groups"], "raters")
    assert (topic["in_rate"] * seconds, topic["out_rate"] * seconds) == pytest.approx((SENT, TAKEN))
    assert group["out_rate"] * seconds == pytest.approx(TAKEN) and group["lag"] == SENT - TAKEN
    [mine] = [row for row in document["processes"] if row["pid"] == os.getpid()]
    assert (mine["in_rate"] * seconds, mine["out_rate"] * seconds) == pytest.approx((SENT, TAKEN))


def test_processes_of_top_use_what_proc_says(broker: Broker) -> None:
    with Observer(broker.url) as observer:
        marks = broker.processes
        before = {role: sources.used(mark.pid).cpu_ticks for role, mark in marks.items()}
        first = observer.snapshot("deep")
        after = {role: sources.used(mark.pid).cpu_ticks for role, mark in marks.items()}
        for mark in marks.values():
            os.kill(mark.pid, signal.SIGSTOP)
        try:
            until(lambda: sources.stopped(marks), "all to stand still")
            document: dict[str, Any] = {}

            def shown() -> list[tuple[int, ...]]:
                document.update(picture_of(first, observer.snapshot("deep")).document())
                rows = {row["role"]: row for row in document["processes"]}
                return [tuple(rows[role][key] for key in ("pid", "rss_bytes", "uss_bytes")) for role in marks]

            def proc() -> list[tuple[int, ...]]:
                told = {mark.pid: sources.used(mark.pid) for mark in marks.values()}
                return [(pid, one.rss_bytes, one.uss_bytes) for pid, one in told.items()]

            began = sources.elapsed(marks["supervisor"].pid)
            sources.agreed(shown, proc, "memory of the processes")
            ended = sources.elapsed(marks["supervisor"].pid)
            for role, mark in marks.items():
                [row] = [row for row in document["processes"] if row["role"] == role]
                now = sources.used(mark.pid).cpu_ticks
                ticks = row["cpu_percent"] / 100 * document["seconds"] * sources.TICKS
                rounding = 0.001 * document["seconds"] * sources.TICKS
                assert now - after[role] - rounding <= ticks <= now - before[role] + rounding
            assert document["pid"] == marks["supervisor"].pid
            assert began - sources.ELAPSED_SLACK <= document["uptime"] <= ended + sources.ELAPSED_SLACK
        finally:
            for mark in marks.values():
                os.kill(mark.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def figures(broker: Broker) -> dict[str, dict[str, Any]]:
    """What doctor found: the figures of each check."""
    with broker.connect() as mq:
        for number in range(20):
            mq.send("examined", b"%d" % number, key=str(number))
    *_, last = sources.records(broker.store)
    until(lambda: sources.mark(broker.store)[0] == last.position + last.size, "the mark to say that all is on disk")
    document = Shell(broker.url).json("doctor", "doctor", "--deep")
    return {entry["check"]: entry["figures"] for entry in document["findings"]}


def test_doctor_knows_the_machine_as_the_system_does(broker: Broker, figures: dict[str, dict[str, Any]]) -> None:
    assert figures["machine.kernel"]["processors"] == int(sources.said("nproc"))
    assert figures["machine.kernel"]["kernel"] == os.uname().release
    size = int(sources.said("df", "-B1", "--output=size", "/dev/shm").split()[-1])
    assert figures["machine.shm"]["size_bytes"] == size >= figures["machine.shm"]["free_bytes"] > 0
    roles = figures["machine.limits"]["roles"]
    pids = {role: broker.processes[role].pid for role in roles}

    def used_files() -> dict[str, int]:
        document = Shell(broker.url).json("doctor", "doctor", "--deep")
        [told] = [entry["figures"]["roles"] for entry in document["findings"] if entry["check"] == "machine.limits"]
        return {role: limits["used_files"] for role, limits in told.items()}

    def open_files() -> dict[str, int]:
        return {role: len(os.listdir(f"/proc/{pid}/fd")) for role, pid in pids.items()}

    assert sources.agreed(used_files, open_files, "the files that are open")
    for role, limits in roles.items():
        pid = pids[role]
        for name, number in (
            ("Max open files", resource.RLIMIT_NOFILE),
            ("Max locked memory", resource.RLIMIT_MEMLOCK),
            ("Max file size", resource.RLIMIT_FSIZE),
            ("Max address space", resource.RLIMIT_AS),
        ):
            assert limits[name] == resource.prlimit(pid, number)[0]
    assert figures["machine.mappings"]["limit"] == int(sources.said("sysctl", "-n", "vm.max_map_count"))
    swapped = sum(
        int(line.split()[1]) << 10
        for mark in broker.processes.values()
        for line in Path(f"/proc/{mark.pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Swap:")
    )
    assert figures["machine.swap"]["swapped_bytes"] == swapped


def test_doctor_knows_the_broker_as_its_files_do(broker: Broker, figures: dict[str, dict[str, Any]]) -> None:
    instance = broker._instance()
    assert instance is not None
    control = Path(f"/dev/shm{instance.segments[0]}")
    status = control.stat()
    assert (figures["access.segments"]["uid"], figures["access.segments"]["mode"]) == (
        status.st_uid,
        status.st_mode & 0o7777,
    )
    abi = int.from_bytes(control.read_bytes()[8:12], "little")
    assert figures["installation.versions"]["abi"] == figures["installation.versions"]["library_abi"] == ABI == abi
    walked = list(sources.records(broker.store))
    content = figures["store.content"]
    assert (content["records"], content["record_bytes"]) == (len(walked), sum(record.size for record in walked))
    assert (content["log_begin"], content["log_end"]) == (0, walked[-1].position + walked[-1].size)
    assert content["durable_end"] == sources.mark(broker.store)[0] and content["faults"] == 0
    used, size = map(int, sources.said("df", "-B1", "--output=used,size", str(broker.store)).split()[-2:])
    assert abs(figures["store.room"]["used_percent"] - 100 * used / size) <= 1.0
    groups = Shell(broker.url).json("group-list", "group", "list")["groups"]
    assert figures["consumers.subscriptions"]["groups"] == len(groups)
