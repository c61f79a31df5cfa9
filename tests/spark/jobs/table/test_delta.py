"""An archive as a Delta table: a batch is in or it is not, wherever its writer was killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow
import pyarrow.parquet
import pytest

from shmq.errors import CorruptionError, StoreError, UsageError
from shmq.spark.jobs.archived import archive_files
from shmq.spark.jobs.table import delta as module
from shmq.spark.jobs.table.delta import DeltaArchive
from shmq.spark.jobs.table.entry import Entry, QueueKey
from shmq.spark.jobs.table.table import Commit, Gap

KEY = QueueKey("orders", "a", 0, 7)
COLUMNS = ("queue_offset",)
FILES = 2


def opened(root: Path) -> DeltaArchive:
    return DeltaArchive(root, COLUMNS, ("topic",))


def left(root: Path, start: int, end: int, *, token: str = "x", key: QueueKey = KEY) -> Entry:
    """The entry of a file that a task has left."""
    path = root / f"topic={quote(key.topic, safe='')}" / f"{start}-{end}-{token}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(
        pyarrow.table({"queue_offset": pyarrow.array(range(start, end), pyarrow.int64())}), path
    )
    size = path.stat().st_size
    name = str(path.relative_to(root))
    return Entry(*key, start, end, name, rows=end - start, file_bytes=size, partition={"topic": key.topic})


def batch(root: Path, number: int, token: str = "x") -> Commit:
    starts = [10 * (FILES * number + i) for i in range(FILES)]
    return Commit("query", number, tuple(left(root, start, start + 10, token=token) for start in starts))


def offsets(root: Path) -> list[int]:
    """What a reader of Delta tables finds."""
    found = deltalake.DeltaTable(root).to_pyarrow_table(columns=["queue_offset"])
    return sorted(found["queue_offset"].to_pylist())


def test_a_batch_that_is_in_is_read_and_known_by_the_next_job(tmp_path: Path) -> None:
    table = opened(tmp_path / "a")
    assert table.end_of(KEY) is None and not table.holds("query", 0)
    table.commit(batch(tmp_path / "a", 0))
    table = opened(tmp_path / "a")
    assert table.end_of(KEY) == 20 and table.holds("query", 0) and not table.holds("query", 1)
    before = archive_files(str(tmp_path / "a"))
    table.commit(batch(tmp_path / "a", 1))
    assert [Path(file).name for file in sorted(before)] == ["0-10-x.parquet", "10-20-x.parquet"]
    assert all(Path(file).exists() for file in before)  # a reader that has begun goes on
    assert offsets(tmp_path / "a") == list(range(40)) and len(archive_files(str(tmp_path / "a"))) == 4


def test_a_stretch_without_a_message_and_a_gap_move_the_end(tmp_path: Path) -> None:
    gap = Gap(KEY, 0, 5)
    opened(tmp_path).commit(Commit("query", 0, (Entry(*KEY, 5, 9),), (gap,)))
    assert opened(tmp_path).end_of(KEY) == 9
    assert json.loads(deltalake.DeltaTable(tmp_path).history(1)[0]["shmq.gaps"]) == [
        {"key": list(KEY), "start": 0, "end": 5}
    ]
    with pytest.raises(UsageError, match="holds no message"):
        archive_files(str(tmp_path))


@pytest.mark.parametrize("topic", ["%RETRY%billing", "a|b", "2026"])
def test_any_topic_is_read_from_a_directory_of_any_name(tmp_path: Path, topic: str) -> None:
    root, key = tmp_path / "Ä 100% b", QueueKey(topic, "a", 0, 7)
    opened(root).commit(Commit("query", 0, (left(root, 0, 3, key=key),)))
    assert offsets(root) == [0, 1, 2]
    assert archive_files(str(root)) == [str(root / f"topic={quote(topic, safe='')}" / "0-3-x.parquet")]
    assert deltalake.DeltaTable(root).vacuum(0, enforce_retention_duration=False, full=True) == []


def test_what_delta_takes_for_an_escape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes %XX in a path"):
        opened(tmp_path / "a%20b")


# ---- kills -----------------------------------------------------------------------------------------------------------


def commit_and_die(root: Path, lines: int) -> None:
    """Commit batch 0, and batch 1 until so many lines of the module have run."""

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != module.__file__ or frame.f_code.co_name == "_sync":
            return None
        if event == "line":
            lines -= 1
            if lines < 0:
                os._exit(9)
        return trace

    opened(root).commit(batch(root, 0))
    table, commit = opened(root), batch(root, 1)
    sys.settrace(trace)
    table.commit(commit)
    os._exit(0)


def commit_and_die_at_each_line(folder: Path) -> None:
    """Fork for each line: in a process of its own, because delta-rs cannot be forked once it has worked."""
    left(folder.with_name("first"), 0, 1)  # pyarrow imports pandas for its first table: here, and in no child
    for lines in range(1000):
        child = os.fork()
        if child == 0:
            commit_and_die(folder / str(lines), lines)
        if os.waitpid(child, 0)[1] == 0:
            break


def test_a_commit_killed_at_any_line_is_in_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=commit_and_die_at_each_line, args=(tmp_path / "killed",)
    )
    process.start()
    process.join()
    found = []
    for root in sorted((tmp_path / "killed").iterdir(), key=lambda each: int(each.name)):
        held = opened(root).holds("query", 1)
        assert opened(root).end_of(KEY) == (40 if held else 20)
        assert offsets(root) == list(range(40 if held else 20)), root.name
        if not held:
            opened(root).commit(batch(root, 1, token="again"))  # as Spark repeats a batch
        assert offsets(root) == list(range(40)), root.name
        found.append(held)
    assert len(found) > 50 and found == sorted(found) and set(found) == {False, True}


def test_a_job_killed_before_its_first_commit_stops_no_other(tmp_path: Path) -> None:
    opened(tmp_path).create()
    left(tmp_path, 0, 10, token="dead")
    opened(tmp_path).commit(batch(tmp_path, 0))
    assert offsets(tmp_path) == list(range(20))


def test_what_killed_tasks_leave_is_read_by_none_and_goes_with_vacuum(tmp_path: Path) -> None:
    opened(tmp_path).commit(batch(tmp_path, 0))
    left(tmp_path, 500, 600, token="dead")
    (tmp_path / "topic=orders/.3f9a.parquet").touch()
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint/metadata").touch()
    assert offsets(tmp_path) == list(range(20)) and len(archive_files(str(tmp_path))) == FILES
    deltalake.DeltaTable(tmp_path).vacuum(0, enforce_retention_duration=False, full=True, dry_run=False)
    assert sorted(map(str, (tmp_path / "topic=orders").iterdir())) == sorted(archive_files(str(tmp_path)))
    assert (tmp_path / "_checkpoint/metadata").exists()


def test_an_empty_commit_file_as_a_power_cut_leaves_it_is_no_batch(tmp_path: Path) -> None:
    opened(tmp_path).commit(batch(tmp_path, 0))
    opened(tmp_path).commit(batch(tmp_path, 1))
    max((tmp_path / "_delta_log").glob("*.json")).write_bytes(b"")
    table = opened(tmp_path)
    assert table.end_of(KEY) == 20 and not table.holds("query", 1)
    table.commit(batch(tmp_path, 1, token="again"))
    assert offsets(tmp_path) == list(range(40))


def test_files_are_on_the_disk_before_the_commit_and_the_commit_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, log, root = opened(tmp_path / "a"), tmp_path / "a/_delta_log", tmp_path / "a"
    table.create()
    synced, sync = [], os.fsync

    def noted(descriptor: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path)
        synced.append((str(place), len(list(log.glob("*.json")))))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    table.commit(batch(root, 0))
    assert {("a", 1), ("a/topic=orders", 1)} <= set(synced)
    assert {("a/_delta_log", 2), (f"a/_delta_log/{1:020d}.json", 2)} <= set(synced)


# ---- others at the table ---------------------------------------------------------------------------------------------


def test_of_two_jobs_at_once_one_puts_a_message_in(tmp_path: Path) -> None:
    opened(tmp_path).commit(batch(tmp_path, 0))
    one, two = opened(tmp_path), opened(tmp_path)
    one.commit(batch(tmp_path, 1))
    with pytest.raises(StoreError, match="did not take the batch"):
        two.commit(Commit("another", 0, batch(tmp_path, 1, token="two").add))
    assert offsets(tmp_path) == list(range(40))


def test_of_two_jobs_that_make_the_table_one_does(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    one.create()
    with pytest.raises(StoreError, match="one archive job at a time"):
        two.create()


def test_neither_optimize_nor_vacuum_nor_a_shorter_log_changes_messages_or_ends(tmp_path: Path) -> None:
    job = opened(tmp_path)
    for number in range(3):
        job.commit(batch(tmp_path, number))
    table = deltalake.DeltaTable(tmp_path)
    assert table.optimize.compact()["numFilesRemoved"] == 3 * FILES
    assert offsets(tmp_path) == list(range(60)) and len(archive_files(str(tmp_path))) == 1
    job.commit(batch(tmp_path, 3))  # which has not looked since
    table = deltalake.DeltaTable(tmp_path)
    table.vacuum(0, enforce_retention_duration=False, full=True, dry_run=False)
    table.create_checkpoint()
    for each in sorted((tmp_path / "_delta_log").glob("*.json"))[:-1]:
        each.unlink()  # as a cleanup of the log does
    job = opened(tmp_path)
    assert job.end_of(KEY) == 80 and job.holds("query", 3)
    job.commit(batch(tmp_path, 4))
    assert offsets(tmp_path) == list(range(100))
    assert len(list((tmp_path / "topic=orders").iterdir())) == 1 + 2 * FILES


# ---- what is no archive ----------------------------------------------------------------------------------------------


def test_a_directory_with_other_things_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").touch()
    for path in (tmp_path, tmp_path / "precious.txt"):
        with pytest.raises(UsageError, match="neither empty nor a Delta table"):
            opened(path)
        with pytest.raises(UsageError, match="is no archive"):
            archive_files(str(path))
    with pytest.raises(StoreError, match="cannot be written: Not a directory"):
        opened(tmp_path / "precious.txt/below").create()


def test_an_archive_of_plain_files_is_refused_with_what_it_is_and_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "_manifests").mkdir()
    for each in (opened, lambda root: archive_files(str(root))):
        with pytest.raises(UsageError, match="an archive of plain Parquet files") as caught:
            each(tmp_path)
        assert f"spark.read.parquet('{tmp_path}')" in str(caught.value.hint)
        assert f"--to {tmp_path}-delta" in str(caught.value.hint)


def test_a_damaged_log_and_missing_files_are_refused_with_their_names(tmp_path: Path) -> None:
    opened(tmp_path).commit(batch(tmp_path, 0))
    (tmp_path / "topic=orders/0-10-x.parquet").unlink()
    with pytest.raises(UsageError, match=r"1 files of the archive .*0-10-x\.parquet"):
        archive_files(str(tmp_path))
    max((tmp_path / "_delta_log").glob("*.json")).write_text("[")
    for each in (opened, lambda root: archive_files(str(root))):
        with pytest.raises(CorruptionError, match="_delta_log"):
            each(tmp_path)
