"""One Spark for all tests of the source, in this process' Python, on loopback; without Spark or Java they are skipped.

SHMQ_REQUIRE_INTEROP=1, which CI sets, makes that a failure.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers.cache import is_required
from tests.spark.cluster import WORKERS, Cluster, Driver, discovery_path

Load = Callable[..., Any]


def _missing() -> str | None:
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        return f"{error.name} is not installed: pip install -e '.[spark]'"
    del pyarrow, pyspark
    if shutil.which("java") is None:
        return "java is not installed: apt-get install openjdk-17-jre-headless"
    return None


STARTING_SPARK = {"spark", "cluster", "driver", "kill_broker"}
"""Fixtures whose tests start a Spark, in this process or in others: tests of a peer (tests/conftest.py)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    reason = _missing()
    for item in items:
        if here not in item.path.parents:
            continue
        if STARTING_SPARK & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.peer)
        if reason is not None and not is_required():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session whose discovery path holds pyspark_shmq, as an installed wheel would have it."""
    from pyspark.sql import SparkSession

    path = discovery_path(tmp_path_factory.mktemp("discovery"))
    before, interrupt = dict(os.environ), signal.getsignal(signal.SIGINT)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(path), "SPARK_LOCAL_IP": "127.0.0.1"}
    session = (
        SparkSession.builder.master("local[2]")
        .appName("shmq-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(path / "warehouse"))
        .config("spark.executor.heartbeatInterval", "60s")
        .config("spark.network.timeout", "600s")
        .config("spark.python.worker.faulthandler.enabled", "true")
        .getOrCreate()
    )
    signal.signal(signal.SIGINT, interrupt)  # Spark takes Ctrl-C for itself, for all tests that follow
    yield session
    session.stop()
    os.environ.clear()
    os.environ |= before


@pytest.fixture(scope="session")
def broker() -> Iterator[Any]:
    """A broker with small log files, so that a few hundred messages fill one."""
    from shmq.testing import Broker

    with Broker(file_bytes=1 << 20, tcp=True) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster; `shmq://<name of the broker>` leads nowhere on its last worker, as on another host."""
    directory = tmp_path_factory.mktemp("cluster")
    here, elsewhere = ({"SHMQ_RUNTIME_DIR": str(path)} for path in (broker.directory, directory / "elsewhere"))
    with Cluster(directory, [here] * (WORKERS - 1) + [elsewhere]) as running:
        yield running


@pytest.fixture(scope="session")
def driver(cluster: Cluster, broker: Any) -> Iterator[Driver]:
    """A driver on the cluster that all tests share: `driver.call("tests.spark.calls:read", …)`."""
    running = Driver(cluster.directory, cluster.url, {"SHMQ_RUNTIME_DIR": str(broker.directory)})
    yield running
    running.end()


@pytest.fixture(scope="session")
def mq(broker: Any) -> Iterator[Any]:
    with broker.connect() as connection:
        yield connection


@pytest.fixture
def load(broker: Any) -> Load:
    """Plan and read a load without Spark: `load(topic="orders")` gives its rows, `columns=` some of them."""
    from shmq.spark.options import parse_options
    from shmq.spark.scan.reader import ShmqReader
    from shmq.spark.schema import column_kinds

    def rows(columns: tuple[str, ...] = (), **options: Any) -> list[dict[str, Any]]:
        parsed = parse_options({"store": broker.url, **{name: str(value) for name, value in options.items()}})
        reader = ShmqReader(parsed, columns or tuple(column_kinds(parsed.view)))
        return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]

    return rows
