"""The rules of tests/conftest.py, each in a run of pytest of its own over a few tests made for it."""

import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.deadline import eventually
from tests.supervisor.test_namespaces import needs_namespaces

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
[pytest]
testpaths = tests
addopts = -p no:cacheprovider
markers =
    peer: x
    slow: x
    timed: x
"""
SUITES = """
import os

import pytest

def test_of_the_gate(): print("seed", os.environ["SHMQ_TEST_SEED"])

@pytest.mark.slow
def test_slow(): pass

@pytest.mark.timed
def test_timed(): pass

@pytest.mark.slow
@pytest.mark.peer
def test_peer(): pass
"""
FLAKY = """
import pytest

tried = set()

def fail_once(name):
    if name not in tried:
        tried.add(name)
        raise AssertionError(name)

@pytest.mark.peer
@pytest.mark.parametrize("number", range({peers}))
def test_peer(number):
    fail_once(number)

@pytest.mark.parametrize("number", range({ours}))
def test_of_ours(number):
    fail_once(-1 - number)
"""

DYING = """
import os
import signal

import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    if number in {dying}:
        os.kill(os.getpid(), signal.SIGKILL)
"""

IN_MEMORY = """
import os

def test_it():
    spaces = [[os.readlink(f"/proc/{who}/ns/{name}") for name in ("mnt", "ipc")] for who in ("self", os.getppid())]
    assert (spaces[0] != spaces[1]) == IS_OWN
"""

LEAKING = """
import os

def test_it():
    for _ in range({count}):
        os.open("/dev/null", os.O_RDONLY)
"""

STANDING = """
import os
import pathlib
import signal

def test_it():
    pathlib.Path("pid").write_text(f"{os.getpid()}\\n")
    signal.pause()
"""


class Project:
    """A few tests below a copy of our conftest.py."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tests").mkdir()
        (root / "pytest.ini").write_text(SETTINGS)
        (root / "tests/conftest.py").write_text((ROOT / "tests/conftest.py").read_text())

    def run(self, program: str, *words: str, around: tuple[str, ...] = ()) -> tuple[int, str]:
        """Return the exit status and what was said; `around` starts it."""
        (self.root / "tests/test_it.py").write_text(program)
        command = [*around, sys.executable, "-P", "-m", "pytest", "-v", *words]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, timeout=240)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ((), ["of_the_gate"]),
        (("-n", "2"), ["of_the_gate"]),
        (("-n", "2", "--suite", "gate", "tests"), ["of_the_gate"]),
        (("--suite", "long"), ["slow", "timed"]),
        (("-n", "2", "--suite", "peers", "tests/test_it.py"), ["peer"]),
        (("-n", "2", "--all"), ["of_the_gate", "slow", "timed", "peer"]),
        (("-n", "2", "tests"), ["of_the_gate", "slow", "timed", "peer"]),
        (("tests",), ["of_the_gate", "slow", "timed", "peer"]),
    ],
)
def test_a_suite_is_run_alone_and_a_path_that_is_named_as_a_whole(
    project: Project, words: tuple[str, ...], names: list[str]
) -> None:
    status, said = project.run(SUITES, *words)
    assert status == 0 and f"{len(names)} passed" in said
    assert all(f"::test_{name}" in said for name in names)
    assert ("--all every one" in said) == (len(names) < 4)


