"""The archive job while its processes and the broker's are killed: what is archived is what the log holds, each once.

SHMQ_CRASH_LONG=1 kills for minutes, SHMQ_SINK_KILLS=n so often, SHMQ_TEST_SEED=n repeats a run's choices.
"""

from __future__ import annotations

import os
import random
import signal
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet
import pytest

from tests.seed import SEED
from tests.spark.jobs.killing import LONG, SMALL, WAIT_SECONDS, Job, Producing, eventually

KILLS = int(os.environ.get("SHMQ_SINK_KILLS", "40" if LONG else "3"))
VICTIMS = ("worker", "broker", "driver", "jvm") if LONG else ("worker", "broker", "driver")
STAGE = 600  # messages for one kill: three batches
QUEUES = 3
TOPIC = "killed"


class Archive:
    """What a job has put in so far, by what a reader sees."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def files(self) -> list[Path]:
        """The files that are in."""
        if not deltalake.DeltaTable.is_deltatable(str(self.path)):
            return []
        return sorted(Path(uri.removeprefix("file://")) for uri in deltalake.DeltaTable(self.path).file_uris())

    def rows(self) -> int:
        """How many messages are in."""
        return sum(pyarrow.parquet.ParquetFile(file).metadata.num_rows for file in self.files())


@pytest.fixture
def kill_broker() -> Iterator[Any]:
    """A broker of its own, because it is killed."""
    from shmq.testing import Broker

    with Broker(file_bytes=1 << 20) as running:
        yield running


@pytest.mark.timeout(0 if LONG else 420)
def test_whatever_is_killed_the_archive_holds_each_message_of_the_log_once(kill_broker: Any, tmp_path: Path) -> None:
    choose = random.Random(SEED)
    print(f"{KILLS} kills, SHMQ_TEST_SEED={SEED}")
    archive = Archive(tmp_path / "archive")
    with kill_broker.connect() as mq:
        mq.admin.create_topic(TOPIC, queues=QUEUES)
        producing = Producing(mq, TOPIC, QUEUES, STAGE)
        arguments = ("--topic", TOPIC, "--to", str(archive.path), "--every", "50ms")
        limit = ("--option", "maxOffsetsPerTrigger=200")
        job = Job("archive", kill_broker.url, *arguments, *limit, *SMALL, log=tmp_path / "job.log")
        try:
            for number in range(KILLS):
                before, producing.allowed = archive.rows(), producing.allowed + STAGE
                eventually(lambda: job.revive() or archive.rows() > before, job.text)  # noqa: B023
                time.sleep(choose.uniform(0, 0.3))  # not a wait: the moment of the kill
                victim = VICTIMS[number % len(VICTIMS)]
                if victim == "broker":
                    kill_broker.kill_daemon()
                    kill_broker.restart()
                else:
                    job.kill(victim, choose)
            producing.stop()
            stored = {queue.queue_id: queue.offset_max for queue in mq.admin.topics[TOPIC].queues}
            eventually(lambda: job.revive() or archive.rows() >= sum(stored.values()), job.text)
            job.process.send_signal(signal.SIGTERM)
            assert job.process.wait(WAIT_SECONDS) == 0, job.text()
        finally:
            producing.stop()
            job.end()
    print(f"{sum(stored.values())} messages, {len(producing.ledger)} acknowledged, {len(archive.files())} files")
    archive_is_the_log(archive, stored, producing.ledger)


def archive_is_the_log(archive: Archive, stored: dict[int, int], ledger: dict[tuple[int, int], int]) -> None:
    """Every stored offset once, with the body that was acknowledged; by directory too, after a VACUUM."""
    seen: Counter[tuple[int, int]] = Counter()
    crc: dict[tuple[int, int], int] = {}
    for file in archive.files():
        table = pyarrow.parquet.ParquetFile(file).read(columns=["queue_id", "queue_offset", "body"])
        for row in table.to_pylist():
            place = (row["queue_id"], row["queue_offset"])
            seen[place] += 1
            crc[place] = zlib.crc32(row["body"])
    assert [place for place, count in seen.items() if count > 1] == []
    assert set(seen) == {(queue, offset) for queue, end in stored.items() for offset in range(end)}
    assert {place: crc[place] for place in ledger} == ledger
    deltalake.DeltaTable(archive.path).vacuum(0, enforce_retention_duration=False, full=True, dry_run=False)
    assert archive.files() == sorted((archive.path / f"topic={TOPIC}").rglob("*.parquet"))
