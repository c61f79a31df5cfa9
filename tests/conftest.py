"""How the tests run: on an installed package, side by side, bounded in time.

`pytest -n 3` spreads the tests over processes, because most of the time they wait for a JVM, a disk or a due time. A
file stays together for what its tests share, and so does everything that uses Spark, which is one session and one
cluster. What takes longest begins first. A test that hangs fails with every thread's stack after `timeout` (setup.cfg),
and a run that could not end in time stops at `session_timeout` and says what it saw so far.

A test that fails is run once more (`--reruns`), and the summary says so: three processes of brokers, JVMs and kill
loops on two cores starve each other for seconds now and then. `--reruns 0` takes every failure as it comes.
"""

import importlib.util
import signal
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# A busy machine is no failure: nothing is judged by how long it took.
settings.register_profile("shmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shmq")


TOGETHER: Final = ("tests/spark/",)
"""Folders whose files share what takes long to start."""
LONGEST_FIRST: Final = ("tests/spark/", "tests/interop/", "tests/crash/", "tests/conformance/", "tests/keeper/")


class _Spread(LoadScopeScheduling):
    """Tests of a file, or of a folder that stays together, go to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _Spread:
    return _Spread(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        found = (number for number, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder))
        return next(found, len(LONGEST_FIRST))

    items.sort(key=rank)


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
