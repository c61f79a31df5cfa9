"""A process that writes to a topic or reads it until its stdin is closed, so that a test can stop it anywhere.

python stopped.py URL TOPIC send NAME         sends `NAME n` for ever; while there is no such topic it tries again
python stopped.py URL TOPIC receive GROUP     receives, holds each message until the next one came, acknowledges it

Each line that it prints is one fact: `sent BODY`, `refused`, `got TOPIC BODY`.
"""

import os
import sys
import threading

import shmq


def say(*words: str) -> None:
    """Write one line at once."""
    os.write(1, (" ".join(words) + "\n").encode())


def send(mq: shmq.Connection, topic: str, name: str) -> None:
    number = 0
    while True:
        body = f"{name}-{number}"
        try:
            mq.send(topic, body.encode())
            say("sent", body)
        except shmq.ShmqError:
            say("refused")
        number += 1


def receive(mq: shmq.Connection, topic: str, group: str) -> None:
    held = None
    for message in mq.subscribe(topic, group=group):
        say("got", message.topic, message.body.decode())
        if held is not None:
            held.ack()
        held = message


def main(url: str, topic: str, what: str, name: str) -> None:
    def end() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    (send if what == "send" else receive)(shmq.connect(url, timeout=60), topic, name)


main(*sys.argv[1:])
