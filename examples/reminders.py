"""Send messages that are delivered later, and recall one before it is due.

shmq serve
python examples/reminders.py
"""

from datetime import UTC, datetime, timedelta

import shmq

with shmq.connect() as mq:
    mq.send("reminders", b"in a second", delay=timedelta(seconds=1))
    mq.send("reminders", b"in two", deliver_at=datetime.now(UTC) + timedelta(seconds=2))
    mq.send("reminders", b"as RocketMQ 4 does", delay_level=1)  # 1 s in RocketMQ's table
    never = mq.send("reminders", b"never mind", delay=60)
    mq.recall(never)

    with mq.subscribe("reminders", group="people", auto_ack=True) as reminders:
        for msg in reminders:
            print(msg.body, flush=True)
            if msg.body == b"in two":
                break
