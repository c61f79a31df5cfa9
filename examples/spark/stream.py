"""Write messages that came since the last run to Parquet: a stream that ends when it has caught up.

python examples/spark/stream.py [URL] [FOLDER]
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

store = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHMQ_URL", "default")
folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="shmq-stream-"))
spark = SparkSession.builder.master("local[*]").appName("stream").getOrCreate()
query = (
    spark.readStream.format("shmq")
    .options(store=store, topic="lines", startingOffsets="earliest", maxBytesPerTrigger="8m", commitGroup="spark")
    .schema("tags string, body binary, store_timestamp timestamp")
    .load()
    .writeStream.format("parquet")
    .option("path", str(folder / "lines"))
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
new = sum(progress["numInputRows"] for progress in query.recentProgress)
print(f"{new:,} new lines, {spark.read.parquet(str(folder / 'lines')).count():,} in {folder}/lines")
