"""A driver that is made to be killed: three streams copy one topic, each into a topic of its own guarantee, and end.

python writing_job.py URL FROM FOLDER      FOLDER keeps the checkpoints, so the next one goes on
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

GUARANTEES = ("at_least_once", "idempotent", "transactional")


def main(url: str, source: str, folder: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2,8]")  # a task may fail that often
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "600m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    queries = [
        spark.readStream.format("shmq")
        .options(store=url, topic=source, startingOffsets="earliest", maxOffsetsPerTrigger=300, minPartitions=2)
        .schema("body binary")
        .load()
        .writeStream.format("shmq")
        .options(store=url, topic=f"{source}-{guarantee}", guarantee=guarantee, batchBytes="2k", timeoutMs=60_000)
        .option("checkpointLocation", str(folder / guarantee))
        .trigger(availableNow=True)
        .start()
        for guarantee in GUARANTEES
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
