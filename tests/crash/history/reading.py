"""Groups that read everything while faults go on, and write down what they were given.

    subscription   of each topic; every tenth message is given back once, for some milliseconds
    pop            a simple consumer of the topic `plain`, in a group of its own

A reader goes on after every error; what it has to get in the end is decided by `delivered_anomalies`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, Self

import shmq
from tests.crash.history.history import name_in
from tests.crash.history.writers import TOPIC_OF

_PAUSE_SECONDS = 0.05
_WAIT_SECONDS = 0.5


class Reading:
    """Readers on one broker: `with Reading(url, seed=1):`."""

    def __init__(self, url: str, *, seed: int) -> None:
        self._url = url
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self.given: dict[str, list[bytes]] = {}  # group -> bodies
        self._names: dict[str, set[str]] = {}
        self.faults: list[BaseException] = []
        works: list[tuple[str, Callable[[shmq.Connection], Any]]] = [("pop", _popping)]
        works += [(f"all-{topic}", _subscribing(topic)) for topic in sorted(set(TOPIC_OF.values()))]
        self._threads = [
            threading.Thread(target=self._read, args=(group, make, random.Random(f"{seed}/{group}")), daemon=True)
            for group, make in works
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a reader hangs"

    def wait_for(self, group: str, names: set[str], seconds: float) -> bool:
        """Wait until a group was given all of these messages; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: names <= self._names.get(group, set()), seconds)

    def _read(self, group: str, make: Callable[[shmq.Connection], Any], chance: random.Random) -> None:
        given_back: set[str] = set()
        while not self._stopping.is_set():
            try:
                with shmq.connect(self._url, timeout=20.0) as mq, make(mq) as consumer:
                    while not self._stopping.is_set():
                        for message in consumer.receive(20, _WAIT_SECONDS):
                            self._take(group, message, chance, given_back)
            except shmq.ShmqError:
                self._stopping.wait(_PAUSE_SECONDS)
            except BaseException as error:
                self.faults.append(error)
                return

    def _take(self, group: str, message: shmq.Message, chance: random.Random, given_back: set[str]) -> None:
        body = bytes(message.body)
        name = name_in(body)
        if name is not None and name not in given_back and chance.random() < 0.1:
            given_back.add(name)
            message.nack(after=chance.choice((0.0, 0.02)))
            return
        with self._changed:
            self.given.setdefault(group, []).append(body)
            if name is not None:
                self._names.setdefault(group, set()).add(name)
            self._changed.notify_all()
        message.ack()


def _popping(mq: shmq.Connection) -> Any:
    return mq.simple_consumer("plain", group="pop", invisible=10.0)


def _subscribing(topic: str) -> Callable[[shmq.Connection], Any]:
    return lambda mq: mq.subscribe(topic, group=f"all-{topic}")
