"""The asyncio twin of typed topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack

from shmq.aio.offload import taking
from shmq.client.keywords import BatchArguments, SendArguments
from shmq.client.topic import Codec, codec_of
from shmq.client.topic import Topic as SyncTopic

if TYPE_CHECKING:
    from shmq.aio.consumer import PullConsumer, SimpleConsumer, Subscription
    from shmq.shm.core import Receipt

ValueT = TypeVar("ValueT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class Makes(Protocol):
    """The calls that a typed topic makes on its connection; see `shmq.aio.Connection`."""

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

    @taking(SyncTopic.subscribe)
    def subscribe(self, **arguments: Any) -> Subscription:
        """Subscribe; messages have a `value`."""
        return self._connection.subscribe(self.name, codec=self.codec.decode, **arguments)

    @taking(SyncTopic.simple_consumer)
    def simple_consumer(self, **arguments: Any) -> SimpleConsumer:
        """Return a simple consumer whose messages have a `value`."""
        return self._connection.simple_consumer(self.name, codec=self.codec.decode, **arguments)

    @taking(SyncTopic.pull_consumer)
    def pull_consumer(self, **arguments: Any) -> PullConsumer:
        """Return a pull consumer whose messages have a `value`."""
        return self._connection.pull_consumer(self.name, codec=self.codec.decode, **arguments)

    @taking(SyncTopic.listener)
    def listener(self, **arguments: Any) -> Callable[[FunctionT], FunctionT]:
        """Decorate a coroutine function that is called with each message."""
        return self._connection.listener(self.name, codec=self.codec.decode, **arguments)

    def __repr__(self) -> str:
        return f"<shmq.aio.Topic {self.name!r} of {getattr(self.type, '__name__', self.type)}>"
