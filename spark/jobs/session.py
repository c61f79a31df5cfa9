"""Owns the Spark session of a job: found, started where a job wants it, and ended by whoever started it.

It does not know jobs. A session of spark-submit, or one that exists already, is taken as it is. One that is started
here runs tasks again that fail (Spark's `local[*]` alone does not), is bound to loopback when it is local, and has no
web page.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from shmq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS: Final = 4  # of one task
_LOCAL = re.compile(r"local(?:\[(\*|\d+)\])?")
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
def open_session(name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Give a session for the length of a with block.

    Args:
        master: as spark-submit's; None takes what spark-submit says, else `local[*]`.

    Raises:
        UsageError: PySpark or Java is missing.
    """
    require("pyspark", "pyarrow", "numpy")
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise UsageError("Spark needs Java 17", hint="apt-get install openjdk-17-jre-headless")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    for key, value in _settings(master, dict(conf or {})).items():
        builder = builder.config(key, value)
    interrupt = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    signal.signal(signal.SIGINT, interrupt)  # Spark takes Ctrl-C for itself
    session.sparkContext.setLogLevel(os.environ.get("SHMQ_SPARK_LOG_LEVEL", "ERROR"))
    try:
        yield session
    finally:
        with contextlib.suppress(Exception):  # the driver's Java may be gone already
            session.stop()


def _settings(master: str | None, conf: dict[str, str]) -> dict[str, str]:
    from pyspark import SparkConf

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
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    found = {key: value for key, value in found.items() if key == "spark.master" or not submitted.contains(key)}
    return {**found, **conf}
