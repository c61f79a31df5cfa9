"""The process of `cluster.Driver`: one Spark session; calls come as JSON lines and are answered the same way."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def session(master: str, local: str, settings: dict[str, str]) -> Any:
    """A session that is small and listens on loopback only."""
    from pyspark.sql import SparkSession

    given = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": local,
        "spark.executor.heartbeatInterval": "60s",
        "spark.network.timeout": "600s",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.worker.faulthandler.enabled": "true",
        **settings,
    }
    builder = SparkSession.builder.master(master).appName("shmq-tests")
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(calls: int, answers: int) -> None:
    """Answer calls until there are no more."""
    with os.fdopen(calls) as lines, os.fdopen(answers, "w", buffering=1) as out:
        spark = session(**json.loads(lines.readline()))
        out.write('{"result": null}\n')
        for line in lines:
            call = json.loads(line)
            module, _, function = call["function"].partition(":")
            try:
                result = getattr(importlib.import_module(module), function)(spark, **call["arguments"])
                text = json.dumps({"result": result})
            except Exception as error:  # the test that called judges it
                text = json.dumps({"error": f"{type(error).__name__}: {error}"})
            out.write(text + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
