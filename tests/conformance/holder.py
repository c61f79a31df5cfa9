"""A member of a group that takes messages and holds them: to be killed.

python holder.py URL TOPIC GROUP COUNT INVISIBLE          prints one line for each message it has: its body
"""

import signal
import sys

import shmq


def run(url: str, topic: str, group: str, count: str, invisible: str) -> None:
    """Take so many messages, and hold them until killed."""
    with (
        shmq.connect(url, timeout=60.0) as mq,
        mq.simple_consumer(topic, group=group, invisible=float(invisible)) as consumer,
    ):
        held: list[shmq.Message] = []
        while len(held) < int(count):
            for message in consumer.receive(max=int(count) - len(held), wait=1.0):
                held.append(message)
                print(message.body.decode(), flush=True)
        signal.pause()


if __name__ == "__main__":
    run(*sys.argv[1:])
