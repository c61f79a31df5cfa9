"""The specification of a consumer, and the checks of all its arguments.

`Wanted` is what it wants of a topic: some tags, what an SQL92 expression selects, or both at once.

    tags        where        sent to a broker as            looked at
    ()          None         TAG *                          –
    a, b        None         TAG a || b                     hashes by the broker or the core, tags by the reader
    ()          expression   SQL92 expression               by a broker for TCP clients, else by the reading process
    a, b        expression   SQL92 TAGS IN … AND (…)        both of the above

`ConsumerSpec` is that, and everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from shmq.client.kinds import real_in, whole_in, wrong_kind
from shmq.client.position import BEGIN, END, Position, PositionLike, parse_position
from shmq.errors import UsageError
from shmq.filter.sql import SQL92, sql_filter, with_tags
from shmq.message import check_consumer_group, check_popping, check_topic, retry_topic
from shmq.protocol.body import ConsumerData, SubscriptionData
from shmq.shm.core import Filter, tag_hash
from shmq.words import check_word

TAG = "TAG"
_AROUND = " \t\r\n"  # Java's trim takes every control character; with one, a tag is refused here, not read as another


class Wanted(NamedTuple):
    """Tags, () for all, and an expression."""

    tags: tuple[str, ...] = ()
    where: str | None = None

    @property
    def kind(self) -> str:
        """The expression type of the subscription."""
        return TAG if self.where is None else SQL92

    @property
    def expression(self) -> str:
        """The text of the subscription."""
        return with_tags(self.where, self.tags) or " || ".join(self.tags) or "*"

    @property
    def filter(self) -> Filter | None:
        """The expression, compiled."""
        return None if self.where is None else sql_filter(self.where)

    def subscription(self, topic: str, version: int) -> SubscriptionData:
        """Return what a heartbeat says."""
        tags = self.tags if self.where is None else ()
        return SubscriptionData(
            topic=topic,
            subString=self.expression,
            expressionType=self.kind,
            subVersion=version,
            tagsSet=list(tags),
            codeSet=[tag_hash(tag) for tag in tags],
        )


EVERYTHING: Final = Wanted()


def wanted_of(tags: str | Sequence[str] | None, where: str | None) -> Wanted:
    """Check what is wanted.

    Raises:
        UsageError: an empty tag, one that cannot be written in an expression, or an expression that is no text.
        FilterSyntaxError: `where` is no expression; the error points at the fault.
    """
    if where is not None and not isinstance(where, str):
        raise UsageError(f"where is a str, not {type(where).__name__}", hint="where=\"region = 'eu'\"")
    wanted = Wanted(parse_tags(tags), where)
    if where is not None:
        sql_filter(where)
        sql_filter(wanted.expression)  # too long with the tags?
    return wanted


def parse_tags(tags: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the tags of `"fruit || veg"` or `["fruit", "veg"]`; () stands for all messages.

    Raises:
        UsageError: an empty tag, or one that no message can have.
    """
    if tags is None:
        return ()
    if isinstance(tags, str):
        parts = [part.strip(_AROUND) for part in tags.split("||")]
        if parts == [""]:
            return ()
    elif not isinstance(tags, Iterable) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"tags are str, not {tags!r:.80}", hint='tags="fruit || veg" or ["fruit", "veg"]')
    else:
        parts = [tag.strip(_AROUND) for tag in tags]
    if "*" in parts:
        return ()
    if not parts or not all(parts) or any("|" in part for part in parts):
        raise UsageError(
            f"tags {tags!r} hold an empty tag or a single |", hint='tags="fruit || veg" or ["fruit", "veg"]'
        )
    for part in parts:
        check_word("tag", part)
    return tuple(dict.fromkeys(parts))


_COUNT_MAX: Final = 2**31 - 1
_LONG_WAIT: Final = 1e9


