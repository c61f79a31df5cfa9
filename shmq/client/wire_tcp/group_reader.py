"""Pulling for members of a group, and for broadcast consumers: each queue all the time, until it is full.

    pull ──answer──▶ messages wait here ──▶ pull again, held by the broker when there is nothing
      ▲                    │ full: 1,000 messages, 100 MiB, or a span of 2,000
      └── 50 ms … 0.5 s ◀──┘

Invariants:
    (1) one pull of each queue is on its way at most;
    (2) a message of the retry topic goes to the consumer of this connection that reads the topic it was sent to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from shmq.client.wanted import TAG
from shmq.client.wire_tcp import pull_request as pulling
from shmq.client.wire_tcp.process_queue import ProcessQueue
from shmq.client.wire_tcp.pull_request import ANONYMOUS_GROUP, Pulled, PullQuestion
from shmq.client.wire_tcp.reader import TcpReader
from shmq.errors import BrokerNotRunning, RequestTimeout, ShmqError

if TYPE_CHECKING:
    from shmq.client.spec import ConsumerSpec
    from shmq.client.wire import ReaderOwner
    from shmq.client.wire_tcp.registration import Registration
    from shmq.client.wire_tcp.wire import TcpWire
    from shmq.shm.core import Message


class GroupReader(TcpReader):
    """Reads all the time; any thread may take messages."""

    def __init__(
        self,
        wire: TcpWire,
        registration: Registration,
        owner: ReaderOwner,
        spec: ConsumerSpec,
        reader_of: Callable[[str | None, str], GroupReader | None],
    ) -> None:
        """`reader_of` finds the reader of this connection that reads a topic for a group."""
        super().__init__(wire, owner=owner, tags=spec.tags, codec=spec.codec, auto_ack=spec.auto_ack)
        self.spec = spec
        self._registration = registration
        self._reader_of = reader_of
        self._flying: dict[int, asyncio.Task[float]] = {}  # I/O thread only

    @property
    def commits(self) -> bool:
        """Whether its offsets are the group's, kept by the brokers."""
        return self.spec.group is not None and self.spec.model == "clustering"

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
                pause = min(max(pulling.FLOW_PAUSE, 2 * pause), pulling.FLOW_PAUSE_MAX)
                continue
            try:
                pause = await self._pull_held(queue)
            except (BrokerNotRunning, RequestTimeout):
                pause = pulling.ERROR_PAUSE
                queue.broker_id = 0
                self._wire.names.routes.forget(queue.queue.topic)
            except ShmqError as error:
                pause = pulling.ERROR_PAUSE
                self._warn(queue, error)

    async def _pull_held(self, queue: ProcessQueue) -> float:
        flying = self._flying[queue.number] = self._wire.network.loop.create_task(self._pull_once(queue))
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
            commit = queue.committed if self.commits and queue.committed != queue.stored_offset else None
        question = PullQuestion(
            self.spec.group or ANONYMOUS_GROUP,
            queue.queue,
            queue.next_offset,
            commit_offset=commit,
            expression=None if self.spec.group else self.spec.wanted.expression,
            expression_type=self._kind_of(queue),
            version=self._registration.version_of(self.spec, queue.queue.topic),
        )
        pulled = await self._wire.questions.pull(question, queue.broker_id, question.hold + pulling.ANSWER_MARGIN)
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
                queue.restart(pulled.next_offset)
                return
            queue.arrive(messages, pulled.next_offset, pulled.offset_max, generation)
            lent = [message for message in messages if message.topic != self.spec.topic]
            for message in lent:
                queue.waiting.remove(message)
            self.changed.notify_all()
        for message in lent:
            (self._reader_of(self.spec.group, message.topic) or self).lend(queue, [message])

    def _warn(self, queue: ProcessQueue, error: ShmqError) -> None:
        import logging

        logging.getLogger("shmq").warning(
            'queue %d of topic "%s" on broker %s cannot be pulled for group "%s", trying on: %s',
            queue.queue.queueId,
            queue.queue.topic,
            queue.queue.brokerName,
            self.spec.group,
            error,
        )
