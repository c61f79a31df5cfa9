"""A listener that fails gets its message again, later each time; other messages do not wait for it.

shmq serve
python examples/retry.py
"""

import threading

import shmq

done = threading.Event()
with shmq.connect() as mq:

    @mq.listener("payments", group="billing", attempts_max=5)
    def charge(message: shmq.Message) -> None:
        print(f"attempt {message.attempt}: {message.body!r}", flush=True)
        if message.body == b"the card of o-1" and message.attempt < 3:
            raise shmq.Retry(after=0.5)  # without `after`, RocketMQ's delays apply: 10 s, 30 s, 1 minute …
        if message.attempt == 3:
            done.set()

    mq.start()
    mq.send("payments", b"the card of o-1")
    mq.send("payments", b"the card of o-2")
    done.wait(30)
    mq.stop()
