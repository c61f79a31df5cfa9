"""Stop with one clear sentence when the package under test is not installed the way the tests need it.

`pytest -n 3` spreads the files of tests over processes (setup.cfg: by file), because most of the time they wait for a
JVM, a disk or a due time. A test that hangs fails with every thread's stack after `timeout` (setup.cfg), and a run that
could not end in time stops at `session_timeout` and says what it saw so far.
"""

import importlib.util
import signal

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: nothing is judged by how long it took.
settings.register_profile("shmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shmq")


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
