"""Two ways to pull. `GroupReader`, of members of a group and of broadcast consumers, pulls all the time.

    pull ──answer──▶ messages wait here ──▶ pull again, held by the broker when there is nothing
      ▲                    │ full: 1,000 messages, 100 MiB, or a span of 2,000
      └── 50 ms … 0.5 s ◀──┘

`PullReader`, of a consumer that decides itself where it reads, pulls as much as is asked for, and a little ahead. A
poll that finds nothing here asks every queue once without waiting, so that "[]" means that nothing was stored. Only
then it lets the brokers hold its requests.

    poll ──nothing here──▶ short pull of every queue ──nothing stored──▶ held pulls until the deadline

Invariants:
    (1) of a `GroupReader` one pull of each queue is on its way at most;
    (2) a message of the retry topic goes to the consumer of this connection that reads the topic it was sent to, and to
        no other: it waits for one, or for another member to take the queue;
    (3) two answers for one queue of a `PullReader` may cross; what is behind the queue's position is taken once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from shmq.client import options
from shmq.client.remote.questions import (
    ANONYMOUS_GROUP,
    ANSWER_MARGIN,
    ERROR_PAUSE,
    FLOW_PAUSE,
    FLOW_PAUSE_MAX,
    SUSPEND,
    Pulled,
    PullQuestion,
    QueueQuestions,
)
from shmq.client.remote.reader import ProcessQueue, TcpReader
from shmq.client.remote.registration import Registration
from shmq.client.spec import TAG, ConsumerSpec, Wanted
from shmq.client.wire import LOG, ReaderOwner
from shmq.client.wire_tcp.channel import AnotherLeads
from shmq.client.wire_tcp.network import look_at
from shmq.client.wire_tcp.wire import TcpWire
from shmq.errors import BrokerNotRunning, RequestTimeout, ShmqError
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import Message


class GroupReader(TcpReader):
    """Reads all the time; any thread may take messages."""

    def __init__(
        self,
        wire: TcpWire,
        questions: QueueQuestions,
        registration: Registration,
        owner: ReaderOwner,
        spec: ConsumerSpec,
        reader_of: Callable[[str | None, str], GroupReader | None],
    ) -> None:
        """`reader_of` finds the reader of this connection that reads a topic for a group."""
        super().__init__(wire, owner=owner, tags=spec.tags, codec=spec.codec, auto_ack=spec.auto_ack)
        self.spec = spec
        self._questions = questions
        self._registration = registration
        self._reader_of = reader_of
        self._flying: dict[int, asyncio.Task[float]] = {}  # I/O thread only

    @property
    def commits(self) -> bool:
        """Whether its offsets are the group's, kept by the brokers."""
        return self.spec.group is not None and self.spec.model == "clustering"

    async def made(self, queue: MessageQueue, number: int, offset: int) -> ProcessQueue:
        return ProcessQueue(queue, number, offset, settles=True, ordered=self.spec.ordered)

    def lost(self) -> list[int]:
        """Return []: the answer to a pull says that a topic was made again."""
        return []

    def open(self, queue: ProcessQueue) -> None:
        super().open(queue)
        self._wire.network.soon(lambda: self._start(queue))

    def seek(self, number: int, offset: int, /) -> None:
        super().seek(number, offset)
        self._wire.network.soon(lambda: self._give_up_pull(number))

    def revoke(self, number: int, /) -> None:
        super().revoke(number)
        self._wire.network.soon(lambda: self._give_up_pull(number))

    def _give_up_pull(self, number: int) -> None:
        """Do not wait for a request that the broker holds, and whose answer is out of date."""
        flying = self._flying.get(number)
        if flying is not None:
            flying.cancel()

    def pull_anew(self, brokers: Collection[str]) -> None:
        """Ask the masters of now: those of before may never answer, as they stand still or are cut off."""
        for queue in self.queues:
            if queue.queue.brokerName in brokers:
                queue.broker_id = 0
                self._give_up_pull(queue.number)

    def _start(self, queue: ProcessQueue) -> None:
        self._wire.network.spawn(self._pull_forever(queue))

    async def _pull_forever(self, queue: ProcessQueue) -> None:
        pause = 0.0
        while not queue.dropped and not self.stopped:
            if pause:
                await asyncio.sleep(pause)
            with self.changed:
                full = queue.is_full()
            if full:
                pause = min(max(FLOW_PAUSE, 2 * pause), FLOW_PAUSE_MAX)
                continue
            try:
                pause = await self._pull_held(queue)
            except (BrokerNotRunning, RequestTimeout):
                pause = ERROR_PAUSE
                queue.broker_id = 0
                self._wire.names.routes.forget(queue.queue.topic)
            except ShmqError as error:
                pause = ERROR_PAUSE
                self._warn(queue, error)

    async def _pull_held(self, queue: ProcessQueue) -> float:
        flying = self._flying[queue.number] = self._wire.network.loop.create_task(self._pull_once(queue))
        flying.add_done_callback(look_at)
        try:
            await asyncio.wait({flying})
        finally:
            if self._flying.get(queue.number) is flying:
                del self._flying[queue.number]
            flying.cancel()
        return 0.0 if flying.cancelled() else flying.result()

    def _kind_of(self, queue: ProcessQueue) -> str:
        return self.spec.wanted.kind if queue.queue.topic == self.spec.topic else TAG

    async def _pull_once(self, queue: ProcessQueue) -> float:
        generation = queue.generation
        with self.changed:
            is_due = self.commits and queue.committed != queue.stored_offset
            # A slave that the master sends us to would keep it to itself: the group's offsets are the master's.
            commit = queue.committed if is_due and not queue.broker_id else None
        question = PullQuestion(
            self.spec.group or ANONYMOUS_GROUP,
            queue.queue,
            queue.next_offset,
            reader=0 if self.spec.group else id(self),
            commit_offset=commit,
            expression=None if self.spec.group else self.spec.wanted.expression,
            expression_type=self._kind_of(queue),
            version=self._registration.version_of(self.spec, queue.queue.topic),
        )
        pulled = await self._questions.pull(question, queue.broker_id, question.hold + ANSWER_MARGIN)
        queue.last_pull_ms = self._wire.now_ms()
        if commit is not None and pulled.error is None:
            queue.stored_offset = commit
        if pulled.register:
            await self._registration.beat()
        if pulled.error is not None:
            if not pulled.register:
                self._warn(queue, pulled.error)
            return pulled.pause
        self._deliver(queue, pulled, generation, self.messages_of(queue, pulled.body))
        return pulled.pause

    def _deliver(self, queue: ProcessQueue, pulled: Pulled, generation: int, messages: list[Message]) -> None:
        lent: list[Message] = []
        with self.changed:
            if generation != queue.generation or queue.dropped:
                return
            queue.broker_id = pulled.broker_id
            if pulled.moved:
                queue.begin_anew(pulled.next_offset, keeps_waiting=not self.commits)
                return
            queue.arrive(messages, pulled.next_offset, pulled.offset_max, generation)
            if queue.queue.topic != self.spec.topic:  # of a retry topic of the group
                lent = [message for message in messages if message.topic != self.spec.topic]
            for message in lent:
                queue.waiting.remove(message)
            self.changed.notify_all()
        for message in lent:
            if not self._lend(queue, message):
                self._wire.network.spawn(self._lend_later(queue, message))

    def _lend(self, queue: ProcessQueue, message: Message) -> bool:
        reader = self._reader_of(self.spec.group, message.topic)
        if reader is not None:
            reader.lend(queue, [message])
        return reader is not None

    async def _lend_later(self, queue: ProcessQueue, message: Message) -> None:
        """Hold a message that no consumer of this connection reads, until one does or the queue is another member's."""
        while not (queue.dropped or self.stopped or self._lend(queue, message)):
            await asyncio.sleep(options.SEND_BACK_RETRY)

    def _warn(self, queue: ProcessQueue, error: ShmqError) -> None:
        LOG.warning(
            'queue %d of topic "%s" on broker %s cannot be pulled for group "%s", trying on: %s',
            queue.queue.queueId,
            queue.queue.topic,
            queue.queue.brokerName,
            self.spec.group,
            error,
        )


