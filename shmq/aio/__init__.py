"""The asyncio twin of shmq: the same names, one `await` for each operation.

    async with shmq.aio.connect() as mq:
        await mq.send("orders", b"42 apples")
        async with mq.subscribe("orders", group="billing") as subscription:
            async for message in subscription:
                await message.ack()

Faces only: what is done is done by the sync core. A send is tried on the loop without ever waiting; waiting for
messages happens on one thread of each consumer that waits.
"""

from shmq.aio.admin import Admin, DeadLetter, Group
from shmq.aio.connection import Connection, connect
from shmq.aio.consumer import PullConsumer, SimpleConsumer, Subscription
from shmq.aio.message import Message, Slot
from shmq.aio.producer import Producer
from shmq.aio.topic import Topic
from shmq.aio.transaction import Transaction

__all__ = [
    "Admin",
    "Connection",
    "DeadLetter",
    "Group",
    "Message",
    "Producer",
    "PullConsumer",
    "SimpleConsumer",
    "Slot",
    "Subscription",
    "Topic",
    "Transaction",
    "connect",
]
