"""Typed topics: values instead of bytes on both ends.

A codec turns values into bodies and back: "json" and "msgpack" are msgspec's, checked against the type given; any other
is an object with `encode(value) -> bytes` and `decode(bytes) -> value`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, cast, runtime_checkable

from shmq.client import options
from shmq.client.consumers.consumer import Subscription
from shmq.client.consumers.pull import PullConsumer
from shmq.client.consumers.simple import SimpleConsumer
from shmq.client.keywords import BatchArguments, SendArguments
from shmq.client.kinds import wrong_kind
from shmq.client.position import PositionLike
from shmq.client.spec import Model
from shmq.errors import UsageError
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


@runtime_checkable
class Codec(Protocol[ValueT]):
    """Values to bodies and back."""

    def encode(self, value: ValueT, /) -> bytes:
        """Return the body of a value."""
        ...

    def decode(self, body: bytes, /) -> ValueT:
        """Return the value of a body; may raise whatever fits the format."""
        ...


class _MsgspecCodec:
    __slots__ = ("_made_of", "decode", "encode")

    def __init__(self, name: str, kind: Any) -> None:
        # Imported on first use: most programs send bytes.
        import msgspec

        from shmq.typed_json import describe

        try:
            describe(kind)
        except TypeError as error:
            what = "what values can be read into: a dataclass, a TypedDict, a msgspec.Struct, dict …"
            raise wrong_kind("type", kind, what, 'mq.topic("orders", Order)') from error
        module: Any = msgspec.json if name == "json" else msgspec.msgpack
        self._made_of = name, kind
        self.encode = module.Encoder().encode
        self.decode = module.Decoder(kind).decode

    def __reduce__(self) -> tuple[Any, ...]:
        return _MsgspecCodec, self._made_of


def codec_of(codec: str | Codec[Any], kind: Any) -> Codec[Any]:
    """Return the codec of that name for a type, or the codec given.

    Raises:
        UsageError: neither a known name nor an object with encode and decode.
    """
    if codec in ("json", "msgpack"):
        return _MsgspecCodec(str(codec), kind)
    if isinstance(codec, Codec):
        return codec
    raise UsageError(
        f"{codec!r} is no codec", hint='codec="json", codec="msgpack", or an object with encode(value) and decode(body)'
    )


class Makes(Protocol):
    """The calls that a typed topic makes on its connection; see `shmq.Connection`."""

    @property
    def send(self) -> Callable[..., Receipt]: ...
    @property
    def send_batch(self) -> Callable[..., list[Receipt]]: ...
    @property
    def subscribe(self) -> Callable[..., Subscription]: ...
    @property
    def simple_consumer(self) -> Callable[..., SimpleConsumer]: ...
    @property
    def pull_consumer(self) -> Callable[..., PullConsumer]: ...
    @property
    def listener(self) -> Callable[..., Any]: ...


class Topic(Generic[ValueT]):
    """A topic whose bodies are values of one type. Made by `Connection.topic()`.

    Example:
        >>> orders = mq.topic("orders", Order)                 # doctest: +SKIP
        >>> orders.send(Order("o-42", 3), tag="fruit")         # doctest: +SKIP
        >>> for message in orders.subscribe(group="billing"):  # doctest: +SKIP
        ...     order = message.value
    """

    def __init__(self, connection: Makes, name: str, kind: Any, codec: str | Codec[ValueT]) -> None:
        self.name = name
        self.type = kind
        self.codec: Codec[ValueT] = codec_of(codec, kind)
        self._connection = connection

    def send(self, value: ValueT, **arguments: Unpack[SendArguments]) -> Receipt:
        """Encode and store one value; arguments and errors as for `Connection.send`."""
        return self._connection.send(self.name, self.codec.encode(value), **arguments)

    def send_batch(self, values: Iterable[ValueT], **arguments: Unpack[BatchArguments]) -> list[Receipt]:
        """Encode and store values into one queue, in order; arguments as for `Connection.send_batch`."""
        return self._connection.send_batch(self.name, [self.codec.encode(value) for value in values], **arguments)

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
        made = self._connection.subscribe(
            self.name,
            group=group,
            tags=tags,
            where=where,
            auto_ack=auto_ack,
            model=model,
            start=start,
            codec=self.codec.decode,
        )
        return cast("TypedSubscription[ValueT]", made)

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
