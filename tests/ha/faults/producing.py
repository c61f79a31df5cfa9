"""A program on one of two hosts: it sends, or reads, and prints each number.

python producing.py send     sends numbered messages over shared memory and, every other, over TCP; prints "ok N" for
                             one that was acknowledged, "not N" and why for another
python producing.py read     prints "read N" for every one that a new group reads, and ends when nothing comes any more
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys

import shmq

SEND_SECONDS = 2.0
READ_SECONDS = 5.0
TOPIC = "orders"


def say(line: str) -> None:
    """Write one line at once."""
    os.write(1, f"{line}\n".encode())


def send() -> None:
    """Send until killed; a message that is not confirmed in time is neither said nor sent again."""
    with contextlib.ExitStack() as open_things:
        ways = [open_things.enter_context(shmq.connect(url)) for url in ("shmq://pair", "rocketmq://127.0.0.1:9876")]
        for number in itertools.count():
            try:
                ways[number % 2].send(TOPIC, b"%d" % number + b" " * 500, timeout=SEND_SECONDS)
            except shmq.ShmqError as error:
                say(f"not {number} {type(error).__name__}")
                continue
            say(f"ok {number}")


def read() -> None:
    """Read everything."""
    with (
        shmq.connect("shmq://pair") as mq,
        mq.subscribe(TOPIC, group=f"readers-{os.getpid()}", start="earliest") as subscription,
    ):
        while messages := subscription.receive(64, READ_SECONDS):
            for message in messages:
                say(f"read {int(bytes(message.body))}")
                message.ack()


{"send": send, "read": read}[sys.argv[1]]()
