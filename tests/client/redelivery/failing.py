"""A member that gives back whatever it gets: to be killed anywhere.

python failing.py URL KIND GROUP TOPIC          KIND: push, or pop
"""

import sys
import time

import shmq


def run(url: str, kind: str, group: str, topic: str) -> None:
    """Go on until killed."""
    while True:
        try:
            with shmq.connect(url, timeout=5.0) as mq:
                if kind == "pop":
                    with mq.simple_consumer(topic, group=group, invisible=1.0) as consumer:
                        while True:
                            for message in consumer.receive(8, 0.5):
                                message.nack(after=0.3)
                else:
                    with mq.subscribe(topic, group=group, start="first") as subscription:
                        while True:
                            for message in subscription.receive(8, 0.5):
                                message.nack()
        except shmq.ShmqError:
            time.sleep(0.05)  # not a wait: the broker was killed


if __name__ == "__main__":
    run(*sys.argv[1:])
