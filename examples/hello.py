"""Send a message and receive it. Ctrl-C ends it.

shmq serve
python examples/hello.py
"""

import shmq

with shmq.connect() as mq:  # the broker on this host
    receipt = mq.send("orders", b"42 apples", tag="fruit", key="order-42")
    print(receipt.message_id, receipt.queue_id, receipt.offset, flush=True)

    for msg in mq.subscribe("orders", group="billing"):
        print(msg.key, msg.tag, msg.body, flush=True)
        msg.ack()
