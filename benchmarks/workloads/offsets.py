"""The workload of consumer offsets: how long the keeper takes to write down the progress of many groups.

The store is a real one with the tables of a broker; what is timed is what the keeper does every five seconds: reading
the offsets out of shared memory, and replacing the file, with the disk's word that it is there. Every group has moved
on every queue since the time before. Beside it stands the class by which a stock broker does this, in a JVM that is
warm (PersistedOffsets.java); it does not wait for the disk.

    offsets_persist    10,000 groups x 8 queues
"""

from __future__ import annotations

import secrets
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.brokers.contestants import name_of
from benchmarks.workload import Figure, PeerAbsent, Workload
from shmq.daemon.keeper.attachment import Attached, attach
from shmq.measurement.measure import median
from shmq.options.broker import Options
from shmq.shm.core import BrokerTables, StoreFigures
from shmq.shm.place import prepare_runtime
from shmq.shm.segment import unlink_segments
from tests.interop.peers.cache import PeerMissing, program
from tests.interop.peers.registry import DEFAULT_JDK, SERVERS, class_path, jars

GROUPS, QUEUES = 10_000, 8
TOPIC = "progress"
ROUNDS = 5
LIMIT_MS = 100.0
STOCK_VERSION = "4"
STOCK_ROUNDS, STOCK_WARM_UP = 25, 16
STOCK_TIMEOUT = 120.0
STOCK_PROGRAM = Path(__file__).with_name("PersistedOffsets.java")


def _options(folder: Path, groups: int) -> Options:
    return Options(
        broker_name=f"bench-{secrets.token_hex(4)}",
        runtime_dir=str(folder / "run"),
        store=str(folder / "store"),
        group_max=2 * groups,
        offset_max=2 * groups * QUEUES,
        file_bytes=1 << 20,
        populate_bytes=64 << 10,
    )


def _quiet(_event: str, **_values: object) -> None:
    """An event log that drops everything."""


def _move(attached: Attached, slots: list[int], offset: int) -> None:
    for slot in slots:
        attached.store.offset_set(slot, offset)


def _seconds(attached: Attached, groups: int) -> float:
    """Seconds of the median round."""
    store = attached.store
    topic = BrokerTables(store).topic_put(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
    queues = [store.queue_index(topic, queue_id) for queue_id in range(QUEUES)]
    indexes = [BrokerTables(store).group_put(f"group-{number}") for number in range(groups)]
    slots = [BrokerTables(store).offset_put(group, queue) for group in indexes for queue in queues]
    seconds: list[float] = []
    for number in range(ROUNDS):
        _move(attached, slots, number + 1)
        begin = time.perf_counter()
        attached.files.config.save_offsets(attached.tables.collect_offsets(store, StoreFigures(store)))
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[ROUNDS // 2]


def offsets_persist(effort: float) -> dict[str, float]:
    """Milliseconds until the progress of all groups is on disk."""
    groups = max(100, int(GROUPS * effort))
    with tempfile.TemporaryDirectory(prefix="shmq-bench-") as folder:
        options = _options(Path(folder), groups)
        prepare_runtime(options.place, mode=0o700, gid=-1)
        attached = attach(options, _quiet)  # type: ignore[arg-type]
        try:
            return {"ms": _seconds(attached, groups) * 1000 * GROUPS / groups}
        finally:
            unlink_segments(attached.instance)


def stock_offsets_persist(effort: float) -> dict[str, float]:
    """Milliseconds a stock broker's class takes for the same."""
    groups = max(100, int(GROUPS * effort))
    try:
        java, libraries = program("java", DEFAULT_JDK), class_path(jars(SERVERS[STOCK_VERSION]))
    except PeerMissing as reason:
        raise PeerAbsent(str(reason)) from reason
    with tempfile.TemporaryDirectory(prefix="shmq-bench-") as folder:
        words = [Path(folder) / "consumerOffset.json", groups, QUEUES, STOCK_ROUNDS]
        command = [java, f"-Duser.home={folder}", "-cp", libraries, STOCK_PROGRAM, *words]
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=STOCK_TIMEOUT, check=False
        )
        if done.returncode != 0 or not words[0].exists():
            raise RuntimeError(f"the stock broker's class wrote no offsets: {done.stderr or done.stdout}")
    rounds = [float(line) for line in done.stdout.splitlines()[-STOCK_ROUNDS:]]
    return {"ms": median(rounds[STOCK_WARM_UP:]) * GROUPS / groups}


def workloads() -> list[Workload]:
    """Return what is measured here."""
    figure = Figure("offsets_10k_groups_x_8", "ms", "ms", limits={"limit": LIMIT_MS})
    peers = {name_of(STOCK_VERSION): stock_offsets_persist}
    return [Workload("offsets_persist", offsets_persist, [figure], peers)]
