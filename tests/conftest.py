"""How the tests run: on an installed package, side by side, in suites (tests/suites.py), bounded in time.

A test of ours that fails has failed; CI looks at a few of them twice to land (tests/second_look.py). A test of a peer
is repeated once, because its JVM, timers and reconnections are not ours to repair; the summary names each repetition,
and more than REPEATED_MAX of them fail the run. `--reruns 0` repeats none.

`-n 4` of the gate, and `-n 3` of the others, spread the tests over processes, because much of the time they wait for a
JVM, a disk or a due time. A file stays together for what its tests share, and so does everything that uses Spark, which
is one session and one cluster, or the archives of this checkout.
What takes longest begins first. A test that hangs fails with every thread's stack after `timeout` (setup.cfg), and a
run that could not end in time stops at `session_timeout` and says what it saw so far.
"""

import gc
import importlib
import importlib.util
import os
import pkgutil
import signal
from collections.abc import Iterator
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.interop.guests import Guests, unit_of
from tests.interop.peers.process import die_with_parent

pytest_plugins = ("tests.suites", "tests.shm.private_memory", "tests.supervisor.told_faults")

# Before the client is imported, here and in every process that a test starts: to be late is no failure.
os.environ.setdefault("SHMQ_TEST_PATIENCE", "60")


def pytest_sessionstart() -> None:
    """Import the client as a whole, on the main thread.

    pytest parses the modules of shmq as they are imported, since shmq brings a plugin, and CPython 3.11 counts the
    depth of a syntax tree for all threads together: two threads that each connect first would raise a SystemError.
    """
    import shmq.client

    for module in pkgutil.walk_packages(shmq.client.__path__, "shmq.client."):
        importlib.import_module(module.name)


APART: Final = ("tests/crash/broker/", "tests/crash/disk/", "tests/crash/mutants/")
"""Folders whose tests take long and share nothing: each goes to the next free worker."""
LONGEST_FIRST: Final = ("tests/spark/", "tests/interop/", "tests/crash/", "tests/conformance/", "tests/keeper/")
REPEATED_MAX: Final = 3
"""Tests of peers that may pass at their second try only before the run fails."""

LEFT_OPEN_MAX: Final = 50
"""Descriptors that a test may add to those of its process: what tests share, and what ends with a collection."""

_repeated = pytest.StashKey[list[str]]()
_open_before = pytest.StashKey[int]()


class _Spread(LoadScopeScheduling):
    """Tests of a file, or of a folder that stays together, go to one process; some long ones each by itself.

    When a process dies, its test has failed and the others of its files go to another process. xdist 3.8 hands the
    dying test out again, and files that are finished: a process that gets nothing of them to do waits for ever.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(APART) else unit_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        workload = self.assigned_work.pop(node)
        left = [nodeid for unit in workload.values() for nodeid, is_done in unit.items() if not is_done]
        for scope, unit in workload.items():
            if rest := {nodeid: False for nodeid, is_done in unit.items() if not is_done and nodeid != left[0]}:
                self.workqueue[scope] = rest
        for other in self.assigned_work:
            self._reschedule(other)
        return left[0] if left else None

    def _reschedule(self, node: WorkerController) -> None:
        if node not in self.registered_collections:
            return  # it replaces one that died, and has not collected yet
        super()._reschedule(node)
        # A process begins its last test only when it knows that none follows.
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Spread:
    return _Spread(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--reruns") is None:
        for item in items:
            if item.get_closest_marker("peer") is not None:
                item.add_marker(pytest.mark.flaky(reruns=1))
    items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Tell the collector that a million objects of pytest stay: a test that collects garbage would look at them all."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_open_before] = _open_descriptors()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test that leaves many descriptors open: the tests behind it would run out of them."""
    yield
    left = _open_descriptors() - item.stash[_open_before]
    assert left <= LEFT_OPEN_MAX, f"{left} descriptors are left open"


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _rank(item: pytest.Item) -> int:
    found = (number for number, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder))
    return next(found, len(LONGEST_FIRST))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that repeated too many."""
    is_worker = hasattr(session.config, "workeroutput")
    too_many = not is_worker and len(session.config.stash[_repeated]) > REPEATED_MAX
    if too_many and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


class _Repetitions:
    """Remembers which tests were run again."""

    def __init__(self, nodeids: list[str]) -> None:
        self._nodeids = nodeids

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "rerun":
            self._nodeids.append(report.nodeid)


class _Failures:
    """Names each failure in the middle of a run, which goes on for half an hour."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None and not hasattr(self._config, "workerinput"):
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message.partition("\n")[0] if crash is not None else ""
            # The dots of a parallel run do not count as a line begun, so a newline of its own ends them.
            terminal.write_line(f"\nfailed: {report.nodeid} ({report.when}) {reason}".rstrip(), red=True)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    repeated = config.stash[_repeated]
    for nodeid in repeated:
        terminalreporter.write_line(f"repeated: {nodeid}", yellow=True)
    if len(repeated) > REPEATED_MAX:
        terminalreporter.write_line(f"{len(repeated)} tests were repeated, {REPEATED_MAX} may be", red=True)


def _hear_signals() -> None:
    """Undo what a caller left ignored or blocked: a background job of a shell starts with SIGINT ignored, and so would
    every broker and command that the tests start and stop with it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("shmq.daemon") is None or importlib.util.find_spec("shmq.bindings._core") is None:
        pytest.exit("shmq is not installed with its extension: pip install -e '.[test]'", returncode=3)
    _hear_signals()
    if hasattr(config, "workerinput"):
        die_with_parent()  # a run that is killed leaves no process that goes on with its tests
    config.pluginmanager.register(Guests())
    config.stash[_repeated] = []
    config.pluginmanager.register(_Repetitions(config.stash[_repeated]))
    config.pluginmanager.register(_Failures(config))
