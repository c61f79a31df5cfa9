"""The sources of a channel: durable queues that it pops from, and places in the logs of exchanges.

Each has a thread once it delivers without being asked. It fetches as many messages as there is room for, and puts them
on the channel's desk; what fails is tried again, because the client connects again by itself.

    received ──waiting──▶ hold ──hand──▶ settle       all of it stays hidden until it is settled or given back
    paused: nothing is fetched, and what waits is given back

What is no message of kombu's is set aside: from a queue to the dead letters of its group, in a log it is passed over.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from kombu.log import get_logger

from shmq import Connection, Message, PullConsumer
from shmq.contrib.kombu.envelope import Foreign, decoded
from shmq.errors import ConnectError, CorruptionError, LeaseExpired, ShmqError

_logger = get_logger(__name__)

BATCH_MAX: Final = 32
SLICE_SECONDS: Final = 1.0
"""A thread looks that often whether it is to end."""
_RETRY_SECONDS: Final = 0.5


class Desk(Protocol):
    """Takes messages for delivery."""

    def reserve(self, count: int) -> int:
        """Return how many messages of so many may be fetched; waits a little when none may."""

    def release(self, count: int) -> None:
        """So many of what was reserved will not be put here."""

    def offer(self, queue: str, stored: Message) -> None:
        """A message of a durable queue has come."""

    def offer_transient(self, queue: str, payload: dict[str, Any]) -> None:
        """A message of a transient queue has come."""

    def count_foreign(self) -> None:
        """Something was set aside."""


class _Thread:
    """Repeats a step until `stopping` is set; what fails is tried again."""

    def __init__(self, name: str, step: Callable[[threading.Event], None]) -> None:
        """Raises ConnectError: no thread can be started any more."""
        self.stopping = threading.Event()
        self._step = step
        self._thread = threading.Thread(target=self._run, name=f"shmq-kombu-{name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            what = f"queue {name} needs a thread of its own, and none can be started: {error}"
            raise ConnectError(what, hint="consume before the program ends, or see `ulimit -u`") from error

    def _run(self) -> None:
        while not self.stopping.is_set():
            try:
                self._step(self.stopping)
            except ShmqError:
                self.stopping.wait(_RETRY_SECONDS)  # the broker is away; the client connects again
            except Exception:
                _logger.exception("%s goes on after an error", threading.current_thread().name)
                self.stopping.wait(_RETRY_SECONDS)

    def end(self) -> None:
        """Stop, and wait for it."""
        self.stopping.set()
        if self._thread is not threading.current_thread():
            self._thread.join(2 * SLICE_SECONDS)


class Pops:
    """The part of a channel that consumes one durable queue."""

    def __init__(self, desk: Desk, queue: str, mq: Connection, group: str, options: Mapping[str, Any]) -> None:
        """`mq` is for this alone: a connection reads a topic for a group once. The topic is called like the group."""
        self._desk = desk
        self._queue = queue
        self._group = group
        self._mq = mq
        self._invisible = float(options["invisible"])
        self._consumer = mq.simple_consumer(group, group=group, start="begin", **options)
        self._waiting: dict[int, Message] = {}  # by identity; offered and not delivered yet
        self._hand: dict[str, Message] = {}  # by delivery tag
        self._prolong_at = time.monotonic() + self._invisible / 3
        self._is_wanted = threading.Event()
        self._thread: _Thread | None = None
        try:
            self._keeper = _Thread(f"{queue}-keeper", self._prolong)
        except ConnectError:
            mq.close()
            raise

    def start(self) -> None:
        """Deliver without being asked, from now on."""
        self._is_wanted.set()
        self._thread = self._thread or _Thread(self._queue, self._step)

    def pause(self) -> None:
        """Deliver no more until `start`; what waits is given back."""
        self._is_wanted.clear()
        for stored in list(self._waiting.values()):
            self.give_back(stored)

    def get(self) -> Message | None:
        """Return the next message, None when there is none now."""
        return next(iter(self._consumer.receive(1)), None)

    def hold(self, tag: str, stored: Message) -> None:
        """Keep a message hidden until it is settled."""
        self._hand[tag] = stored
        self._waiting.pop(id(stored), None)

    def settle(self, tag: str, *, requeue: bool) -> None:
        """Acknowledge a message, or give it back; one that another worker has by now is left alone."""
        stored = self._hand.pop(tag, None)
        if stored is not None:
            _settle(stored, requeue=requeue)

    def give_back(self, stored: Message) -> None:
        """Give back a message that was not delivered; twice is harmless."""
        if self._waiting.pop(id(stored), None) is not None:
            _settle(stored, requeue=True)

    def decoded(self, stored: Message) -> dict[str, Any] | None:
        """Return what is stored; None when it is no message of kombu's, and has become a dead letter."""
        try:
            return decoded(stored.body)
        except (Foreign, CorruptionError) as reason:
            self._desk.count_foreign()
            _logger.warning(
                "message %s of topic %s is set aside: %s; shmq dlq list %s shows it",
                stored.message_id,
                self._group,
                reason,
                self._group,
            )
            self._waiting.pop(id(stored), None)
            with contextlib.suppress(LeaseExpired):
                self._consumer.reject(stored, f"not a message of kombu's: {reason}")
            return None

    def close(self) -> None:
        """End; what is in hand comes again at once."""
        self._keeper.stopping.set()
        self._consumer.stop()
        self._is_wanted.set()
        if self._thread is not None:
            self._thread.end()
        self._keeper.end()
        self._consumer.close()
        self._mq.close()

    def _step(self, _: threading.Event) -> None:
        if not self._is_wanted.wait(SLICE_SECONDS):
            return
        room = self._desk.reserve(BATCH_MAX)
        if not room:
            return
        received: list[Message] = []
        try:
            received = self._consumer.receive(room, wait=SLICE_SECONDS)
        finally:
            self._desk.release(room - len(received))
        for stored in received:
            self._waiting[id(stored)] = stored
            self._desk.offer(self._queue, stored)
        if not self._is_wanted.is_set():
            self.pause()  # what came meanwhile

    def _prolong(self, stopping: threading.Event) -> None:
        if stopping.wait(max(0.0, self._prolong_at - time.monotonic())):
            return
        begun = time.monotonic()
        for stored in (*list(self._waiting.values()), *list(self._hand.values())):
            with contextlib.suppress(LeaseExpired):
                if not stored.settled:
                    stored.extend(self._invisible)
        self._prolong_at = begun + self._invisible / 3  # not earlier: what failed is tried again


