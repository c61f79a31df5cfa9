"""Receive a batch and settle each message by itself; a message that is not settled in time is delivered again.

shmq serve
python examples/simple_consumer.py
"""

import shmq

with shmq.connect() as mq:
    mq.send_batch("orders", [b"apples", b"beets", b"cherries"])
    with mq.simple_consumer("orders", group="packing", invisible=30) as consumer:
        for message in consumer.receive(max=32, wait=10):
            if message.body == b"beets":
                message.nack(after=0.5)  # not now
            else:
                print("packed", message.body)
                message.ack()
        for message in consumer.receive(max=32, wait=10):
            print("packed at attempt", message.attempt, message.body)
            message.ack()
