"""Transactions: a message becomes visible if, and only if, the database has the order.

shmq serve
python examples/transaction.py
"""

import shmq

orders: dict[str, int] = {}  # the database

with shmq.connect() as mq:

    @mq.transaction_checker("shop")
    def outcome(message: shmq.Message) -> shmq.TxState:  # asked when a producer died before it could say
        return shmq.COMMIT if message.key in orders else shmq.ROLLBACK

    with mq.producer(group="shop") as producer:
        for key, quantity in (("o-1", 3), ("o-2", -1)):
            try:
                with producer.transaction("placed", b"%d" % quantity, key=key):
                    if quantity < 0:
                        raise ValueError(f"{key} cannot be delivered")
                    orders[key] = quantity
            except ValueError as error:
                print("rolled back:", error)

    with mq.subscribe("placed", group="billing") as subscription:
        for message in subscription.receive(2, wait=1):
            print("placed:", message.key, message.body)
            message.ack()