class Place:
    """The place of a transient queue in one exchange's log."""

    def __init__(self, desk: Desk, queue: str, consumer: PullConsumer, is_wanted: Callable[[str], bool]) -> None:
        """`is_wanted` looks at a routing key."""
        self._desk = desk
        self._queue = queue
        self._consumer = consumer
        self._is_wanted = is_wanted
        self._thread: _Thread | None = None
        self._waiting: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def start(self, desk: Desk) -> None:
        """Deliver without being asked, from now on; to another desk where there was one."""
        self._desk = desk
        self._thread = self._thread or _Thread(self._queue, self._step)

    def get(self) -> dict[str, Any] | None:
        """Return the next message, None when there is none now."""
        for payload in self._wanted(0.0):
            self._waiting.put(payload)
        with contextlib.suppress(Empty):
            return self._waiting.get_nowait()
        return None

    def purge(self) -> int:
        """Leave out what is there; returns how many messages that was."""
        return sum(1 for _ in iter(self.get, None))

    def lag(self) -> int:
        """Return how many messages of the log are not read, those for others included."""
        return sum(self._consumer.lag().values()) + self._waiting.qsize()

    def close(self) -> None:
        """End."""
        if self._thread is not None:
            self._thread.end()
        self._consumer.close()

    def _step(self, _: threading.Event) -> None:
        for payload in self._wanted(SLICE_SECONDS):
            self._desk.offer_transient(self._queue, payload)

    def _wanted(self, wait: float) -> Iterator[dict[str, Any]]:
        for stored in self._consumer.poll(BATCH_MAX, wait):
            try:
                payload = decoded(stored.body)
            except (Foreign, CorruptionError) as reason:
                self._desk.count_foreign()
                _logger.warning("message %s of topic %s is passed over: %s", stored.message_id, stored.topic, reason)
                continue
            if self._is_wanted(payload["properties"]["delivery_info"]["routing_key"]):
                yield payload


def _settle(stored: Message, *, requeue: bool) -> None:
    """Acknowledge a message or give it back; one whose time is over is another worker's."""
    with contextlib.suppress(LeaseExpired):
        if requeue:
            stored.nack(after=0)
        else:
            stored.ack()
