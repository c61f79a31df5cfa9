"""Four suites: which test belongs to which, chosen by marker and folder alone. tests/README.md says when to run which.

    gate     what a change must pass to land: no other program, no chance, no judgement of time; the default
    long     what takes long, or has real time for a rule: markers `slow` and `timed`
    faults   kills, power cuts, damage, races, cut cables and hostile bytes, drawn by chance and by the thousand
    peers    what needs a client or broker of RocketMQ, or Spark: marker `peer`

PLACES names what is in one suite as a whole. Each test is in one suite. `--suite NAME` runs one, of the paths that are
named too; `--all` runs every suite, and so does a path that is named without `--suite`.

The gate draws the same examples and the same chances in every run. The other suites have a seed of the day; the first
lines of the run say which one (tests/seed.py).
"""

import contextlib
import functools
import importlib
import os
import time
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

SUITES: Final = ("gate", "long", "faults", "peers")
PLACES: Final = {
    "tests/benchmarks": "long",
    "tests/crash": "faults",
    "tests/fuzz": "faults",
    "tests/ha/elected": "faults",
    "tests/ha/faults": "faults",
    "tests/install": "long",
    "tests/interop": "peers",
    "tests/race": "faults",
    "tests/stress": "long",
    "tests/test_conftest.py": "long",
    "tests/test_second_look.py": "long",
    "tests/test_soak.py": "long",
}
"""What is in a suite as a whole. Long: what is installed, what is measured, and runs of pytest inside pytest."""
SEED_VARIABLE: Final = "SHMQ_TEST_SEED"
SEED_OF_THE_GATE: Final = "1"

# A busy machine is no failure: no test is judged by how long it took.
_WITHOUT_TIME: Final[Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("gate", derandomize=True, database=None, **_WITHOUT_TIME)
settings.register_profile("others", **_WITHOUT_TIME)


@functools.cache
def _suite_of_file(name: str) -> str:
    path = PurePosixPath(name)
    return next((suite for place, suite in PLACES.items() if path.is_relative_to(place)), "gate")


def suite_of(nodeid: str, marks: set[str]) -> str:
    """Return the suite of a test with these markers."""
    place = _suite_of_file(nodeid.partition("::")[0])
    if "peer" in marks:
        return "peers"
    return "long" if place == "gate" and marks & {"slow", "timed"} else place


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", choices=SUITES, help="the tests to run; gate, where no path is named")
    parser.addoption("--all", action="store_true", help="run the tests of every suite")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the suite and the seed, once for all processes of the run, before any test is imported."""
    option = config.option
    if hasattr(config, "workerinput"):  # a process of xdist, which has the environment of the one that chose
        option.suite = config.workerinput["suite"]
    else:
        named = config.args_source is pytest.Config.ArgsSource.ARGS
        option.suite = None if option.all else option.suite or (None if named else "gate")
        seed = SEED_OF_THE_GATE if option.suite == "gate" else time.strftime("%Y%m%d")
        os.environ.setdefault(SEED_VARIABLE, seed)
    settings.load_profile("gate" if option.suite == "gate" else "others")
    if option.suite != "gate" and option.hypothesis_seed is None:
        option.hypothesis_seed = os.environ[SEED_VARIABLE]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["suite"] = node.config.option.suite


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare the gate the reading of what is not in it, which takes as long as some hundred tests."""
    suites = [suite for place, suite in PLACES.items() if collection_path == config.rootpath / place]
    return True if config.option.suite == "gate" and suites else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the modules of a whole gate beforehand, each process beginning elsewhere.

    pytest rewrites the assertions of a module and keeps what it made for who comes next. In a fresh checkout, processes
    that all begin with the same module would each rewrite everything, which takes one alone half a minute.
    """
    config = session.config
    process = getattr(config, "workerinput", None)
    if process is None or config.option.suite != "gate" or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    paths = [path.relative_to(config.rootpath) for path in sorted((config.rootpath / "tests").rglob("test_*.py"))]
    ours = [path for path in paths if _suite_of_file(str(path)) == "gate"]
    begin = len(ours) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
    for path in ours[begin:] + ours[:begin]:
        # What cannot be imported, or skips itself, is for the collection to tell.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.suite is not None:
        chosen, left = [], []
        for item in items:
            suite = suite_of(item.nodeid, {mark.name for mark in item.iter_markers()})
            (chosen if suite == config.option.suite else left).append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = chosen


def _told(config: pytest.Config) -> str:
    seed = os.environ[SEED_VARIABLE]
    others = " and ".join(f"--suite {suite}" for suite in SUITES if suite != config.option.suite)
    left_out = f"; {others} run the other tests, --all every one" if config.option.suite else ""
    return f"suite: {config.option.suite or 'all'}, seed: {SEED_VARIABLE}={seed}{left_out}"


def pytest_report_header(config: pytest.Config) -> str:
    return _told(config)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    terminalreporter.write_line(_told(config))
