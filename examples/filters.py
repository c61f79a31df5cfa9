"""Receive only messages that an SQL92 expression selects, and see how a wrong expression is explained.

shmq serve
python examples/filters.py
"""

import shmq

with shmq.connect() as mq:  # the broker on this host
    for region, qty in (("eu", 3), ("us", 5), ("eu", 12)):
        mq.send("orders", b"%d apples" % qty, tag="fruit", properties={"region": region, "qty": str(qty)})

    with mq.subscribe("orders", group="eu", tags="fruit", where="region = 'eu' AND qty BETWEEN 1 AND 10") as orders:
        for msg in orders.receive(wait=10):
            print(msg.properties["region"], msg.body, flush=True)
            msg.ack()

    try:
        mq.subscribe("orders", group="eu", where="region LIKE 'e%'")
    except shmq.FilterSyntaxError as error:
        print(error, flush=True)
        print(error.hint, flush=True)
