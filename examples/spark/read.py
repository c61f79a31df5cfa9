"""Count the most frequent words of a topic: a batch query that reads only the bodies.

python examples/spark/read.py [URL]
"""

import os
import sys

from pyspark.sql import SparkSession

store = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SHMQ_URL", "default")
spark = SparkSession.builder.master("local[*]").appName("words").getOrCreate()
lines = spark.read.format("shmq").options(store=store, topic="lines").schema("body binary").load()
words = lines.selectExpr("explode(split(lower(string(body)), '[^a-z]+')) AS word").filter("length(word) > 3")
for row in words.groupBy("word").count().orderBy("count", "word", ascending=[False, True]).limit(5).collect():
    print(f"{row['count']:>8,}  {row.word}")
