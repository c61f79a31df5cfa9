"""What a consumer is asked to do: `ConsumerSpec`, and the checks of every way of asking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from shmq.client.position import BEGIN, END, Position, PositionLike, parse_position
from shmq.client.wanted import Wanted, wanted_of
from shmq.errors import UsageError
from shmq.message import check_group, check_topic

Model: TypeAlias = Literal["clustering", "broadcasting"]


class ConsumerSpec(NamedTuple):
    """What a consumer was asked to do; immutable, so a forked child can open the same one again."""

    topic: str
    group: str | None
    tags: tuple[str, ...] = ()  # and `where`: see `wanted`
    model: Model = "clustering"
    start: Position = BEGIN
    auto_ack: bool = False
    codec: Callable[[bytes], Any] | None = None
    attempts_max: int | None = None  # None: what the group is set to
    ordered: bool = False
    function: Callable[[Any], Any] | None = None  # the listener, for whom a broker asks to try a message
    where: str | None = None
    invisible: float | None = None  # seconds; a simple consumer's, whose brokers may hide messages by themselves

    @property
    def wanted(self) -> Wanted:
        """What is selected of the topic."""
        return Wanted(self.tags, self.where)


def consumer_spec(
    topic: str,
    group: str | None,
    tags: str | Sequence[str] | None,
    model: Model,
    start: PositionLike | None,
    *,
    where: str | None = None,
    **rest: Any,
) -> ConsumerSpec:
    """Check what a consumer is asked to do.

    Raises:
        InvalidName, UsageError: a name, the model, the tags or the start do not exist.
        FilterSyntaxError: `where` is no expression.
    """
    check_topic(topic)
    if model not in ("clustering", "broadcasting"):
        raise UsageError(f"model={model!r} does not exist", hint='model="clustering" or model="broadcasting"')
    if group is not None:
        check_group(group)
    elif model == "clustering":
        raise UsageError(
            f'no group to read topic "{topic}" for',
            hint='subscribe(…, group="billing"), or model="broadcasting" to see every message without a group',
        )
    begin = BEGIN if model == "clustering" else END
    position = begin if start is None else parse_position(start)
    wanted = wanted_of(tags, where)
    return ConsumerSpec(topic, group, wanted.tags, model, position, where=wanted.where, **rest)


def reads_retries(spec: ConsumerSpec, specs: Iterable[ConsumerSpec]) -> bool:
    """Whether this is the consumer of its connection, out of `specs`, that reads the group's retry topic: its first."""
    if spec.group is None or spec.model != "clustering" or spec.invisible is not None:
        return False
    first = next((known for known in specs if known.group == spec.group and known.invisible is None), spec)
    return first.topic == spec.topic
