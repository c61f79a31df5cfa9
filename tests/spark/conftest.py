"""One Spark for all tests of the source, in this process' Python, on loopback.

What needs Spark is a test of a peer: every test here but those below NEEDING_NO_SPARK, and those among them that start
one. Without pyspark, pyarrow or Java they are left out; SHMQ_REQUIRE_INTEROP=1 makes that a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import filterfalse
from pathlib import Path
from typing import Any, Final

import pytest

from shmq.message import is_system_group, is_system_topic
from tests.interop.peers.cache import is_required
from tests.spark.cluster import WORKERS, Cluster, Driver, discovery_path

Load = Callable[..., Any]


HERE: Final = Path(__file__).parent
NEEDING_NO_SPARK: Final = (
    "jobs/driver/test_java_output.py",
    "jobs/driver/test_session.py",
    "jobs/driver/test_stages.py",
    "jobs/table/test_file.py",
    "jobs/table/test_table.py",
    "jobs/test_archive.py",
    "jobs/test_plots.py",
    "plan",
    "sink/test_options.py",
    "test_options.py",
)
STARTING_SPARK: Final = {"spark", "cluster", "driver", "kill_broker"}
"""Fixtures that start a Spark, in this process or in others."""


def _missing() -> str | None:
    for library in ("pyspark", "pyarrow", "deltalake"):
        if importlib.util.find_spec(library) is None:
            return f"{library} is not installed: pip install -e '.[test,test-spark]'"
    return None if shutil.which("java") else "java is not installed: apt-get install openjdk-17-jre-headless"


def _needs_spark(path: Path) -> bool:
    return not any(path.is_relative_to(HERE / place) for place in NEEDING_NO_SPARK)


def pytest_report_header() -> str | None:
    missing = None if is_required() else _missing()
    return missing and f"tests with Spark are left out: {missing}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.name.startswith("test_") and collection_path.is_relative_to(HERE)
    if not is_test or not _needs_spark(collection_path):
        return None
    # Who runs another suite need not have what these tests import, whatever is required of the peers.
    is_elsewhere = config.option.suite not in (None, "peers")
    return True if is_elsewhere or (_missing() and not is_required()) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        starts = not STARTING_SPARK.isdisjoint(getattr(item, "fixturenames", ()))
        if starts or _needs_spark(item.path):
            item.add_marker(pytest.mark.peer)
        if starts and _missing() is not None and not is_required():
            item.add_marker(pytest.mark.skip(reason=_missing()))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session whose discovery path holds pyspark_shmq, as an installed wheel would have it."""
    from pyspark import SparkContext
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
    gateway = session.sparkContext._gateway
    session.stop()
    # Its JVM would live as long as this process; the next session, if there is one, starts its own.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
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


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Take away what a test has made at the shared broker, topics and groups: when it is repeated, it begins anew."""
    if "broker" not in request.fixturenames:
        yield
        return
    admin = request.getfixturevalue("mq").admin
    topics, groups = set(admin.topics), set(admin.groups)
    yield
    for topic in filterfalse(is_system_topic, set(admin.topics) - topics):
        admin.delete_topic(topic)
    for group in filterfalse(is_system_group, set(admin.groups) - groups):
        admin.groups[group].delete()


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
