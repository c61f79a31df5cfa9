"""The writers of one process: they send every kind of message a broker can be given, and report the answers.

    plain     send()                     batch   send_batch()
    slot      reserve()                  group   send(message_group=…), ordered
    tx        a transaction that commits back    one that is rolled back: never delivered
    timed     send(delay=…) of some milliseconds; delivered on its topic later

Each writer is a thread with a connection of its own and sends in turn what `kinds` names until it is stopped. Errors
that say "not stored" are losses; after all others the message may be stored. A writer that nothing holds up fills a
disk in memory; `pause_seconds` after each send bounds that.

`workload.py` runs this as a program: settings in the first argument, one line on stdout for each answer that came,
before anything follows from it; the end of stdin ends it.

    attempt NAME | ack NAME [TOPIC QUEUE OFFSET] | loss NAME | fault TEXT
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import shmq
from tests.crash.history.history import Place, body_of

KINDS = ("plain", "batch", "slot", "group", "tx", "back", "timed")
TOPIC_OF = {"plain": "plain", "batch": "batch", "slot": "plain", "group": "ordered"}
TOPIC_OF |= {"tx": "placed", "back": "placed", "timed": "later"}
_NOT_STORED = (shmq.SegmentFull, shmq.FlowControl, shmq.BrokerBusy)
_SIZES = (0, 40, 200, 1000, 3000, 9000)


class Told(Protocol):
    """Takes the answers that writers got; a `History` does."""

    def attempt(self, name: str) -> None:
        """Say that a send begins."""

    def ack(self, name: str, place: Place | None) -> None:
        """Say that the broker answered."""

    def loss(self, name: str) -> None:
        """Say that the answer was: certainly not stored."""


class Lines:
    """Tells by lines on a descriptor: each is there as a whole when the call returns, whatever is killed then."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def attempt(self, name: str) -> None:
        """Say that a send begins."""
        self.say("attempt", name)

    def ack(self, name: str, place: Place | None) -> None:
        """Say that the broker answered."""
        self.say("ack", name, *(place or ()))

    def loss(self, name: str) -> None:
        """Say that the answer was: certainly not stored."""
        self.say("loss", name)

    def say(self, *words: object) -> None:
        """Write one line."""
        os.write(self._descriptor, " ".join(map(str, words)).encode() + b"\n")


class Writers:
    """The threads that send."""

    def __init__(
        self,
        url: str,
        told: Told,
        *,
        seed: int,
        writers: int,
        kinds: Sequence[str],
        first_writer: int,
        pause_seconds: float,
    ) -> None:
        self._url = url
        self._told = told
        self._kinds = kinds
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self.faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(writer, random.Random(f"{seed}/{writer}")), daemon=True)
            for writer in range(first_writer, first_writer + writers)
        ]

    def start(self) -> None:
        """Let every writer begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let every writer finish its send."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _write(self, writer: int, chance: random.Random) -> None:
        numbers = itertools.count()
        try:
            while not self._stopping.is_set():
                self._write_connected(writer, numbers, chance)
        except shmq.ShmqError as error:
            if not self._stopping.is_set():
                self.faults.append(error)
        except BaseException as error:
            self.faults.append(error)

    def _write_connected(self, writer: int, numbers: Iterator[int], chance: random.Random) -> None:
        try:
            connection = shmq.connect(self._url, timeout=20.0)
        except shmq.BrokerNotRunning:  # it was killed, and its next start syncs on a slow disk
            return
        with connection as mq, mq.producer(group=f"writer-{writer}") as producer:
            while not self._stopping.is_set():
                kind = chance.choice(self._kinds)
                names = [f"{kind}-{writer}-{next(numbers)}" for _ in range(3 if kind == "batch" else 1)]
                self._send(mq, producer, kind, names, chance)
                self._stopping.wait(self._pause_seconds)

    def _send(
        self, mq: shmq.Connection, producer: shmq.Producer, kind: str, names: list[str], chance: random.Random
    ) -> None:
        topic = TOPIC_OF[kind]
        bodies = [body_of(name, chance.choice(_SIZES)) for name in names]
        for name in names:
            self._told.attempt(name)
        try:
            receipts = self._receipts(mq, producer, kind, topic, bodies)
        except _NOT_STORED:
            for name in names:
                self._told.loss(name)
            self._stopping.wait(0.01)
            return
        except shmq.ShmqError:
            self._stopping.wait(0.01)
            return
        for name, receipt in zip(names, receipts, strict=True):
            is_placed = kind in ("plain", "batch", "slot", "group")
            place = (topic, receipt.queue_id, receipt.offset) if receipt is not None and is_placed else None
            self._told.ack(name, place)

    def _receipts(
        self, mq: shmq.Connection, producer: shmq.Producer, kind: str, topic: str, bodies: list[bytes]
    ) -> Sequence[shmq.Receipt | None]:
        match kind:
            case "batch":
                return mq.send_batch(topic, bodies)
            case "slot":
                with mq.reserve(topic, len(bodies[0])) as slot:
                    slot.view[:] = bodies[0]
                return [slot.receipt]
            case "group":
                return [mq.send(topic, bodies[0], message_group="one")]
            case "tx":
                with producer.transaction(topic, bodies[0]):
                    pass
                return [None]
            case "back":
                try:
                    with producer.transaction(topic, bodies[0]):
                        raise _RollBack
                except _RollBack:
                    return [None]
            case "timed":
                return [mq.send(topic, bodies[0], delay=0.02)]
        return [mq.send(topic, bodies[0])]


class _RollBack(Exception):
    """Ends a transaction."""


def main() -> None:
    """Send until stdin ends."""
    settings = json.loads(sys.argv[1])
    lines = Lines(sys.stdout.fileno())
    writers = Writers(settings.pop("url"), lines, **settings)
    writers.start()
    sys.stdin.read()
    writers.stop()
    for fault in writers.faults:
        lines.say("fault", repr(fault).replace("\n", " "))
