"""Processes that send to a broker and note every message that was acknowledged, in files outside of the store.

    a line     nanoseconds of the monotonic clock, topic, queue, offset, log position, name; written after the answer

The body follows from the name (`history.body_of`). A process that is killed leaves whole lines: each is one write.
"""

import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import NamedTuple

import shmq
from tests.crash.history.history import body_of

TOPICS = ("orders", "bills")
_SIZES = (40, 300, 2000, 6000)
_TIMEOUT_SECONDS = 5.0


class Acknowledged(NamedTuple):
    """One message that the broker has answered for."""

    at_ns: int
    topic: str
    queue_id: int
    offset: int
    log_position: int
    name: str


class Witnesses:
    """Senders on this host and one over TCP, until `end`."""

    def __init__(self, urls: list[str], directory: Path, seed: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._files = [directory / f"{seed}.{number}" for number in range(len(urls))]
        self._processes = [
            context.Process(target=_send, args=(url, str(path), f"{seed}.{number}"))
            for number, (url, path) in enumerate(zip(urls, self._files, strict=True))
        ]
        for process in self._processes:
            process.start()

    def acknowledged(self) -> list[Acknowledged]:
        """What is noted so far."""
        return [_parsed(line) for path in self._files if path.exists() for line in path.read_text().splitlines()]

    def have_all_sent(self) -> bool:
        """Whether each has been answered."""
        return all(path.exists() and path.stat().st_size for path in self._files)

    def end(self) -> None:
        """Kill them."""
        for process in self._processes:
            process.kill()
            process.join()


def _parsed(line: str) -> Acknowledged:
    at_ns, topic, queue_id, offset, log_position, name = line.split(" ")
    return Acknowledged(int(at_ns), topic, int(queue_id), int(offset), int(log_position), name)


def _send(url: str, path: str, name: str) -> None:
    chance, number = random.Random(name), 0
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while True:
        try:
            with shmq.connect(url, timeout=_TIMEOUT_SECONDS) as mq:
                while True:
                    number += 1
                    _send_one(mq, notes, f"{name}.{number}", chance)
                    time.sleep(0.001)  # not a wait: a load that leaves the broker a processor
        except shmq.ShmqError:
            time.sleep(0.02)  # not a wait: how often a refused sender tries again


def _send_one(mq: shmq.Connection, notes: int, name: str, chance: random.Random) -> None:
    topic = chance.choice(TOPICS)
    receipt = mq.send(topic, body_of(name, chance.choice(_SIZES)), key=name)
    place = f"{receipt.queue_id} {receipt.offset} {receipt.log_position}"
    os.write(notes, f"{time.monotonic_ns()} {topic} {place} {name}\n".encode())