def check_poll(count_max: int, wait: float) -> tuple[int, float]:
    """Return how many messages are asked for, and how many seconds may be waited for them: 0 for a time that is over.

    Raises:
        UsageError: no count of at least 1, or no number of seconds.
    """
    if type(count_max) is int and 0 < count_max <= _COUNT_MAX and type(wait) in (int, float) and 0 <= wait < _LONG_WAIT:
        return count_max, wait  # nearly always
    count, seconds = whole_in(count_max, 1, _COUNT_MAX), real_in(wait)
    if count is None:
        raise UsageError(f"max={count_max!r:.80} asks for no message", hint=f"max is 1 to {_COUNT_MAX}")
    if seconds is None:
        raise UsageError(f"wait={wait!r:.80} is no time to wait", hint="seconds: wait=10")
    return count, max(0.0, seconds)


Model: TypeAlias = Literal["clustering", "broadcasting"]


class ConsumerSpec(NamedTuple):
    """The specification of a consumer; immutable, so a forked child can open the same one again."""

    topic: str
    group: str | None
    tags: tuple[str, ...] = ()  # and `where`: see `wanted`
    model: Model = "clustering"
    start: Position = BEGIN
    auto_ack: bool = False
    codec: Callable[[bytes], Any] | None = None
    attempts_max: int | None = None  # None: what the group is set to
    ordered: bool = False
    function: Callable[[Any], Any] | None = None  # the listener, to which a broker may send one message to try
    where: str | None = None
    verify: bool | None = None  # whether records' checksums are looked at; None: the broker's setting
    invisible: float | None = None  # seconds; a simple consumer's, whose brokers may hide messages by themselves

    @property
    def wanted(self) -> Wanted:
        """The selection of the topic."""
        return Wanted(self.tags, self.where)

    @property
    def shares_queues(self) -> bool:
        """Whether it reads queues that it shares with other members."""
        return self.group is not None and self.model == "clustering" and self.invisible is None


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
        check_consumer_group(group)
        if rest.get("invisible") is not None:
            check_popping(group, topic)
    elif model == "clustering":
        raise UsageError(
            f'no group to read topic "{topic}" for',
            hint='subscribe(…, group="billing"), or model="broadcasting" to see every message without a group',
        )
    attempts_max = rest.get("attempts_max")
    if attempts_max is not None:
        rest["attempts_max"] = whole_in(attempts_max, 1, _COUNT_MAX)
        if rest["attempts_max"] is None:
            raise wrong_kind("attempts_max", attempts_max, "a number of deliveries, 1 or more", "attempts_max=17")
    begin = BEGIN if model == "clustering" else END
    position = begin if start is None else parse_position(start)
    wanted = wanted_of(tags, where)
    return ConsumerSpec(topic, group, wanted.tags, model, position, where=wanted.where, **rest)


def consumer_data(
    specs: Iterable[ConsumerSpec], subscription: Callable[[ConsumerSpec, str], SubscriptionData], *, retries: bool
) -> list[ConsumerData]:
    """Return one entry of a heartbeat for each group, with everything a connection reads for it.

    Args:
        subscription: returns what it says of a topic.
        retries: name the retry topics, too, which members of a group read.
    """
    groups: dict[str, ConsumerData] = {}
    for spec in specs:
        if spec.group is None:
            continue
        entry = groups.get(spec.group)
        if entry is None:
            entry = groups[spec.group] = ConsumerData(
                groupName=spec.group,
                subscriptionDataSet=[],
                messageModel=spec.model.upper(),
                consumeFromWhere="CONSUME_FROM_FIRST_OFFSET",
                sharesByTopic=True,
            )
            if retries and spec.model == "clustering":
                entry.subscriptionDataSet.append(subscription(spec, retry_topic(spec.group)))
        wanted = subscription(spec, spec.topic)
        if spec.invisible is not None:
            wanted.isPopped = True
        entry.subscriptionDataSet.append(wanted)
    return list(groups.values())


def reads_retries(spec: ConsumerSpec, specs: Iterable[ConsumerSpec]) -> bool:
    """Whether this is the consumer of its connection, out of `specs`, that reads the group's retry topic: its first."""
    if not spec.shares_queues:
        return False
    first = next((known for known in specs if known.group == spec.group and known.shares_queues), spec)
    return first.topic == spec.topic
