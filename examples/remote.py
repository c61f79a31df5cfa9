"""The same API over TCP, against shmq or any RocketMQ broker.

python examples/remote.py rocketmq://127.0.0.1:9876
"""

import sys

import shmq

with shmq.connect(sys.argv[1] if len(sys.argv) > 1 else "rocketmq://127.0.0.1:9876") as mq:
    receipt = mq.send("orders", b"42 apples", tag="fruit", key="order-42")
    print("stored", receipt.message_id, "in queue", receipt.queue_id)
    for message in mq.subscribe("orders", group="billing", tags="fruit"):
        print(message.key, message.tag, message.body)
        message.ack()
        break
