"""The rules of tests/second_look.py, in runs of pytest of its own over tests made for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import pathlib

import pytest

SECOND = pathlib.Path("second").exists()

@pytest.fixture
def ended():
    yield
    assert SECOND

def test_that_passes(): pass
def test_once(): assert SECOND
def test_whose_end_fails_once(ended): pass
def test_again(): assert False
def test_skipped(): pytest.skip("no peer")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(PROGRAM)
    (tmp_path / "conftest.py").write_text("pytest_plugins = ('tests.suites',)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return tmp_path


def run(project: Path, *words: str) -> tuple[int, str]:
    """Return the exit status and what was said."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", *words]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, check=False, timeout=240)
    return done.returncode, (done.stdout + done.stderr).decode()


def look_again(project: Path, failed: list[str]) -> tuple[int, str]:
    cache = project / ".pytest_cache/v/cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps(dict.fromkeys(failed, True)))
    return run(project, "tests.second_look")


def test_tests_that_pass_alone_are_named_and_the_run_is_green(project: Path) -> None:
    status, _ = run(project, "pytest", "-n", "2", "-k", "that_passes or once")
    assert status == 1
    (project / "second").touch()
    status, said = run(project, "tests.second_look")
    flaked = [line for line in said.splitlines() if line.startswith("flaked: ")]
    assert flaked == ["flaked: test_it.py::test_once", "flaked: test_it.py::test_whose_end_fails_once"]
    assert status == 0 and "2 passed" in said  # those that failed, and no other


@pytest.mark.parametrize(
    ("failed", "says"),
    [
        (["that_passes", "again"], "1 failed, 1 passed"),
        (["whose_end_fails_once"], "1 passed, 1 error"),
        (["skipped"], "1 skipped"),
        (["that_passes", "gone"], "not found"),
        ([], "no second look: 0 tests failed"),
        (["that_passes"] + [f"it[{number}]" for number in range(5)], "no second look: 6 tests failed"),
    ],
    ids=["again", "its end", "skipped", "gone", "none", "many"],
)
def test_anything_else_is_red(project: Path, failed: list[str], says: str) -> None:
    status, said = look_again(project, [f"test_it.py::test_{name}" for name in failed])
    assert status == 1 and "flaked: " not in said and says in said
