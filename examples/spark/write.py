"""Send the result of a query as messages: all or none of them, and only once if the program is started again.

python examples/spark/write.py [URL] [DAY]
"""

import os
import sys
from datetime import date

from pyspark.sql import SparkSession

import shmq

store = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHMQ_URL", "default")
day = date.fromisoformat(sys.argv[2]) if len(sys.argv) > 2 else date.today()
spark = SparkSession.builder.master("local[*]").appName("long-lines").getOrCreate()
lines = spark.read.format("shmq").options(store=store, topic="lines").schema("body binary, tags string").load()
long_lines = lines.filter("length(body) > 200").selectExpr(
    "body", "tags AS tag", "map('length', length(body)) AS properties"
)
(
    long_lines.withColumn("properties", long_lines.properties.cast("map<string,string>"))
    .write.format("shmq")
    .options(store=store, topic="long-lines", guarantee="transactional", writerId="long-lines", batchId=day.toordinal())
    .mode("append")
    .save()
)
with shmq.connect(store if "://" in store else f"shmq://{store}") as mq:
    print(f"{mq.admin.topics['long-lines'].messages:,} lines in topic long-lines")
