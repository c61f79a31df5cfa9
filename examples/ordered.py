"""Handle the steps of an order one after the other: a message group keeps them in one queue, a listener in order.

shmq serve
python examples/ordered.py
"""

import threading

import shmq

done = threading.Event()

with shmq.connect() as mq:
    for step in ("created", "paid", "shipped"):
        mq.send("steps", step.encode(), message_group="o-42")

    @mq.listener("steps", group="ledger", ordered=True)
    def apply(message: shmq.Message) -> None:
        print(message.message_group, message.body)
        if message.body == b"shipped":
            done.set()

    mq.start()
    done.wait(20)
