"""The Spark session of a job: taken if there is one, else started, and then ended by the job.

A session of spark-submit, or one that exists already, is taken as it is. One that is started here runs tasks again that
fail (Spark's `local[*]` alone does not), is bound to loopback when it is local, and has no web page.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import ConnectError, UsageError
from shmq.spark.jobs.driver.java_output import LEVEL_VARIABLE, listened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS: Final = 4  # of one task
_LOCAL = re.compile(r"local(?:\[(\*|\d+)\])?")
_LOG_LEVEL: Final = "FATAL"  # a failure is reported where it is met, and a task that is tried again is no news
_PYTHON_LOGGER: Final = "SQLQueryContextLogger"
_SAFE_PATH: Final = "PYTHONSAFEPATH"  # python -m does not look in the current directory first
_SHUFFLES_MIN: Final = 4
_STANDALONE: Final = "spark://"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit's Java runs already, and listens there
_LEVEL_SETTING: Final = "spark.log.level"
_CONNECT_SECONDS: Final = 5.0
_CAUSE: Final = re.compile(r"^:?\s*(?:[a-z]+\.)+\w*(?:Exception|Error): ")
_EXTRA: Final = "pip install 'shmq[spark]'"


def require(*modules: str, extra: str = _EXTRA) -> None:
    """Check that what a job needs can be imported.

    Raises:
        UsageError: with what to install.
    """
    import importlib.util

    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {' and '.join(missing)}, which is not installed", hint=extra)


@contextmanager
def open_session(
    name: str,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    heard: Callable[[str], None] = lambda line: None,
) -> Iterator[SparkSession]:
    """Give a session for the length of a with block.

    Args:
        master: as spark-submit's; None takes what spark-submit says, else `local[*]`.
        heard: gets what Spark's Java process writes to stderr, line by line.

    Raises:
        UsageError: PySpark or Java is missing, or Spark does not take the settings.
        ConnectError: no master answers there.
    """
    require("pyspark", "pyarrow", "numpy")
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    if LEVEL_VARIABLE not in os.environ:
        PySparkLogger.getLogger(_PYTHON_LOGGER).setLevel(logging.CRITICAL)  # else it writes what is raised, as JSON
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise UsageError("Spark needs Java 17", hint="apt-get install openjdk-17-jre-headless")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    settings = _settings(master, dict(conf or {}))
    check_master(settings["spark.master"])
    for key, value in settings.items():
        builder = builder.config(key, value)
    interrupt = signal.getsignal(signal.SIGINT)
    with listened(heard), _workers_import_safely():
        session = _started(builder)
    signal.signal(signal.SIGINT, interrupt)  # Spark takes Ctrl-C for itself
    level = os.environ.get(LEVEL_VARIABLE) or session.conf.get(_LEVEL_SETTING, None) or _LOG_LEVEL
    session.sparkContext.setLogLevel(level)
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):  # the driver's Java may be gone already
            session.stop()


@contextmanager
def _workers_import_safely() -> Iterator[None]:
    """Keep the current directory out of what local Python workers import: Spark's Java starts them by `python -m`.

    A checkout of shmq holds a directory `shmq` without `shmq.spark`; started in it, workers would take that one.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def check_master(url: str) -> None:
    """Check that a standalone master is there; Spark would try for a minute, and say so in its log only.

    Raises:
        ConnectError: none of the hosts of the URL answers.
    """
    if not url.startswith(_STANDALONE):
        return
    failure: OSError | ValueError | None = None
    for place in url.removeprefix(_STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            failure = error
    reason = getattr(failure, "strerror", None) or failure
    raise ConnectError(
        f"no Spark master at {url}: {reason}",
        hint="sbin/start-master.sh of Spark starts one; without --master: local[*]",
    )


def _started(builder: Any) -> SparkSession:
    try:
        session: SparkSession = builder.getOrCreate()
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = next((line for line in lines if _CAUSE.match(line)), lines[0] if lines else type(error).__name__)
        raise UsageError(
            f"Spark did not start: {_CAUSE.sub('', said)}", hint="look at --master and --conf; Spark needs Java 17"
        ) from error
    return session


def _settings(master: str | None, conf: dict[str, str]) -> dict[str, str]:
    from pyspark import SparkConf, SparkContext

    if _SUBMITTED in os.environ:
        SparkContext._ensure_initialized()  # its settings are in its Java, where SparkConf looks only then
    submitted = SparkConf()  # what spark-submit and spark-defaults.conf say
    chosen = master or submitted.get("spark.master", None) or "local[*]"
    local = _LOCAL.fullmatch(chosen)
    found = {
        "spark.master": f"local[{local[1] or 1},{_ATTEMPTS}]" if local else chosen,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.faulthandler.enabled": "true",
    }
    if local:
        cores = os.cpu_count() or 1 if local[1] in (None, "*") else int(local[1])
        found["spark.sql.shuffle.partitions"] = str(max(_SHUFFLES_MIN, 2 * cores))  # 200 tasks for two processors
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if _SUBMITTED in os.environ:  # that Java's output is not filtered until the session is there
        found[_LEVEL_SETTING] = os.environ.get(LEVEL_VARIABLE) or _LOG_LEVEL
    found = {key: value for key, value in found.items() if key == "spark.master" or not submitted.contains(key)}
    return {**found, **conf}
