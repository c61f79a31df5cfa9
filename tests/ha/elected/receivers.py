"""Consumers that go on while brokers of a group die, and what they got: members over TCP and on a host, and POP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple, Protocol

import shmq

_WAIT_SECONDS = 0.2
_CONNECT_AGAIN_SECONDS = 0.1
INVISIBLE_SECONDS = 10.0


class Received(Protocol):
    """A message, as a consumer of any kind has it."""

    @property
    def body(self) -> Any:
        """Bytes."""

    @property
    def queue_id(self) -> int:
        """Of the queue."""

    @property
    def offset(self) -> int:
        """In the queue."""

    @property
    def attempt(self) -> int:
        """How often it was given out, from 1 on."""

    def ack(self) -> object:
        """Have it settled."""


class Messages(Protocol):
    """A consumer of any kind."""

    def receive(self, max: int, wait: float) -> Sequence[Received]:
        """Return some messages, none after a while."""


Place = tuple[int, int]  # queue id and offset


class Arrival(NamedTuple):
    """One time that an ordered message came; the connections of a receiver are numbered from 1."""

    sender: str
    number: int
    attempt: int
    queue_id: int
    offset: int
    connection: int


Subscribe = Callable[[Any], AbstractContextManager[Messages]]


class Receiver:
    """A member of a group that acknowledges what it gets.

    Args:
        connect: None: there is no broker to connect to now.
        is_here: whether that is still the one to be connected to.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractContextManager[Any] | None],
        subscribe: Subscribe,
        is_here: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.received: dict[bytes, float] = {}  # when each body came for the first time, in that order
        self.places: dict[Place, bytes] = {}
        self.changed: dict[Place, set[bytes]] = {}  # places that held more than one body
        self.arrivals: list[Arrival] = []
        self.times = 0
        self._connections = 0
        self._connect, self._subscribe, self._is_here = connect, subscribe, is_here
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), self.name

    def _note(self, message: Received) -> None:
        body = bytes(message.body)
        self.times += 1
        self.received.setdefault(body, time.monotonic())
        if (place := place_in_order(body)) is not None:
            row = Arrival(*place, message.attempt, message.queue_id, message.offset, self._connections)
            self.arrivals.append(row)
        if message.attempt == 1:  # a later one has the place of its retry
            place = message.queue_id, message.offset
            if self.places.setdefault(place, body) != body:
                self.changed.setdefault(place, {self.places[place]}).add(body)

    def _run(self) -> None:
        while not self._is_over.is_set():
            with suppress(shmq.ShmqError):
                self._receive()
            self._is_over.wait(_CONNECT_AGAIN_SECONDS)

    def _receive(self) -> None:
        mq = self._connect()
        if mq is None:
            return
        self._connections += 1
        with mq, self._subscribe(mq) as messages:
            while not self._is_over.is_set() and self._is_here():
                for message in messages.receive(32, _WAIT_SECONDS):
                    self._note(message)
                    message.ack()


def place_in_order(body: bytes) -> tuple[str, int] | None:
    """The sender and the number of a message of an ordered sender; None of another one."""
    name, _, number = body.decode().partition("-")
    return (name, int(number)) if name.startswith("ordered") and number.isdigit() else None


def member_of(group: str, topic: str) -> Subscribe:
    """A consumer that shares a topic's queues with the others of its group."""
    return lambda mq: mq.subscribe(topic, group=group, start="earliest")


def popper_of(group: str, topic: str) -> Subscribe:
    """A consumer that pops."""
    return lambda mq: mq.simple_consumer(topic, group=group, start="earliest", invisible=INVISIBLE_SECONDS)
