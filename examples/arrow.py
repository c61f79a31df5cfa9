"""Read a topic as a table: Arrow batches straight from shared memory, and SQL over them.

shmq serve
pip install 'shmq[sql]'
python examples/arrow.py
"""

import duckdb

import shmq

with shmq.connect() as mq, duckdb.connect() as database:
    for number in range(1000):
        mq.send("orders", b"%d apples" % number, tag="fruit" if number % 4 else "gift")

    reader = mq.arrow("orders", columns=["tags", "body", "store_timestamp"], start="-1h")
    database.register("orders", reader)
    for tag, count in database.execute("select tags, count(*) from orders group by tags order by tags").fetchall():
        print(tag, count)

    batch = mq.arrow("orders", columns=["queue_id", "queue_offset", "body"]).read_next_batch()
    print(batch.schema.names, batch.column("body")[0].as_py())