AHEAD_COUNT: Final = 256
SHORT_TIMEOUT: Final = 3.0


class PullReader(TcpReader):
    """Reads on demand; one thread at a time."""

    def __init__(
        self, wire: TcpWire, questions: QueueQuestions, *, wanted: Wanted, codec: Callable[[bytes], Any] | None
    ) -> None:
        super().__init__(wire, owner=None, tags=wanted.tags, codec=codec, settles=False)
        self._questions = questions
        self._wanted = wanted
        self._short: set[int] = set()
        self._held: set[int] = set()
        self._errors: dict[int, ShmqError] = {}  # by queue

    def poll(self, max: int = options.RECEIVE_MAX, timeout: float = 0.0) -> list[Message]:
        """Return at most `max` messages; [] when nothing was stored, or came within `timeout` seconds.

        Raises:
            ShmqError: a broker cannot be read, and no other had anything.
        """
        deadline = time.monotonic() + timeout
        with self.changed:
            if messages := self._take(max):
                return messages
            self._errors.clear()
            self._ask_all(0.0)
            while not self.stopped and not self._woken:
                remaining = deadline - time.monotonic()
                messages += self._take(max - len(messages))
                if messages and (len(messages) >= max or not self._short or remaining <= 0):
                    return messages
                if not self._short:
                    if remaining <= 0:
                        break
                    self._ask_all(min(remaining, SUSPEND))
                self.changed.wait(remaining if remaining > 0 else SHORT_TIMEOUT)
            self._woken = False
            if self._errors and not self.stopped and not messages:
                raise next(iter(self._errors.values()))
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
            reader=id(self),
            hold=hold,
            expression=self._wanted.expression,
            expression_type=self._wanted.kind,
            version=self._wire.now_ms(),
        )
        try:
            timeout = hold + (ANSWER_MARGIN if hold else SHORT_TIMEOUT)
            pulled = await self._questions.pull(question, queue.broker_id, timeout)
            error = pulled.error
            messages = self.messages_of(queue, pulled.body)
            with self.changed:
                if pulled.moved and generation == queue.generation:
                    queue.begin_anew(pulled.next_offset, keeps_waiting=True)
                    self._short.discard(queue.number)  # another answer that is on its way says nothing any more
                    self._held.discard(queue.number)
                    generation = queue.generation
                    found = True  # look there at once
                arrived = queue.arrive(messages, pulled.next_offset, pulled.offset_max, generation)
                queue.broker_id = pulled.broker_id
                found = found or (arrived and pulled.next_offset > question.offset)
        except AnotherLeads:
            pass  # the poll asks anew
        except ShmqError as raised:
            error = raised
        with self.changed:
            if generation == queue.generation:
                (self._held if hold else self._short).discard(queue.number)
            if error is None:
                self._errors.pop(queue.number, None)
            else:
                self._errors[queue.number] = error
            goes_on = found and not queue.dropped and not self.stopped and queue.cached_count < AHEAD_COUNT
            if goes_on and queue.number not in self._short:
                self._ask(queue, 0.0)
            self.changed.notify_all()
