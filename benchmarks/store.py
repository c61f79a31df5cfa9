"""The command `python -m benchmarks.store`: what starts, rebuilds and proofs of a store take.

A real broker in processes of its own; its store is under $TMPDIR. A start counts from the command until clients can
attach. Bodies have 1 KiB.

    recovery       1 GiB of log; 64 MiB behind the last mark when the host crashed and kept its page cache
    clean_start    10 GiB of log, stopped in order
    topics         10,000 topics with a message each: stop in order, start, and start after a crash
    rebuild        1 GiB of log with bodies of 256 bytes; consumequeue/ and its checksums are removed
    verify         `shmq store verify` of 2 GiB, the page cache without them; beside it the same files, read one after
                   the other; in turns, the faster of two counts. verify_keys: every message has a key, so the index is
                   proven too
    crc            CRC-32 of 1 KiB and of 1 MiB, in cache; beside it zlib's
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.command import run
from benchmarks.workload import Figure, Workload
from benchmarks.workloads import stores
from benchmarks.workloads.stores import MIB
from shmq.shm.core import crc32

RECOVERY_SECONDS = 1.0
START_SECONDS = 2.0
TOPICS_SECONDS = 5.0
REBUILD_MB = 500.0
VERIFY_FACTOR = 0.8
TOPICS = 10_000
SMALL_BYTES = 256
CRC_BYTES = 1 << 30


def recovery(effort: float) -> dict[str, float]:
    """Seconds of a start after a crash, and of the recovery in it."""
    with stores.filled_broker(int(960 * MIB * effort), flush_interval_ms=60_000) as broker:
        stores.stop(broker)
        broker.restart()
        stores.fill(broker, int(62 * MIB * effort))
        stores.crash(broker)
        begin = time.perf_counter()
        broker.start()
        started = time.perf_counter() - begin
        seconds, records = stores.recovery_of(broker)
        assert records, "nothing was left to be recovered"
        return {"start_s": started, "recovery_s": seconds}


def clean_start(effort: float) -> dict[str, float]:
    """Seconds of a start after a stop in order, and of that stop."""
    with stores.filled_broker(int(10 * 1024 * MIB * effort)) as broker:
        stopped = stores.stop(broker)
        started = stores.start(broker)
        return {"start_s": started, "stop_s": stopped, "recovery_s": stores.recovery_of(broker)[0]}


def topics(effort: float) -> dict[str, float]:
    """Seconds of stops and starts with many topics."""
    with stores.broker_of_topics(int(TOPICS * effort)) as broker:
        first = stores.stop(broker)
        started = stores.start(broker)
        stopped = stores.stop(broker)
        broker.restart()
        stores.crash(broker)
        begin = time.perf_counter()
        broker.start()
        crashed = time.perf_counter() - begin
    return {"start_s": started, "first_stop_s": first, "stop_s": stopped, "crashed_s": crashed}


def rebuild(effort: float) -> dict[str, float]:
    """MB of log a second that a recovery goes through which builds every unit."""
    with stores.filled_broker(int(1024 * MIB * effort), body_bytes=SMALL_BYTES) as broker:
        stores.stop(broker)
        stores.remove_units(broker.store)
        broker.restart()
        seconds, records = stores.recovery_of(broker)
        end = stores.log_end(broker.store)
        assert records * SMALL_BYTES > end // 2, "the units were not built from the whole log"
        return {"mb_s": end / 1e6 / seconds}


def _verify(keyed: bool) -> Callable[[float], dict[str, float]]:
    def measure(effort: float) -> dict[str, float]:
        """MB a second of a proof, of a plain read, and what the one is to the other."""
        with stores.filled_broker(int(2048 * MIB * effort), keyed=keyed) as broker:
            stores.stop(broker)
            # In turns, and the faster of each counts: a layer below may cache what it has read.
            reads, proofs = [], []
            for _ in range(2):
                count, seconds = stores.read_plainly(broker.store)
                reads.append(seconds)
                proofs.append(_proof_seconds(broker.store))
        plain, proven = min(reads), min(proofs)
        return {"mb_s": count / 1e6 / proven, "plain_mb_s": count / 1e6 / plain, "factor": plain / proven}

    return measure


def _proof_seconds(root: Path) -> float:
    """Of the whole process, the page cache without the files."""
    stores.make_cold(root)
    command = [sys.executable, "-P", "-m", "shmq", "store", "verify", str(root)]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=root.parent)
    return time.perf_counter() - begin


def crc(effort: float) -> dict[str, float]:
    """GB a second."""
    found = {}
    for name, size in (("1k", 1 << 10), ("1m", 1 << 20)):
        data, times = os.urandom(size), max(1, int(CRC_BYTES * effort) // size)
        for whose, function in (("", crc32), ("zlib_", zlib.crc32)):
            begin = time.perf_counter()
            for _ in range(times):
                function(data)
            found[f"{whose}{name}"] = size * times / 1e9 / (time.perf_counter() - begin)
    return found


def workloads() -> list[Workload]:
    """Return what is measured here."""
    return [
        Workload(
            "recovery",
            recovery,
            [
                Figure("recovery", "recovery_s", "s", limits={"limit": RECOVERY_SECONDS}),
                Figure("recovery_start", "start_s", "s"),
            ],
        ),
        Workload(
            "clean_start",
            clean_start,
            [
                Figure("clean_start", "start_s", "s", limits={"limit": START_SECONDS}),
                Figure("clean_stop", "stop_s", "s"),
            ],
        ),
        Workload(
            "topics",
            topics,
            [
                Figure("topics_start", "start_s", "s", limits={"limit": TOPICS_SECONDS}),
                Figure("topics_start_crashed", "crashed_s", "s", limits={"limit": TOPICS_SECONDS}),
                Figure("topics_first_stop", "first_stop_s", "s"),
                Figure("topics_stop", "stop_s", "s"),
            ],
        ),
        Workload("rebuild", rebuild, [Figure("rebuild", "mb_s", "MB/s", is_rate=True, limits={"limit": REBUILD_MB})]),
        *(
            Workload(
                name,
                _verify(keyed),
                [
                    Figure(name, "factor", "of a plain read", is_rate=True, limits={"limit": VERIFY_FACTOR}),
                    Figure(f"{name}_rate", "mb_s", "MB/s", is_rate=True),
                    Figure(f"{name}_plain_read", "plain_mb_s", "MB/s", is_rate=True),
                ],
            )
            for name, keyed in (("verify", False), ("verify_keys", True))
        ),
        Workload(
            "crc",
            crc,
            [
                Figure("crc_1k", "1k", "GB/s", is_rate=True),
                Figure("crc_1k_zlib", "zlib_1k", "GB/s", is_rate=True),
                Figure("crc_1m", "1m", "GB/s", is_rate=True),
                Figure("crc_1m_zlib", "zlib_1m", "GB/s", is_rate=True),
            ],
        ),
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    return run(
        "python -m benchmarks.store", "what starts, rebuilds and proofs of a store take", workloads(), given,
        quick_effort=0.1,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
