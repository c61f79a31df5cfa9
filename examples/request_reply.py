"""Requests and replies: a replier is a function, and a request waits for what the function returns.

shmq serve
python examples/request_reply.py
"""

import shmq

PRICES = {b"apple": b"42", b"pear": b"37"}

with shmq.connect() as mq:

    @mq.replier("prices", group="pricing")
    def price(message: shmq.Message) -> bytes:
        return PRICES[message.body]

    mq.start()
    for article in PRICES:
        print(article, "costs", mq.request("prices", article, timeout=5).body)
