"""One worker of a group. Start it as often as you like, and kill one with `kill -9`: the others take over its queues.

shmq serve
python examples/group_worker.py &  python examples/group_worker.py &
seq 1 1000 | shmq produce orders
"""

import os

import shmq

mq = shmq.connect()


@mq.listener("orders", group="billing", threads=4)
def bill(message: shmq.Message) -> None:
    if not message.body:
        raise shmq.Reject("an order without a body")  # to the dead letters of the group
    if message.body == b"too early" and message.attempt == 1:
        raise shmq.Retry(after=1)  # see it again in a second
    print(f"pid {os.getpid()}  queue {message.queue_id}  attempt {message.attempt}  {message.body!r}", flush=True)


mq.run()  # until Ctrl-C or SIGTERM: finishes what is running, leaves the rest to other members
mq.close()
