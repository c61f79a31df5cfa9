"""The archive job in a real Spark: what is there, what comes, and a lost checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import OffsetOutOfRange, TopicNotFound, UsageError
from shmq.spark.jobs.archive import ArchiveSettings, plan_archive, run_archive
from shmq.spark.jobs.archived import archive_files
from tests.tools.json_schema import check


@pytest.fixture
def topic(request: pytest.FixtureRequest, mq: Any) -> str:
    name = f"archive-{abs(hash(request.node.name))}"
    mq.admin.create_topic(name, queues=2)
    return name


def send(mq: Any, topic: str, *numbers: int) -> None:
    for number in numbers:
        mq.send(topic, b"%d" % number, queue_id=number % 2, tag="t", properties={"n": str(number)})


def rows_of(path: Path) -> list[int]:
    """The numbers of all rows, as a reader of Delta tables finds them."""
    import deltalake

    rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    assert all(dict(row["properties"])["n"] == row["body"].decode() for row in rows)
    return sorted(int(row["body"]) for row in rows)


def test_every_message_is_archived_once_whatever_becomes_of_the_checkpoint(
    spark: Any, broker: Any, mq: Any, topic: str, tmp_path: Path
) -> None:
    import deltalake

    path = tmp_path / "archive"
    source = {"store": broker.url, "topic": topic, "maxOffsetsPerTrigger": "60"}
    settings = ArchiveSettings(str(path), source)
    send(mq, topic, *range(100))
    assert plan_archive(settings)["messages"] == 100
    report = run_archive(spark, settings)
    check("spark-archive", report)
    assert (report["messages"], report["batches"], report["gaps"]) == (100, 2, [])
    assert {row["behind"] for row in report["queues"]} == {0}
    send(mq, topic, *range(100, 110))
    shutil.rmtree(path / "_checkpoint")
    assert run_archive(spark, settings)["messages"] == 10
    # Killed between our commit and Spark's: the batch comes again.
    commits = sorted((path / "_checkpoint/commits").iterdir(), key=lambda each: each.name)
    for each in commits:
        each.unlink()
    send(mq, topic, *range(110, 120))
    assert run_archive(spark, settings)["messages"] == 10
    assert rows_of(path) == list(range(120))
    deltalake.DeltaTable(path).optimize.compact()
    assert rows_of(path) == list(range(120)) and len(archive_files(str(path))) <= 2  # dates
    send(mq, topic, *range(120, 130))
    assert run_archive(spark, settings)["messages"] == 10 and rows_of(path) == list(range(130))


def test_a_checkpoint_that_is_ahead_of_the_archive_is_refused(
    spark: Any, broker: Any, mq: Any, topic: str, tmp_path: Path
) -> None:
    path, copy = tmp_path / "archive", tmp_path / "copy"
    settings = ArchiveSettings(
        str(path), {"store": broker.url, "topic": topic}, checkpoint=str(tmp_path / "checkpoint")
    )
    send(mq, topic, *range(2))
    run_archive(spark, settings)
    shutil.copytree(path, copy)
    send(mq, topic, *range(2, 10))
    run_archive(spark, settings)
    shutil.rmtree(path)
    copy.rename(path)  # as one that was restored from a backup
    send(mq, topic, *range(10, 20))
    with pytest.raises(OffsetOutOfRange, match="ends at offset 1, the batch begins at 5"):
        run_archive(spark, settings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compression": "rar"}, "compression rar"),
        ({"partition_by": ("day",)}, "partition day"),
        ({"columns": ("bodi",)}, "column bodi"),
        ({"columns": ("topic",)}, "no column is left"),
        ({"path": "s3://bucket/x"}, "not on a file system"),
        ({"source": {"topic": "x", "topik": "y"}}, "did you mean topic"),
    ],
)
def test_what_cannot_be_is_said_before_spark_starts(
    broker: Any, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    given = {"path": str(tmp_path / "a"), "source": {"store": broker.url, "topic": "x"}, **changes}
    with pytest.raises((UsageError, TopicNotFound), match=words):
        plan_archive(ArchiveSettings(**given))


@pytest.mark.peer
def test_the_command_tells_what_it_would_do(broker: Any, mq: Any, topic: str, tmp_path: Path) -> None:
    import subprocess
    import sys

    send(mq, topic, *range(7))
    command = [sys.executable, "-m", "shmq.spark.jobs.archive", "--url", broker.url, "--topic", topic, "--json"]
    command += ["--to", str(tmp_path / "a"), "--dry-run", "--report", str(tmp_path / "report.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    check("spark-archive-plan", json.loads(result.stdout))
    assert json.loads(result.stdout)["messages"] == 7
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(result.stdout)
    assert not list(tmp_path.rglob("*.parquet"))
