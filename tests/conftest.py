"""What holds for every test: the package is installed, and who shares a process when tests run side by side.

`pytest -n 3` spreads the tests over processes, because most of the time they wait for a JVM, a disk or a due time.
Tests of one file stay together. So do all that share something dear or taken once: real peers and the ports RocketMQ's
clients expect (`interop`), a Spark session (`spark`).
"""

import importlib.util
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: nothing is judged by how long it took.
settings.register_profile("shmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shmq")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): tests that run in one process, one after the other")
    if importlib.util.find_spec("shmq.daemon") is None or importlib.util.find_spec("shmq.bindings._core") is None:
        pytest.exit("shmq is not installed with its extension: pip install -e '.[test]'", returncode=3)


# These folders start what takes seconds, gigabytes or a fixed port, once for all their tests.
SHARING_FOLDERS = ("interop", "spark")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before xdist's own, which comes early, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Keep together what belongs together when the tests run in several processes."""
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here)
        group = path.parts[0] if path.parts[0] in SHARING_FOLDERS else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
    yield
