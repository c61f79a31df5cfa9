"""Owns typed topics: values instead of bytes on both ends.

It does not know how values are coded (codec) nor how messages travel (producer, consumer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, cast

from shmq.client import options
from shmq.client.codec import Codec, codec_of
from shmq.client.consumers.subscription import Subscription

if TYPE_CHECKING:
    from shmq.client.connection import Connection
    from shmq.client.consumers.pull import PullConsumer
    from shmq.client.consumers.simple import SimpleConsumer
    from shmq.client.position import PositionLike
    from shmq.client.producers.keywords import SpecialArguments
    from shmq.client.spec import Model
    from shmq.shm.core import Receipt

ValueT = TypeVar("ValueT")
CoveredT = TypeVar("CoveredT", covariant=True)


class TypedMessage(Protocol[CoveredT]):
    """A `shmq.Message` whose `value` has a type; see there for the other attributes."""

    @property
    def value(self) -> CoveredT:
        """The decoded body; decoding happens on first access and may raise."""
        ...

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def tag(self) -> str | None: ...
    @property
    def key(self) -> str | None: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def message_group(self) -> str | None: ...
    @property
    def message_id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    def ack(self) -> None: ...
    def nack(self, after: float | None = None) -> None: ...
    def extend(self, seconds: float) -> None: ...
    def __enter__(self) -> TypedMessage[CoveredT]: ...
    def __exit__(self, *exc: object) -> None: ...


class TypedSubscription(Subscription, Generic[ValueT]):
    """A `Subscription` that says what type its messages' values have."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[TypedMessage[ValueT]]:  # type: ignore[override]
            """Iterate over messages with a typed `value`."""

        def receive(  # type: ignore[override]
            self, max: int = options.RECEIVE_MAX, wait: float = 0.0
        ) -> list[TypedMessage[ValueT]]:
            """Return at most `max` messages; [] when none came within `wait` seconds."""


class Topic(Generic[ValueT]):
    """A topic whose bodies are values of one type. Made by `Connection.topic()`.

    Example:
        >>> orders = mq.topic("orders", Order)                 # doctest: +SKIP
        >>> orders.send(Order("o-42", 3), tag="fruit")         # doctest: +SKIP
        >>> for message in orders.subscribe(group="billing"):  # doctest: +SKIP
        ...     order = message.value
    """

    def __init__(self, connection: Connection, name: str, kind: Any, codec: str | Codec[ValueT]) -> None:
        self.name = name
        self.type = kind
        self.codec: Codec[ValueT] = codec_of(codec, kind)
        self._connection = connection

    def send(
        self,
        value: ValueT,
        *,
        tag: str | None = None,
        key: str | None = None,
        keys: Iterable[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        timeout: float | None = None,
        **special: Unpack[SpecialArguments],
    ) -> Receipt:
        """Encode and store one value; arguments and errors as for `Connection.send`."""
        return self._connection.send(
            self.name,
            self.codec.encode(value),
            tag=tag,
            key=key,
            keys=keys,
            properties=properties,
            message_group=message_group,
            queue_id=queue_id,
            timeout=timeout,
            **special,
        )

    def send_batch(
        self,
        values: Iterable[ValueT],
        *,
        tag: str | None = None,
        keys: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
    ) -> list[Receipt]:
        """Encode and store values into one queue, in order."""
        bodies = [self.codec.encode(value) for value in values]
        return self._connection.send_batch(
            self.name, bodies, tag=tag, keys=keys, properties=properties, message_group=message_group
        )

    def subscribe(
        self,
        *,
        group: str | None = None,
        tags: str | Sequence[str] | None = None,
        where: str | None = None,
        auto_ack: bool = False,
        model: Model = "clustering",
        start: PositionLike | None = None,
    ) -> TypedSubscription[ValueT]:
        """Subscribe; messages have a typed `value`. Arguments as for `Connection.subscribe`."""
        # Imported here: connection makes topics, so it comes first.
        from shmq.client.spec import consumer_spec

        connection = self._connection
        spec = consumer_spec(
            self.name, group, tags, model, start, where=where, auto_ack=auto_ack, codec=self.codec.decode
        )
        return connection._add_consumer(TypedSubscription[ValueT](connection, spec))

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
    ) -> Callable[[Callable[[TypedMessage[ValueT]], Any]], Callable[[TypedMessage[ValueT]], Any]]:
        """Decorate a function that is called with each message; see `Connection.listener`."""
        decorate = self._connection.listener(
            self.name, group=group, tags=tags, where=where, threads=threads, ordered=ordered, codec=self.codec.decode
        )
        return cast(
            "Callable[[Callable[[TypedMessage[ValueT]], Any]], Callable[[TypedMessage[ValueT]], Any]]", decorate
        )

    def __repr__(self) -> str:
        return f"<shmq.Topic {self.name!r} of {getattr(self.type, '__name__', self.type)}>"
