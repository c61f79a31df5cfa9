"""Clients that send every kind of message a broker can be given, and write down what they were told.

    plain     send()                     batch   send_batch()
    slot      reserve()                  group   send(message_group=…), ordered
    tx        a transaction that commits back    one that is rolled back: never delivered
    timed     send(delay=…) of some milliseconds; delivered on its topic later

Each writer is a thread with a connection of its own and sends in turn what `kinds` names until it is stopped. Errors
that say "not stored" are losses; after all others the message may be stored. A writer that nothing holds up fills a
disk in memory; `pause_seconds` after each send bounds that.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from typing import Self

import shmq
from tests.crash.history.history import History, body_of

KINDS = ("plain", "batch", "slot", "group", "tx", "back", "timed")
TOPIC_OF = {"plain": "plain", "batch": "batch", "slot": "plain", "group": "ordered"}
TOPIC_OF |= {"tx": "placed", "back": "placed", "timed": "later"}
_NOT_STORED = (shmq.SegmentFull, shmq.FlowControl, shmq.BrokerBusy)
_SIZES = (0, 40, 200, 1000, 3000, 9000)


class Workload:
    """Writers on one broker: `with Workload(url, history, seed=1):`."""

    def __init__(
        self,
        url: str,
        history: History,
        *,
        seed: int,
        writers: int = 3,
        kinds: Sequence[str] = KINDS,
        first_writer: int = 0,
        pause_seconds: float = 0.0,
    ) -> None:
        self._url = url
        self._history = history
        self._kinds = kinds
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self.faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(writer, random.Random(f"{seed}/{writer}")), daemon=True)
            for writer in range(first_writer, first_writer + writers)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self, timeout: float = 120.0) -> None:
        """Let every writer finish its send. Raises what a writer did not expect."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout)
            assert not thread.is_alive(), "a writer hangs"
        if self.faults:
            raise self.faults[0]

    def _write(self, writer: int, chance: random.Random) -> None:
        number = 0
        try:
            with shmq.connect(self._url, timeout=20.0) as mq, mq.producer(group=f"writer-{writer}") as producer:
                while not self._stopping.is_set():
                    kind = chance.choice(self._kinds)
                    names = [f"{kind}-{writer}-{number + more}" for more in range(3 if kind == "batch" else 1)]
                    number += len(names)
                    self._send(mq, producer, kind, names, chance)
                    self._stopping.wait(self._pause_seconds)
        except shmq.ShmqError as error:
            if not self._stopping.is_set():
                self.faults.append(error)
        except BaseException as error:
            self.faults.append(error)

    def _send(
        self, mq: shmq.Connection, producer: shmq.Producer, kind: str, names: list[str], chance: random.Random
    ) -> None:
        topic = TOPIC_OF[kind]
        bodies = [body_of(name, chance.choice(_SIZES)) for name in names]
        for name in names:
            self._history.attempt(name)
        try:
            receipts = self._receipts(mq, producer, kind, topic, bodies)
        except _NOT_STORED:
            for name in names:
                self._history.loss(name)
            self._stopping.wait(0.01)
            return
        except shmq.ShmqError:
            self._stopping.wait(0.01)
            return
        for name, receipt in zip(names, receipts, strict=True):
            is_placed = kind in ("plain", "batch", "slot", "group")
            place = (topic, receipt.queue_id, receipt.offset) if receipt is not None and is_placed else None
            self._history.ack(name, place)

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
