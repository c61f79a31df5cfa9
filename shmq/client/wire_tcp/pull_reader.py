"""Pulling for a consumer that decides itself where it reads: as much as it asks for, and a little ahead.

A poll that finds nothing here asks every queue once without waiting, so that "[]" means that nothing was stored. Only
then it lets the brokers hold its requests.

    poll ──nothing here──▶ short pull of every queue ──nothing stored──▶ held pulls until the deadline

Invariant: two answers for one queue may cross; what is behind the queue's position is taken once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shmq.client import options
from shmq.client.wanted import Wanted
from shmq.client.wire_tcp import pull_request as pulling
from shmq.client.wire_tcp.process_queue import ProcessQueue
from shmq.client.wire_tcp.pull_request import ANONYMOUS_GROUP, PullQuestion
from shmq.client.wire_tcp.reader import TcpReader
from shmq.errors import ShmqError

if TYPE_CHECKING:
    from shmq.client.wire_tcp.wire import TcpWire
    from shmq.shm.core import Message

AHEAD_COUNT: Final = 256
SHORT_TIMEOUT: Final = 3.0


class PullReader(TcpReader):
    """Reads on demand; one thread at a time."""

    def __init__(self, wire: TcpWire, *, wanted: Wanted, codec: Callable[[bytes], Any] | None) -> None:
        super().__init__(wire, owner=None, tags=wanted.tags, codec=codec, settles=False)
        self._wanted = wanted
        self._short: set[int] = set()
        self._held: set[int] = set()
        self._error: ShmqError | None = None

    def poll(self, max: int = options.RECEIVE_MAX, timeout: float = 0.0) -> list[Message]:
        """Return at most `max` messages; [] when nothing was stored, or came within `timeout` seconds.

        Raises:
            ShmqError: a broker cannot be read, and no other had anything.
        """
        deadline = time.monotonic() + timeout
        with self.changed:
            if messages := self._take(max):
                return messages
            self._error = None
            self._ask_all(0.0)
            while not self.stopped and not self._woken:
                remaining = deadline - time.monotonic()
                messages += self._take(max - len(messages))
                if messages and (len(messages) >= max or not self._short or remaining <= 0):
                    return messages
                if not self._short:
                    if remaining <= 0:
                        break
                    self._ask_all(min(remaining, pulling.SUSPEND))
                self.changed.wait(remaining if remaining > 0 else SHORT_TIMEOUT)
            self._woken = False
            if self._error is not None and not self.stopped and not messages:
                raise self._error
        return messages

    def seek(self, number: int, offset: int, /) -> None:
        with self.changed:
            super().seek(number, offset)
            # What is on its way belongs to the old place; the new one is asked for by the next poll.
            self._short.discard(number)
            self._held.discard(number)

    def _ask_all(self, hold: float) -> None:
        flying = self._held if hold else self._short
        for number, queue in self._queues.items():
            if number not in flying:
                self._ask(queue, hold)

    def _ask(self, queue: ProcessQueue, hold: float) -> None:
        (self._held if hold else self._short).add(queue.number)
        self._wire.network.submit(self._pull(queue, hold))

    async def _pull(self, queue: ProcessQueue, hold: float) -> None:
        generation, error, found = queue.generation, None, False
        question = PullQuestion(
            ANONYMOUS_GROUP,
            queue.queue,
            queue.next_offset,
            hold=hold,
            expression=self._wanted.expression,
            expression_type=self._wanted.kind,
            version=self._wire.now_ms(),
        )
        try:
            timeout = hold + (pulling.ANSWER_MARGIN if hold else SHORT_TIMEOUT)
            pulled = await self._wire.questions.pull(question, queue.broker_id, timeout)
            error = pulled.error
            messages = self.messages_of(queue, pulled.body)
            with self.changed:
                if pulled.moved and generation == queue.generation:
                    queue.restart(pulled.next_offset)
                    generation = queue.generation
                    found = True  # look there at once
                arrived = queue.arrive(messages, pulled.next_offset, pulled.offset_max, generation)
                queue.broker_id = pulled.broker_id
                found = found or (arrived and pulled.next_offset > question.offset)
        except ShmqError as raised:
            error = raised
        with self.changed:
            if generation == queue.generation:
                (self._held if hold else self._short).discard(queue.number)
            if error is not None:
                self._error = error
            goes_on = found and not queue.dropped and not self.stopped and queue.cached_count < AHEAD_COUNT
            if goes_on and queue.number not in self._short:
                self._ask(queue, 0.0)
            self.changed.notify_all()
