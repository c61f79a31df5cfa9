"""What a read meets at the edges: files that became shorter, gigabytes in one task, very many queues, no C core."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import CorruptionError
from shmq.spark.access.broker import Range
from shmq.spark.options import parse_options
from shmq.spark.plan.partitions import Sized, plan
from shmq.spark.scan.reader import RangesPartition, ShmqReader
from shmq.testing import Broker
from tests.spark.cluster import ROOT
from tests.spark.query import Query, fill

LARGE_BODY = 4_000_000
INT32_MAX = 2**31 - 1


def test_a_log_file_that_became_shorter_is_an_error_with_its_place_and_no_death() -> None:
    with Broker(file_bytes=1 << 20) as broker, broker.connect() as mq:
        mq.admin.create_topic("cut", queues=1)
        for _ in range(300):
            mq.send("cut", bytes(9000))
        reader = ShmqReader(parse_options({"store": broker.url, "topic": "cut"}), ("queue_offset", "body"))
        planned = reader.partitions()
        os.truncate(broker.store / "commitlog" / f"{0:020d}", 1 << 19)
        with pytest.raises(CorruptionError, match=r"queue 0, offset 0, log position 0: its log file .* was cut"):
            [batch for part in planned for batch in reader.read(part)]


@pytest.mark.slow
def test_one_task_reads_more_than_an_int32_counts() -> None:
    with Broker(small=False) as broker, broker.connect() as mq:
        mq.admin.create_topic("large", queues=1)
        body = os.urandom(LARGE_BODY)
        count = INT32_MAX // LARGE_BODY + 2
        for _ in range(count):
            mq.send("large", body)
        reader = ShmqReader(parse_options({"store": broker.url, "topic": "large"}), ("queue_offset", "body"))
        one = reader.partitions()[0]
        assert isinstance(one, RangesPartition)
        one.ranges = (replace(one.ranges[0], start=0, end=count),)
        rows, size = 0, 0
        for batch in reader.read(one):
            offsets = batch.column("queue_offset").to_pylist()
            assert offsets == list(range(rows, rows + len(offsets)))
            rows, size = rows + len(offsets), size + sum(len(each.as_buffer()) for each in batch.column("body"))
        assert rows == count and size == count * LARGE_BODY > INT32_MAX


@pytest.mark.slow
def test_very_many_tiny_queues_are_few_tasks_that_read_each_once() -> None:
    tiny = [Sized(Range("t", queue, 0, 0, 3), 900) for queue in range(100_000)]
    parts = plan(tiny, bytes_max=1 << 30, slots=2)
    assert 1 <= len(parts) <= 4
    assert sorted(each.queue_id for part in parts for each in part) == list(range(100_000))


def test_available_now_does_not_wait_for_a_least_number_of_messages(broker: Any, mq: Any) -> None:
    fill(mq, "few-now")
    query = Query(broker, "few-now", startingOffsets="earliest", minOffsetsPerTrigger=1000, maxTriggerDelay="1h")
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.step(query.begin())[1]) == 40


def test_without_the_c_core_other_sources_of_the_session_still_work() -> None:
    program = """
        import sys
        sys.modules["shmq.bindings._core"] = None  # as where no wheel fits this Python
        import pyspark_shmq
        print(pyspark_shmq.DefaultSource.name())
        try:
            pyspark_shmq.DefaultSource({"topic": "orders"}).schema()
        except ImportError as error:
            print(error)
    """
    said = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == "shmq" and "C core" in lines[1]


def test_out_of_a_zip_it_is_said_that_the_core_has_to_be_installed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "shmq.zip", "w") as archive:
        for folder, name in ((ROOT / "shmq", "shmq"), (ROOT / "bindings", "shmq/bindings")):
            for path in folder.rglob("*.py"):
                archive.write(path, f"{name}/{path.relative_to(folder)}")
    said = subprocess.run(
        [sys.executable, "-S", "-P", "-c", "import shmq.shm.core"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "shmq.zip")},
        cwd="/",
    )
    assert said.returncode == 1 and "--py-files" in said.stderr and "pip install shmq" in said.stderr, said.stderr
