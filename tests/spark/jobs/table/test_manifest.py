"""The manifests of a Parquet archive: a batch is in or it is not, wherever its writer was killed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from shmq.errors import CorruptionError, OffsetOutOfRange, StoreError, StoreLocked, UsageError
from shmq.spark.jobs.archived import settled
from shmq.spark.jobs.table import manifest as module
from shmq.spark.jobs.table.entry import Entry, QueueKey
from shmq.spark.jobs.table.manifest import Manifest, entries_in, read_manifest, versions
from shmq.spark.jobs.table.table import Commit, accepted

KEY = QueueKey("orders", "a", 0, 7)
FILES = 2


def staged(root: Path, start: int, end: int, token: str = "x") -> Entry:
    """An entry whose file a task has left, as it leaves it."""
    folder = Path("topic=orders")
    (root / folder).mkdir(parents=True, exist_ok=True)
    path = folder / f".{token}{start}.parquet"
    (root / path).write_bytes(b"%d-%d" % (start, end))
    return Entry(*KEY, start, end, str(folder / f"{start}-{end}.parquet"), str(path), rows=end - start)


def batch(root: Path, number: int, token: str = "x") -> Commit:
    entries = [staged(root, 10 * (FILES * number + i), 10 * (FILES * number + i + 1), token) for i in range(FILES)]
    return Commit("query", number, tuple(entries))


def listed(root: Path) -> list[str]:
    """What somebody sees who lists the directory and does not know manifests."""
    return sorted(path.name for path in root.rglob("*.parquet") if not path.name.startswith("."))


def named(root: Path) -> list[str]:
    return sorted(Path(entry.path).name for entry in entries_in(root))


def test_a_batch_that_is_in_is_seen_both_ways_and_known_by_the_next_job(tmp_path: Path) -> None:
    with Manifest(tmp_path) as table:
        assert table.end_of(KEY) is None and not table.holds("query", 0)
        table.commit(batch(tmp_path, 0))
    with Manifest(tmp_path) as table:
        assert table.end_of(KEY) == 20 and table.holds("query", 0) and not table.holds("query", 1)
    assert named(tmp_path) == listed(tmp_path) == ["0-10.parquet", "10-20.parquet"]


def killed_after(lines: int, root: Path) -> bool:
    """Commit batch 1 in a child that dies after so many lines of the module; say whether it got to the end."""
    child = os.fork()
    if child == 0:
        left = lines

        def trace(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != module.__file__:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    os._exit(9)
            return trace

        with Manifest(root) as table:
            commit = batch(root, 1)
            sys.settrace(trace)
            table.commit(commit)
            sys.settrace(None)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_commit_killed_at_any_line_is_in_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    seen = set()
    for lines in range(10_000):
        root = tmp_path / str(lines)
        with Manifest(root) as table:
            table.commit(batch(root, 0))
        ended = killed_after(lines, root)
        assert set(listed(root)) <= set(named(root)), lines  # before anybody repairs anything
        with Manifest(root) as table:
            held = table.holds("query", 1)
            assert table.end_of(KEY) == (40 if held else 20)
            if not held:
                table.commit(batch(root, 1, token="again"))  # as Spark repeats a batch
        assert named(root) == listed(root) == ["0-10.parquet", "10-20.parquet", "20-30.parquet", "30-40.parquet"], lines
        assert not list(root.rglob(".*.parquet")), lines
        seen.add(held)
        if ended:
            break
    assert seen == {True, False} and ended


def test_rubbish_of_killed_tasks_goes_with_the_next_start(tmp_path: Path) -> None:
    with Manifest(tmp_path) as table:
        table.commit(batch(tmp_path, 0))
    staged(tmp_path, 500, 600, token="dead")
    with Manifest(tmp_path):
        assert not list(tmp_path.rglob(".*.parquet"))
    assert len(listed(tmp_path)) == FILES


def test_one_job_writes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.0)
    with Manifest(tmp_path), pytest.raises(StoreLocked, match="another job"), Manifest(tmp_path):
        pass


def test_a_version_is_written_once(tmp_path: Path) -> None:
    with Manifest(tmp_path) as table:
        table.commit(batch(tmp_path, 0))
        versions(tmp_path)[0].rename(tmp_path / "_manifests" / f"{2:020d}.json")
        with pytest.raises(StoreError, match="somebody else"):
            table.commit(batch(tmp_path, 1))


def test_replaced_files_are_never_seen_beside_what_replaced_them(tmp_path: Path) -> None:
    with Manifest(tmp_path) as table:
        table.commit(batch(tmp_path, 0))
        table.replace([staged(tmp_path, 0, 20, "joined")], table.entries())
    assert named(tmp_path) == listed(tmp_path) == ["0-20.parquet"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "version": "x"}'])
def test_damaged_manifests_are_refused_with_their_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "00000000000000000001.json"
    path.write_text(text)
    with pytest.raises(CorruptionError, match=path.name):
        read_manifest(path)


def test_a_directory_with_other_things_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").touch()
    with pytest.raises(UsageError, match=r"precious\.txt"), Manifest(tmp_path):
        pass


# ---- what a batch may hold -------------------------------------------------------------------------------------------


def entry(start: int, end: int) -> Entry:
    return Entry(*KEY, start, end)


def test_what_is_in_already_is_dropped_and_what_is_new_taken() -> None:
    new, known, gaps = accepted([entry(10, 20), entry(0, 10), entry(20, 30)], {KEY: 10}.get, may_lose=False)
    assert (new, known, gaps) == ([entry(10, 20), entry(20, 30)], [entry(0, 10)], [])


def test_a_hole_is_refused_or_written_down() -> None:
    with pytest.raises(OffsetOutOfRange, match="ends at offset 10, the batch begins at 15"):
        accepted([entry(15, 20)], {KEY: 10}.get, may_lose=False)
    _, _, gaps = accepted([entry(15, 20)], {KEY: 10}.get, may_lose=True)
    assert [(gap.start, gap.end) for gap in gaps] == [(10, 15)]


def test_a_checkpoint_of_another_archive_is_refused() -> None:
    with pytest.raises(UsageError, match="remove the checkpoint"):
        accepted([entry(5, 15)], {KEY: 10}.get, may_lose=True)


def test_a_reader_beside_a_job_waits_for_names_and_leaves_out_what_a_killed_one_did_not_finish(tmp_path: Path) -> None:
    with Manifest(tmp_path) as table:
        table.commit(batch(tmp_path, 0))
        table.commit(batch(tmp_path, 1))
    late = tmp_path / entries_in(tmp_path)[-1].path
    hidden = late.rename(late.with_name(".late.parquet"))
    assert [entry.start for entry in settled(tmp_path, 0.0)] == [0, 10]
    naming = threading.Timer(0.2, hidden.rename, (late,))
    naming.start()
    assert [entry.start for entry in settled(tmp_path, 60.0)] == [0, 10, 20, 30]
    naming.join()
    (tmp_path / entries_in(tmp_path)[0].path).unlink()
    with pytest.raises(UsageError, match="1 files of the archive"):
        settled(tmp_path, 0.0)
