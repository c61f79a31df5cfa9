"""One member of a group, for tests: prints its queues and what it receives, until its stdin is closed.

python member.py URL TOPIC GROUP [hold]        hold: acknowledge nothing
"""

import os
import sys
import threading
import time

import shmq


def say(*words: object) -> None:
    """Write one line at once: two threads do."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(url: str, topic: str, group: str, *words: str) -> None:
    with shmq.connect(url, timeout=60) as mq, mq.subscribe(topic, group=group) as subscription:

        def wait_for_the_end() -> None:
            sys.stdin.read()
            subscription.stop()

        def report_queues() -> None:
            told: list[int] | None = None
            while True:
                queues = subscription.queues
                if queues != told:
                    say("queues", *queues)
                    told = queues
                time.sleep(0.005)  # not a wait: it reports until it ends

        for body in (wait_for_the_end, report_queues):
            threading.Thread(target=body, daemon=True).start()
        for message in subscription:
            if "hold" not in words:
                message.ack()
            say("message", message.queue_id, message.offset, message.body.decode(), message.attempt)


main(*sys.argv[1:])
