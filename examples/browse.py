"""Look at stored messages without consuming them: by key, by time, by id.

shmq serve
python examples/browse.py
"""

import shmq

with shmq.connect() as mq:
    for article in ("apples", "beets", "cherries"):
        mq.send("orders", article.encode(), key=f"o-{article}", tag="fruit" if article != "beets" else "veg")

    for message in mq.browse("orders", since="-1h", tags="fruit"):
        print("fruit of the last hour:", message.body)
    (beets,) = mq.browse("orders", key="o-beets")
    print("by key:", beets.body, "at queue", beets.queue_id, "offset", beets.offset)
    print("by id:", mq.browse("orders", id=beets.message_id)[0].body)
