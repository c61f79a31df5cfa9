"""Each test is in one suite, by its markers and its folder; what the pages say of the suites is so."""

import configparser
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.spark.conftest import pytest_ignore_collect
from tests.suites import PLACES, SUITES, pytest_collection, suite_of
from tests.tables.rows import every_row

ROOT = Path(__file__).resolve().parent.parent


@every_row(
    ("nodeid", "marks", "suite"),
    [
        ("tests/client/consumers/test_listener.py::test_it", set(), "gate"),
        ("tests/client/consumers/test_listener.py::test_it", {"parametrize", "asyncio"}, "gate"),
        ("tests/client/consumers/test_listener.py::test_it", {"slow"}, "long"),
        ("tests/client/consumers/test_listener.py::test_it", {"timed"}, "long"),
        ("tests/crash/test_kill.py::test_it", set(), "faults"),
        ("tests/crash/test_kill.py::test_it", {"slow"}, "faults"),
        ("tests/test_conftest.py::test_it", set(), "long"),
        ("tests/spark/test_cluster.py::test_it", {"peer"}, "peers"),
        ("tests/spark/test_cluster.py::test_it", {"peer", "slow"}, "peers"),
        ("tests/crash/test_kill.py::test_it", {"peer"}, "peers"),
        ("tests/interop/test_differential.py::test_it[1]", set(), "peers"),
        ("tests/test_conftest_of_another.py::test_it", set(), "gate"),
    ],
)
def test_markers_and_place_decide(nodeid: str, marks: set[str], suite: str) -> None:
    assert suite_of(nodeid, marks) == suite


def test_without_spark_every_suite_but_that_of_the_peers_can_be_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMQ_REQUIRE_INTEROP", "1")
    path = ROOT / "tests/spark/scan/test_reader.py"
    for suite in SUITES:
        config = SimpleNamespace(option=SimpleNamespace(suite=suite))
        assert bool(pytest_ignore_collect(path, config)) == (suite != "peers")  # type: ignore[arg-type]


def test_each_process_of_a_gate_reads_all_of_its_modules_and_begins_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(importlib, "import_module", read.append)

    def read_by(process: str) -> list[str]:
        read.clear()
        config = SimpleNamespace(
            workerinput={"workerid": process, "workercount": 4},
            option=SimpleNamespace(suite="gate"),
            args_source=pytest.Config.ArgsSource.TESTPATHS,
            ArgsSource=pytest.Config.ArgsSource,
            rootpath=ROOT,
        )
        pytest_collection(SimpleNamespace(config=config))  # type: ignore[arg-type]
        return read.copy()

    orders = [read_by(f"gw{number}") for number in range(4)]
    assert len({order[0] for order in orders}) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(orders[0]))}
    assert "tests.test_suites" in orders[0]
    assert not [name for name in orders[0] if suite_of(f"{name.replace('.', '/')}.py", set()) != "gate"]


def test_every_place_is_there() -> None:
    assert [place for place in PLACES if not (ROOT / place).exists()] == []


def test_the_page_of_the_tests_has_a_command_for_each_suite_and_knows_each_marker() -> None:
    page = (ROOT / "tests/README.md").read_text()
    commands = re.findall(r"^\$ pip install .* && (pytest .*)$", page, re.MULTILINE)
    assert commands == ["pytest -n 4", *(f"pytest -n 3 --suite {suite}" for suite in SUITES[1:])]
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    markers = re.findall(r"^(\w+):", config["tool:pytest"]["markers"], re.MULTILINE)
    assert [name for name in markers if f"`{name}`" not in page] == []