def test_the_gate_has_one_seed_and_the_others_one_of_the_day_that_is_said(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = ("-n", "2")
    monkeypatch.delenv("SHMQ_TEST_SEED")
    days = {time.strftime("%Y%m%d")}
    seeds = [
        re.search(r"seed (\d+)$", project.run(SUITES, "-rP", *spread, *words)[1], re.M) for words in ((), ("tests",))
    ]
    days.add(time.strftime("%Y%m%d"))
    gate, other = (found.group(1) for found in seeds if found is not None)
    assert gate == "1" and other in days
    monkeypatch.setenv("SHMQ_TEST_SEED", "77")
    for words in ((), ("tests",)):
        said = project.run(SUITES, "-rP", *spread, *words)[1]
        assert "seed 77\n" in said and "seed: SHMQ_TEST_SEED=77" in said


def test_a_test_of_a_peer_is_repeated_once_and_named_and_three_may_be(project: Project) -> None:
    status, said = project.run(FLAKY.format(peers=3, ours=0), "--all")
    assert status == 0 and "3 passed" in said and "3 rerun" in said
    assert said.count("repeated: tests/test_it.py::test_peer[") == 3


@pytest.mark.parametrize("spread", [(), ("-n", "2")], ids=["alone", "spread"])
def test_a_fourth_repetition_fails_a_run_in_which_everything_passed(project: Project, spread: tuple[str, ...]) -> None:
    status, said = project.run(FLAKY.format(peers=4, ours=0), "--all", *spread)
    assert status == 1 and "4 passed" in said and "4 tests were repeated, 3 may be" in said


def test_a_test_of_ours_is_never_repeated(project: Project) -> None:
    status, said = project.run(FLAKY.format(peers=0, ours=1), "--all")
    assert status == 1 and "1 failed" in said and "RERUN" not in said


def test_a_peer_that_fails_twice_has_failed(project: Project) -> None:
    always = "import pytest\n@pytest.mark.peer\ndef test_peer(): raise AssertionError\n"
    status, said = project.run(always, "--all")
    assert status == 1 and "1 failed, 1 rerun" in said
    status, said = project.run(always, "--all", "--reruns", "0")
    assert status == 1 and "RERUN" not in said


@pytest.mark.parametrize("spread", [(), ("-n", "2")], ids=["alone", "spread"])
def test_a_failure_is_named_at_once_with_its_reason(project: Project, spread: tuple[str, ...]) -> None:
    _, said = project.run("def test_it(): raise ValueError('one\\ntwo')\ndef test_other(): pass", *spread)
    running, summary, _ = said.partition("= FAILURES =")
    assert summary
    assert running.count("failed: tests/test_it.py::test_it (call) ValueError: one\n") == 1


@pytest.mark.parametrize("count", [50, 51])
def test_a_test_that_leaves_many_descriptors_open_has_failed(project: Project, count: int) -> None:
    status, said = project.run(LEAKING.format(count=count))
    assert (status == 1) == (count > 50) == (f"{count} descriptors are left open" in said)


@pytest.mark.parametrize(
    ("files", "count", "dying"), [(1, 1, [0]), (1, 3, [1]), (4, 3, [0]), (5, 1, [0]), (3, 4, [2, 3])]
)
def test_a_run_whose_process_dies_ends_and_names_its_test(
    project: Project, files: int, count: int, dying: list[int]
) -> None:
    for number in range(1, files):
        (project.root / f"tests/test_other_{number}.py").write_text(DYING.format(count=count, dying=[]))
    status, said = project.run(DYING.format(count=count, dying=dying), "--all", "-n", "2")
    assert status == 1 and f"{len(dying)} failed" in said
    assert files * count == len(dying) or f"{files * count - len(dying)} passed" in said
    for number in dying:
        assert f"crashed while running 'tests/test_it.py::test_it[{number}]'" in said


@needs_namespaces
@pytest.mark.parametrize("spread", [(), ("-n", "2")], ids=["alone", "spread"])
@pytest.mark.parametrize(("may", "is_own", "told"), [("+", True, "each process's own"), ("-", False, "the host's")])
def test_a_run_has_memory_of_its_own_where_it_may_and_says_so(
    project: Project, spread: tuple[str, ...], may: str, is_own: bool, told: str
) -> None:
    program = IN_MEMORY.replace("IS_OWN", str(is_own))
    status, said = project.run(program, "--all", *spread, around=("setpriv", f"--bounding-set={may}sys_admin"))
    assert status == 0 and f"memory: /dev/shm and System V objects are {told}" in said, said


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_processes_of_a_run_that_is_killed_end_with_it(project: Project) -> None:
    (project.root / "tests/test_it.py").write_text(STANDING)
    pid = project.root / "pid"
    with subprocess.Popen([sys.executable, "-P", "-m", "pytest", "-q", "-n", "2"], cwd=project.root) as controller:
        eventually(lambda: pid.exists() and pid.read_text().endswith("\n"), "the test to run", 120)
        controller.kill()
    eventually(lambda: not _lives(int(pid.read_text())), "its process to end", 60)


def test_long_tests_of_some_folders_go_to_the_next_free_worker(project: Project) -> None:
    folder = project.root / "tests/crash/disk"
    folder.mkdir(parents=True)
    (folder / "test_long.py").write_text("def test_one(): pass\ndef test_other(): pass\n")
    status, said = project.run("", "--all", "-n", "2")
    assert status == 0 and "2 passed" in said
    assert "[gw0] " in said and "[gw1] " in said


GUESTS = """
import pytest

@pytest.fixture(scope="session")
def stock_5():
    print("[stock_5 starts]")
    yield
    print("[stock_5 ends]")

@pytest.fixture(scope="session")
def made(stock_5):
    yield
    print("[made ends]")

@pytest.fixture(scope="session")
def other():
    yield
    print("[other ends]")

@pytest.fixture
def target(request):
    request.getfixturevalue(request.param.replace("-", "_"))
"""
USERS = {
    "a": "def test_guest(made, other): pass\ndef test_none(): pass",
    "b": "import pytest\ndef test_none(): pass\n"
    "@pytest.mark.parametrize('target', ['stock-5'], indirect=True)\ndef test_guest(target): pass",
    "c": "def test_none(): pass",
    "d": "def test_guest(stock_5): pass",
    "e": "def test_none(stock_5): pass",
}
"""Files of tests/interop in their order; the last is of another folder and has a `stock_5` of its own."""


def test_a_guest_ends_when_the_next_file_of_its_process_does_not_use_it(project: Project) -> None:
    folder = project.root / "tests/interop"
    folder.mkdir()
    (folder / "conftest.py").write_text(GUESTS)
    (project.root / "tests/other").mkdir()
    (project.root / "tests/other/conftest.py").write_text(GUESTS.replace("stock_5 ", "namesake "))
    for name, program in USERS.items():
        place = project.root / "tests/other" if name == "e" else folder
        (place / f"test_{name}.py").write_text(program)
    status, said = project.run("def test_none(): pass", "--all", "-s")
    assert status == 0 and "8 passed" in said
    events = re.findall(r"\[\w+ (?:starts|ends)\]|test_[a-z]+\.py::test_\w+", said)
    assert events == [
        *("test_a.py::test_guest", "[stock_5 starts]", "test_a.py::test_none"),
        *("test_b.py::test_none", "test_b.py::test_guest", "[made ends]", "[stock_5 ends]"),
        "test_c.py::test_none",
        *("test_d.py::test_guest", "[stock_5 starts]", "[stock_5 ends]"),
        *("test_e.py::test_none", "[namesake starts]", "test_it.py::test_none", "[namesake ends]", "[other ends]"),
    ]
