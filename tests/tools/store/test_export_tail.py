"""`shmq store export --tail`: each message of a tail is in the file, or the status is 1 and its place is said."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmq.shm.access import Access
from shmq.store.layout import StoreLayout, file_name
from shmq.store.lineage.cutting import TAIL_FACTS, Tail, cut_as_wished, tails, wish_cut
from shmq.store.recovery import OpenFiles
from shmq.store.seal import sealed
from tests.store.file_changes import NO_FILES, SIZES, grown
from tests.tables.rows import every_row
from tests.tools.shell import Shell
from tests.tools.store.conftest import FILE_BYTES, change
from tests.tools.store.test_verify_command import records


def cut(root: Path, position: int) -> Tail:
    """Cut the log as a demotion does; return what that kept."""
    layout = StoreLayout(root, Access(-1))
    before = {tail.path for tail in tails(layout)}
    files = OpenFiles.of(layout, file_bytes=FILE_BYTES, log=lambda *_, **__: None)
    wish_cut(layout, position, 3, end=position + (1 << 30))
    assert cut_as_wished(layout, files.commitlog, files.mark) is not None
    files.close()
    [new] = [tail for tail in tails(layout) if tail.path not in before]
    return new


class Kept(NamedTuple):
    """A store with a tail of several log files, and where the records of that lie: position and end."""

    root: Path
    tail: Tail
    places: list[tuple[int, int]]

    @property
    def positions(self) -> list[int]:
        return [begin for begin, _ in self.places]

    def path(self, position: int) -> Path:
        return self.tail.path / file_name(position - position % FILE_BYTES)

    def last_in_file(self, base: int) -> tuple[int, int]:
        return max(place for place in self.places if base <= place[0] < base + FILE_BYTES)

    def write(self, position: int, data: bytes) -> None:
        change(self.path(position), position % FILE_BYTES, data)


@pytest.fixture
def kept(store: Path) -> Kept:
    places = [(one.position, one.position + len(data)) for one, data in records(store)][20:]
    tail = cut(store, places[0][0])
    kept = Kept(store, tail, places)
    assert len([path for path in tail.path.iterdir() if path.name != TAIL_FACTS]) == 2
    return kept


def exported(kept: Kept, file: Path, *words: str, status: int) -> tuple[list[int], list[dict[str, Any]]]:
    """The positions of what is in the file, and what the command said of damage."""
    command = ("store", "export", str(kept.root), "--tail", *words, "--output", str(file))
    document = Shell().json("store-export", *command, status=status)
    lines = [json.loads(line)["position"] for line in file.read_text().splitlines()]
    assert len(lines) == document["messages"]
    return lines, document["damages"]


def test_a_whole_tail_is_copied_and_its_removal_is_said(kept: Kept, tmp_path: Path, shell: Shell) -> None:
    assert exported(kept, tmp_path / "tail.jsonl", status=0) == (kept.positions, [])
    words = ("store", "export", str(kept.root), "--tail", "--output")
    assert f"rm -r {kept.tail.path}\n" in shell.ok(*words, str(tmp_path / "again.jsonl")).decode()
    part = shell.ok(*words, str(tmp_path / "part.jsonl"), "--topic", "orders").decode()
    assert "rm -r" not in part, "what of it was not asked for is in no file"


@every_row("change_file", [*SIZES, *NO_FILES])
def test_a_file_of_a_tail_that_is_changed_is_named_and_the_others_are_copied(
    kept: Kept, tmp_path: Path, change_file: Callable[[Path], None]
) -> None:
    for number, base in enumerate(sorted({at - at % FILE_BYTES for at in kept.positions})):
        path, aside = kept.path(base), tmp_path / "aside"
        whole = path.read_bytes()
        change_file(path)
        lines, damages = exported(kept, tmp_path / f"{change_file.__name__}{number}", status=1)
        others = [at for at in kept.positions if change_file is grown or not base <= at < base + FILE_BYTES]
        assert set(others) <= set(lines) <= set(kept.positions), (base, change_file)
        assert all(str(kept.tail.path) in each["reason"] for each in damages) and damages
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        aside.write_bytes(whole)
        aside.rename(path)


def test_a_tail_without_log_files_is_no_whole_one(kept: Kept, tmp_path: Path, shell: Shell) -> None:
    for base in {at - at % FILE_BYTES for at in kept.positions}:
        kept.path(base).unlink()
    lines, [damage] = exported(kept, tmp_path / "tail.jsonl", status=1)
    begin, end = kept.tail.begin, kept.tail.end
    assert (lines, damage["position"]) == ([], begin)
    assert f"{kept.tail.path}: log bytes {begin} to {end - 1} are in no file" in damage["reason"]
    told = shell.run("store", "export", str(kept.root), "--tail", "--output", str(tmp_path / "again.jsonl"))
    assert told.status == 1 and damage["reason"] in told.out.decode() and "rm -r" not in told.out.decode()


@every_row("what", ["record", "blank"])
def test_damage_at_the_end_of_a_file_of_a_tail_costs_only_itself(kept: Kept, tmp_path: Path, what: str) -> None:
    bases = sorted({at - at % FILE_BYTES for at in kept.positions})
    for number, base in enumerate(bases[: None if what == "record" else -1]):
        begin, end = kept.last_in_file(base)
        at = end if what == "blank" else begin
        before = kept.path(base).read_bytes()
        kept.write(at if what == "blank" else end - 5, b"\xff" * 5)
        lines, damages = exported(kept, tmp_path / f"{what}{number}", status=1)
        assert lines == [each for each in kept.positions if each != at]
        assert [each["position"] for each in damages] == [at]
        kept.path(base).write_bytes(before)


@pytest.mark.parametrize("bad", ["damaged", "missing", "backwards"])
def test_a_tail_that_does_not_say_what_it_is_costs_no_other(kept: Kept, tmp_path: Path, shell: Shell, bad: str) -> None:
    older = kept.root / "tails" / "older"
    older.mkdir()
    for path in kept.tail.path.iterdir():
        (older / path.name).write_bytes(path.read_bytes())
    if bad == "missing":
        (older / TAIL_FACTS).unlink()
    elif bad == "backwards":
        content = json.dumps({"begin": 9, "end": 4, "epoch": 1, "at_ms": 1}).encode()
        (older / TAIL_FACTS).write_bytes(sealed(content))
    else:
        change(older / TAIL_FACTS, 3, b"\xff")
    lines, [damage] = exported(kept, tmp_path / "tail.jsonl", status=1)
    assert lines == kept.positions and str(older) in damage["reason"]
    # What it says has the messages of that one, too.
    prepare, found, export = damage["reason"].partition("read it as a log: ")[2].partition(" && shmq ")
    assert found
    place = {"NEW": str(tmp_path / "new"), "FILE": str(tmp_path / "older.jsonl")}
    subprocess.run(["/bin/sh", "-ec", prepare.replace("NEW", place["NEW"])], check=True)
    shell.run(*(place.get(word, word) for word in shlex.split(export)))
    assert [json.loads(line)["position"] for line in (tmp_path / "older.jsonl").read_text().splitlines()] == lines


def test_a_tail_is_chosen_by_its_name(kept: Kept, tmp_path: Path, shell: Shell) -> None:
    begin = [one.position for one, _ in records(kept.root)][10]
    other = cut(kept.root, begin)
    positions = {tail: exported(kept, tmp_path / tail, "--only", tail, status=0)[0] for tail in (kept.tail.path.name,)}
    assert positions == {kept.tail.path.name: kept.positions}
    second, _ = exported(kept, tmp_path / "second", "--only", other.path.name, status=0)
    assert (second[0], len(second)) == (begin, 10)
    assert sorted(exported(kept, tmp_path / "both", status=0)[0]) == second + kept.positions
    words = ("store", "export", str(kept.root), "--output", str(tmp_path / "none"), "--only")
    error = shell.fails(64, *words, "third", "--tail")
    assert "third" in error["error"] and other.path.name in error["hint"] and kept.tail.path.name in error["hint"]
    assert "--tail" in shell.fails(64, *words, other.path.name)["hint"]
