"""Producers that go on while brokers of a group die, and what was acknowledged to them.

Each body is sent once and never again: what was not acknowledged may be there or not. A transaction ends as its body
says, whichever member is asked; one whose half was acknowledged has to end so, and once.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import shmq
from shmq import Connection

SHOP = "shop"  # the group of those who begin transactions
CHECK_SECONDS = 2.0
OUTCOMES = ("commit", "rollback", "committed-later", "rolled-back-later")  # the last two are said when they are asked
BATCH = 3
PAUSE_SECONDS = 0.01  # between two sends, and before one is tried elsewhere: a load that leaves processor time
ANSWER_SECONDS = 3.0
_CONNECT_AGAIN_SECONDS = 0.02


class Stored(Protocol):
    """Where a message was stored."""

    @property
    def queue_id(self) -> int:
        """Of the queue."""

    @property
    def offset(self) -> int:
        """In the queue."""


Send = Callable[[bytes], Stored | None]


class Acknowledged(NamedTuple):
    """A body and where it was stored; times are seconds of the monotonic clock."""

    body: bytes
    queue_id: int
    offset: int
    at: float
    sent_at: float


_SENT_AT, _AT = operator.attrgetter("sent_at"), operator.attrgetter("at")


class Sender:
    """One thread that sends, and tries again with the next body.

    Args:
        send: what sends bodies over a connection; without a receipt nothing was acknowledged.

    Attributes:
        stored: what was acknowledged, in that order, which is the order in which it was sent.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], AbstractContextManager[Any]],
        send: Callable[[Any], Send],
        *,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self.name = name
        self.stored: list[Acknowledged] = []
        self.errors: dict[str, int] = {}
        self._connect, self._send, self._pause_seconds = connect, send, pause_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), self.name

    def first_after(self, at: float) -> float | None:
        """When the first message that was sent after a moment was acknowledged."""
        first = bisect.bisect_left(self.stored, at, key=_SENT_AT)
        return self.stored[first].at if first < len(self.stored) else None

    def longest_gap(self, since: float) -> float:
        """The longest time without a receipt since a moment, in seconds."""
        first = bisect.bisect_right(self.stored, since, key=_AT)
        times = [self.stored[first - 1].at if first else since, *map(_AT, self.stored[first:])]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)

    def body(self, number: int) -> bytes:
        """What is sent next."""
        return b"%s-%d" % (self.name.encode(), number)

    def _run(self) -> None:
        number = 0
        while not self._is_over.is_set():
            try:
                with self._connect() as mq:
                    send = self._send(mq)
                    while not self._is_over.wait(self._pause_seconds):
                        body, began = self.body(number), time.monotonic()
                        number += 1
                        receipt = send(body)
                        if receipt is not None:
                            row = Acknowledged(body, receipt.queue_id, receipt.offset, time.monotonic(), began)
                            self.stored.append(row)
            except shmq.ShmqError as error:
                kind = type(error).__name__
                self.errors[kind] = self.errors.get(kind, 0) + 1
                self._is_over.wait(_CONNECT_AGAIN_SECONDS)


class BatchSender(Sender):
    """Sends some bodies at once; the first is the one that is counted on, and all are acknowledged together."""

    def __init__(self, name: str, connect: Callable[[], Connection], topic: str) -> None:
        super().__init__(name, connect, self._batches, pause_seconds=PAUSE_SECONDS * BATCH)
        self._topic = topic

    def _batches(self, mq: Connection) -> Send:
        def send(body: bytes) -> shmq.Receipt:
            began, bodies = time.monotonic(), [body, *(b"%s.%d" % (body, number) for number in range(1, BATCH))]
            first, *others = mq.send_batch(self._topic, bodies)
            at = time.monotonic()
            rows = zip(bodies[1:], others, strict=True)
            self.stored += [Acknowledged(each, told.queue_id, told.offset, at, began) for each, told in rows]
            return first

        return send


class AskingSender(Sender):
    """Sends requests, one after the other, and takes the replies.

    Attributes:
        answered: how many came.
        wrong: requests that got the reply to another one, with that.
    """

    def __init__(self, name: str, connect: Callable[[], Connection], topic: str) -> None:
        super().__init__(name, connect, self._asks, pause_seconds=PAUSE_SECONDS * 3)
        self.answered = 0
        self.wrong: list[tuple[bytes, bytes]] = []
        self._topic = topic

    def _asks(self, mq: Connection) -> Send:
        def send(body: bytes) -> None:
            reply = bytes(mq.request(self._topic, body, timeout=ANSWER_SECONDS).body)
            self.answered += 1
            if reply != reply_to(body):
                self.wrong.append((body, reply))

        return send


def reply_to(body: bytes) -> bytes:
    """What a request is answered with."""
    return body + b"!"


class TransactionalSender(Sender):
    """Begins transactions, one after the other of each outcome.

    Attributes:
        begun: bodies whose half was acknowledged.
    """

    def __init__(self, name: str, connect: Callable[[], Connection], topic: str) -> None:
        super().__init__(name, connect, self._begin, pause_seconds=PAUSE_SECONDS * 3)
        self.begun: list[bytes] = []
        self._topic = topic

    def body(self, number: int) -> bytes:
        return b"%s-%d %s" % (self.name.encode(), number, OUTCOMES[number % len(OUTCOMES)].encode())

    def _begin(self, mq: Connection) -> Send:
        answer_checks(mq)
        producer = mq.producer(group=SHOP)

        def send(body: bytes) -> shmq.Receipt | None:
            transaction = producer.transaction(self._topic, body, check_after=CHECK_SECONDS)
            self.begun.append(body)
            outcome = outcome_of(body)
            if outcome == "commit":
                return transaction.commit()
            if outcome == "rollback":
                transaction.rollback()
            return None

        return send


def outcome_of(body: bytes) -> str:
    """How the transaction of a message ends; "" if it is of none."""
    return body.decode().partition(" ")[2]


def is_committed(body: bytes) -> bool:
    """Whether a transaction is to end with its message stored."""
    return outcome_of(body).startswith("commit")


def answer_checks(mq: Connection) -> None:
    """Say how transactions end, to whichever broker asks."""

    @mq.transaction_checker(SHOP)
    def end(message: shmq.Message) -> shmq.TxState:
        return shmq.COMMIT if is_committed(bytes(message.body)) else shmq.ROLLBACK
