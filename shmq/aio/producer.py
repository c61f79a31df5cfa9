"""The asyncio twin of the producer; `sending.py` says how a message leaves the loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Unpack

from shmq.aio.message import Slot
from shmq.aio.opening import Opening
from shmq.aio.sending import Sending, SendingFace
from shmq.aio.transaction import Transaction
from shmq.client import options
from shmq.client.keywords import ReserveArguments, SendArguments
from shmq.client.link import Link
from shmq.client.producers.producer import Producer as SyncProducer
from shmq.client.transactions.transaction import Transaction as SyncTransaction
from shmq.errors import UsageError
from shmq.shm.core import Receipt

if TYPE_CHECKING:
    from shmq.client.keywords import Body


class Producer(SendingFace[SyncProducer]):
    """Sends with a timeout and group of its own; see `shmq.Producer`."""

    def __init__(
        self,
        group: str | None,
        timeout: float,
        link: Callable[[], Link],
        prepare: Callable[[], Coroutine[Any, Any, Opening[SyncProducer]]],
    ) -> None:
        super().__init__(prepare)
        self.group = group
        self._timeout = timeout
        self._link = link

    def _opened(self, made: SyncProducer) -> None:
        self._sending = Sending(made, self._link(), self._timeout)

    def reserve(self, topic: str, size: int, **arguments: Unpack[ReserveArguments]) -> Slot:
        """Return room for a body inside the log: `async with producer.reserve(…) as slot:`."""
        if self._sending is None:
            raise UsageError("the producer is not open yet", hint="async with mq.producer() as producer:")
        return self._sending.reserve(topic, size, **arguments)

    def send_nowait(self, topic: str, body: Body, **arguments: Unpack[SendArguments]) -> asyncio.Future[Receipt]:
        """Hand a message to this producer's own thread and return a future of its receipt; order is kept."""
        if self._made is None:
            raise UsageError("the producer is not open yet", hint="async with mq.producer() as producer:")
        return asyncio.wrap_future(self._made.send_nowait(topic, body, **arguments))

    def transaction(self, topic: str, body: Body, **arguments: Any) -> Transaction:
        """Store one message that stays hidden until its transaction is committed; see `shmq.Producer.transaction`."""

        async def prepare() -> Opening[SyncTransaction]:
            begin = functools.partial((await self._open()).transaction, topic, body, **arguments)
            return Opening(begin, _give_up)

        return Transaction(prepare)

    async def close(self, timeout: float = options.CLOSE_TIMEOUT) -> None:
        """Store what `send_nowait` still holds, at most `timeout` seconds; then refuse further sends."""
        await self._end(SyncProducer.close, timeout)

    def __repr__(self) -> str:
        return f"<shmq.aio.Producer group={self.group!r}>"


def _give_up(transaction: SyncTransaction) -> None:
    """Roll a transaction back that its task will not end: the task was cancelled."""
    transaction.__exit__(asyncio.CancelledError, None, None)
