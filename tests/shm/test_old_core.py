"""A core that was built of other sources than those beside it is named, and nothing is said of any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.bindings import _core
from shmq.bindings.sources import digest, other_sources
from shmq.shm.old_core import old_core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A checkout's sources."""
    (tmp_path / "core").mkdir()
    for name in ("core/log.c", "core/log.h", "shmq.h", "sources.py"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_the_core_that_runs_these_tests_is_built_of_these_sources() -> None:
    assert digest(str(ROOT / "bindings")) == _core.SOURCES
    assert old_core() == ""


def test_a_core_of_these_sources_is_fine_whenever_they_were_written(sources: Path) -> None:
    built_of = digest(str(sources))
    (sources / "core" / "log.c").write_text("core/log.c")  # as a change of branches and back leaves it
    (sources / "sources.py").write_text("no part of the core")
    assert other_sources(str(sources), "_core.so", built_of) == ""


@pytest.mark.parametrize("name", ["core/log.c", "core/new.c", "shmq.h"])
def test_a_changed_or_new_source_makes_the_core_an_old_one(sources: Path, name: str) -> None:
    built_of = digest(str(sources))
    (sources / name).write_text("another text")
    assert str(sources) in other_sources(str(sources), "_core.so", built_of)


def test_a_renamed_or_deleted_source_makes_the_core_an_old_one(sources: Path) -> None:
    built_of = digest(str(sources))
    (sources / "core" / "log.c").rename(sources / "core" / "block.c")
    assert other_sources(str(sources), "_core.so", built_of)
    (sources / "core" / "block.c").unlink()
    assert other_sources(str(sources), "_core.so", built_of)


def test_a_core_without_a_digest_is_old_unless_it_is_no_installation(sources: Path) -> None:
    assert other_sources(str(sources), "_core.so", None)
    assert other_sources(str(sources), "_core.so", "") == ""


def test_nothing_is_said_where_no_sources_lie(tmp_path: Path) -> None:
    (tmp_path / "shmq.h").write_text("a header is installed, too")
    assert other_sources(str(tmp_path), str(tmp_path / "_core.so"), "0" * 16) == ""
    assert other_sources(str(tmp_path / "archive.zip" / "bindings"), "archive.zip/_core.so", "0" * 16) == ""


def checkout(folder: Path) -> dict[str, str]:
    """Make a checkout of this one's Python and core, with another source, and return the environment to run it in."""
    (folder / "shmq").mkdir()
    for entry in (ROOT / "shmq").iterdir():
        if entry.name not in ("bindings", "__pycache__"):
            (folder / "shmq" / entry.name).symlink_to(entry.resolve())
    bindings = folder / "shmq" / "bindings"
    bindings.mkdir()
    for entry in (ROOT / "bindings").iterdir():
        if entry.name not in ("core", "__pycache__"):
            (bindings / entry.name).symlink_to(entry)
    (bindings / "core").mkdir()
    (bindings / "core" / "log.c").write_text("changed after the build")
    return {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment, cwd="/")


def test_the_doctor_names_an_old_core_and_what_to_type(tmp_path: Path) -> None:
    text = (
        "import shmq.shm.core\nfrom shmq.tools.doctor.installation import check_core\n"
        "for finding in check_core(None): print(finding)"
    )
    done = run(checkout(tmp_path), "-W", "error", "-c", text)
    assert f"built of other sources than those in {tmp_path}" in done.stdout, done
    assert "pip install -e ." in done.stdout and "CRITICAL" in done.stdout


def test_a_program_whose_core_lacks_a_name_gets_what_to_type(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    text = "import shmq.bindings._core as core\ndel core.tag_hash\nimport shmq.shm.core"
    done = run(environment, "-c", text)
    assert f"built of other sources than those in {tmp_path}" in done.stderr, done
    assert done.stderr.rstrip().endswith("pip install -e . in the checkout")


def test_a_program_that_works_reads_no_source() -> None:
    text = "import sys, shmq.shm.core\nprint({'shmq.shm.old_core', 'shmq.bindings.sources'} & set(sys.modules))"
    assert run({**os.environ}, "-c", text).stdout == "set()\n"
