"""Owns the asyncio twin of typed topics.

It does not know codecs; the sync topic does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from shmq.aio.sending import BatchArguments, SendArguments
from shmq.client import options
from shmq.client.codec import Codec, codec_of
from shmq.client.position import PositionLike

if TYPE_CHECKING:
    from shmq.aio.connection import Connection
    from shmq.aio.consumer import PullConsumer, SimpleConsumer, Subscription
    from shmq.client.spec import Model
    from shmq.shm.core import Receipt

ValueT = TypeVar("ValueT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Topic(Generic[ValueT]):
    """A topic whose bodies are values of one type; see `shmq.Topic`."""

    def __init__(self, connection: Connection, name: str, kind: Any, codec: str | Codec[ValueT]) -> None:
        self.name = name
        self.type = kind
        self.codec: Codec[ValueT] = codec_of(codec, kind)
        self._connection = connection

    async def send(self, value: ValueT, **arguments: Unpack[SendArguments]) -> Receipt:
        """Encode and store one value."""
        return await self._connection.send(self.name, self.codec.encode(value), **arguments)

    async def send_batch(self, values: Iterable[ValueT], **arguments: Unpack[BatchArguments]) -> list[Receipt]:
        """Encode and store values into one queue, in order."""
        return await self._connection.send_batch(self.name, [self.codec.encode(value) for value in values], **arguments)

    def subscribe(
        self,
        *,
        group: str | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        auto_ack: bool = False,
        model: Model = "clustering",
        start: PositionLike | None = None,
    ) -> Subscription:
        """Subscribe; messages have a `value`."""
        return self._connection.subscribe(
            self.name,
            group=group,
            tags=tags,
            where=where,
            auto_ack=auto_ack,
            model=model,
            start=start,
            codec=self.codec.decode,
        )

    def simple_consumer(
        self,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        invisible: float = options.INVISIBLE,
    ) -> SimpleConsumer:
        """Return a simple consumer whose messages have a `value`."""
        return self._connection.simple_consumer(
            self.name, group=group, tags=tags, where=where, invisible=invisible, codec=self.codec.decode
        )

    def pull_consumer(self, *, group: str | None = None, start: PositionLike = "begin") -> PullConsumer:
        """Return a pull consumer whose messages have a `value`."""
        return self._connection.pull_consumer(self.name, group=group, start=start, codec=self.codec.decode)

    def listener(
        self,
        *,
        group: str,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        threads: int = 1,
        ordered: bool = False,
    ) -> Callable[[FunctionT], FunctionT]:
        """Decorate a coroutine function that is called with each message."""
        return self._connection.listener(
            self.name, group=group, tags=tags, where=where, threads=threads, ordered=ordered, codec=self.codec.decode
        )

    def __repr__(self) -> str:
        return f"<shmq.aio.Topic {self.name!r} of {getattr(self.type, '__name__', self.type)}>"
