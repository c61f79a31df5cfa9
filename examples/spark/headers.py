"""SQL over tags, properties, sizes and times of messages; their bodies are not read.

python examples/spark/headers.py [URL]
"""

import os
import sys

from pyspark.sql import SparkSession

store = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHMQ_URL", "default")
spark = SparkSession.builder.master("local[*]").appName("headers").getOrCreate()
headers = (
    spark.read.format("shmq")
    .options(store=store, topic="lines")
    .schema("tags string, properties map<string,string>, store_size int, store_timestamp timestamp, queue_id int")
    .load()
)
headers.createOrReplaceTempView("headers")
largest = spark.sql(
    """
    SELECT coalesce(tags, '(none)') AS tags, count(*) AS lines, count(DISTINCT properties['file']) AS files,
           sum(store_size) AS bytes, percentile_approx(store_size, 0.99) AS p99
    FROM headers GROUP BY ALL ORDER BY bytes DESC, tags LIMIT 5
    """
)
for row in largest.collect():
    print(
        f"{row.tags:>10}  {row.lines:>9,} lines  {row.files:>5,} files  {row.bytes:>12,} bytes  99 % below {row.p99:,}"
    )
