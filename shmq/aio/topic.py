"""The asyncio twin of typed topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack

from shmq.client import options
from shmq.client.position import PositionLike
from shmq.client.producers.keywords import BatchArguments, SendArguments
from shmq.client.topic import Codec, codec_of

if TYPE_CHECKING:
    from shmq.aio.consumer import PullConsumer, SimpleConsumer, Subscription
    from shmq.client.spec import Model
    from shmq.shm.core import Receipt

ValueT = TypeVar("ValueT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Makes(Protocol):
    """What a typed topic asks of its connection; see `shmq.aio.Connection`."""

    @property
    def send(self) -> Callable[..., Awaitable[Receipt]]: ...
    @property
    def send_batch(self) -> Callable[..., Awaitable[list[Receipt]]]: ...
    @property
    def subscribe(self) -> Callable[..., Subscription]: ...
    @property
    def simple_consumer(self) -> Callable[..., SimpleConsumer]: ...
    @property
    def pull_consumer(self) -> Callable[..., PullConsumer]: ...
    @property
    def listener(self) -> Callable[..., Callable[[FunctionT], FunctionT]]: ...


class Topic(Generic[ValueT]):
    """A topic whose bodies are values of one type; see `shmq.Topic`."""

    def __init__(self, connection: Makes, name: str, kind: Any, codec: str | Codec[ValueT]) -> None:
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
