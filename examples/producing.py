"""All ways to send: by key, as a batch, compressed, in the background, without a receipt.

shmq serve
python examples/producing.py
"""

import shmq

with shmq.connect() as mq, mq.producer(group="shop", queue_selector="key", compression="zlib") as producer:
    queues = {producer.send("orders", b"paid", key="o-42").queue_id for _ in range(3)}
    print("queues of o-42:", len(queues))
    print(
        "a batch has one queue, too:",
        len({receipt.queue_id for receipt in producer.send_batch("orders", [b"x"] * 100)}),
    )
    producer.send("orders", b"long " * 10_000, key="o-43")
    (stored,) = mq.browse("orders", key="o-43")
    print("packed, and whole again:", stored.body == b"long " * 10_000)
    pending = [producer.send_nowait("orders", b"%d" % number) for number in range(10)]
    print("in the background:", len({each.result(10).message_id for each in pending}))
    producer.send_oneway("orders", b"no answer is awaited")
