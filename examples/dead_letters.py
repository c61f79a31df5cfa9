"""Reject a message, so that it becomes a dead letter of its group; list the dead letters, and send one again.

shmq serve
python examples/dead_letters.py
"""

import shmq

with shmq.connect() as mq:
    mq.send("orders", b"one without a price", key="o-1")
    with mq.subscribe("orders", group="billing") as subscription:
        for message in subscription.receive(1, wait=10):
            subscription.reject(message, "no price")  # message.nack() would deliver it again after 10 s, 30 s, …

        for letter in mq.admin.dlq("billing"):
            print("dead:", letter.body, "because of", letter.reason)
            letter.resend()

        for message in subscription.receive(1, wait=10):
            print("again:", message.body)
            message.ack()
