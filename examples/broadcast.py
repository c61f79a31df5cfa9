"""Broadcasting: every member gets every message.

shmq serve
python examples/broadcast.py
"""

import shmq

with shmq.connect() as mq:
    mq.admin.create_topic("prices-changed")
    shops = [mq.subscribe("prices-changed", model="broadcasting") for _ in range(2)]
    mq.send("prices-changed", b"apples cost 42")
    for number, shop in enumerate(shops, start=1):
        for message in shop.receive(1, wait=10):
            print(f"shop {number}: {message.body!r}")
        shop.close()
