"""Stop with one clear sentence when the package under test is not installed the way the tests need it.

`pytest -n 3` spreads the files of tests over processes (setup.cfg: by file), because most of the time they wait for a
JVM, a disk or a due time.
"""

import importlib.util

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: nothing is judged by how long it took.
settings.register_profile("shmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shmq")


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("shmq.daemon") is None or importlib.util.find_spec("shmq.bindings._core") is None:
        pytest.exit("shmq is not installed with its extension: pip install -e '.[test]'", returncode=3)
