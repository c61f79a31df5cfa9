"""A producer that decides, writes its decision down, and then ends its transaction: to be killed anywhere.

    python transacting.py URL GROUP TOPIC DECISIONS

Decisions are lines of one file that all producers append to: `body commit`, `body rollback`. What is not there was not
decided, so a checker rolls it back.
"""

import os
import random
import sys
import time

import shmq


def run(url: str, group: str, topic: str, decisions: str) -> None:
    """Go on until killed."""
    file = os.open(decisions, os.O_WRONLY | os.O_APPEND)
    stem = f"{os.getpid()}-{time.monotonic_ns()}"
    with shmq.connect(url) as mq, mq.producer(group=group, timeout=5.0) as producer:
        number = 0
        while True:
            number += 1
            body = f"{stem}-{number}"
            try:
                tx = producer.transaction(topic, body.encode())
                choice = random.choice(("commit",) * 5 + ("rollback",) * 2 + ("forget",))
                if choice == "forget":
                    continue
                os.write(file, f"{body} {choice}\n".encode())
                getattr(tx, choice)()
            except shmq.ShmqError:
                time.sleep(0.01)  # not a wait: the broker was killed, or asked before us; the decision holds
            time.sleep(0.005)  # not a wait: the load


if __name__ == "__main__":
    run(*sys.argv[1:])
