"""The two processes of `shmq demo`: `python -m shmq.tools.service.demo_role produce|consume URL TOPIC`.

Each works until SIGTERM or until its parent is gone, and prints one line of JSON at the end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

import shmq
from shmq.shm.descriptors import open_standard

GROUP = "demo"
BODY = b"42 apples, please".ljust(64)
CHUNK = 1000  # messages between two looks around
PAUSE = 0.01


class _Until:
    """True until SIGTERM came or the parent died."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._told = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is the parent's to deal with

    def __bool__(self) -> bool:
        return not self._told and os.getppid() == self._parent

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._told = True


def produce(url: str, topic: str) -> int:
    """Send until the demo ends; return how many messages were stored."""
    go_on, sent = _Until(), 0
    with shmq.connect(url) as connection, connection.producer() as producer:
        while go_on:
            try:
                for number in range(sent, sent + CHUNK):
                    producer.send(topic, BODY, key=str(number))
                    sent += 1
            except shmq.SegmentFull:
                time.sleep(PAUSE)  # faster than the keeper makes room: let it
    return sent


def consume(url: str, topic: str) -> int:
    """Receive and acknowledge until the demo ends; return how many messages came."""
    go_on, received = _Until(), 0
    with shmq.connect(url) as connection, connection.subscribe(topic, group=GROUP) as subscription:
        while go_on:
            for message in subscription.receive(CHUNK, 0.1):
                message.ack()
                received += 1
    return received


def main(arguments: Sequence[str]) -> int:
    """Play one role."""
    role, url, topic = arguments
    count = {"produce": produce, "consume": consume}[role](url, topic)
    print(json.dumps({"role": role, "count": count}), flush=True)
    return 0


if __name__ == "__main__":
    open_standard()
    sys.exit(main(sys.argv[1:]))
