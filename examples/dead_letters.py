"""A message that cannot be handled goes to the dead letters of its group, and is sent again after the repair.

shmq serve
python examples/dead_letters.py
"""

import shmq

with shmq.connect() as mq:
    mq.send("orders", b"one without a price", key="o-1")
    with mq.subscribe("orders", group="billing") as subscription:
        for message in subscription.receive(1, wait=10):
            subscription.reject(message, "no price")  # message.nack() would bring it again in 10 s, 30 s, …

        for letter in mq.admin.dlq("billing"):
            print("dead:", letter.body, "because of", letter.reason)
            letter.resend()

        for message in subscription.receive(1, wait=10):
            print("again:", message.body)
            message.ack()
