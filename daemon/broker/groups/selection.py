"""Compiles a subscription into tag hashes or an SQL92 filter.

Tags are compared by the hashes that ConsumeQueue units carry; the client compares the tags themselves again, since
hashes collide. An SQL92 filter looks at the properties and is exact.

    wanted = select(expression, kind, settings)
    log.read(queue, offset, …, tags=wanted.tags, where=wanted.where)
"""

from functools import lru_cache
from typing import NamedTuple

from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import FilterSyntaxError, RemoteError
from shmq.filter.sql import SQL92, sql_filter
from shmq.protocol.codes import Response
from shmq.shm.core import Filter, tag_hash
from shmq.words import tags_in

TAG = "TAG"
_EVERYTHING = "*"
_EXPRESSIONS = 1024  # kept parsed; a consumer repeats its own with each pull
_SHORT, _LONG_EXPRESSIONS = 1024, 64  # longer ones have fewer places, so that all together stay small


class Selection(NamedTuple):
    """Hashes of the tags wanted, a filter, or neither: all messages."""

    tags: tuple[int, ...] | None = None
    where: Filter | None = None


def select(expression: str, kind: str | None, settings: BrokerSettings) -> Selection:
    """Return what a subscription selects.

    Args:
        kind: the expression type of the subscription; None and "" stand for tags.

    Raises:
        FilterSyntaxError: the expression is none of its kind, or too long.
        RemoteError: this broker does not filter by that kind.
    """
    if kind and kind != TAG:
        check_kind(kind, settings)
        return Selection(where=sql_filter(expression))
    if len(expression) > settings.tags_characters_max:
        most = settings.tags_characters_max
        raise FilterSyntaxError(f"a subscription of {len(expression)} characters; {most} are allowed")
    return Selection(tags=hashes_of(expression) if len(expression) <= _SHORT else _long_hashes_of(expression))


def characters_max(kind: str | None, settings: BrokerSettings) -> int:
    """Return how long an expression of a kind may be."""
    return settings.expression_characters_max if kind and kind != TAG else settings.tags_characters_max


def check_kind(kind: str, settings: BrokerSettings) -> None:
    """Refuse a kind of expression other than tags that is not filtered by.

    Raises:
        RemoteError: in RocketMQ's words.
    """
    if kind != SQL92 or not settings.property_filter:
        remark = f"The broker does not support consumer to filter message by {kind[:32]}"
        raise RemoteError(Response.SYSTEM_ERROR, remark)


@lru_cache(_EXPRESSIONS)
def hashes_of(expression: str) -> tuple[int, ...] | None:
    """Return the hashes of the tags an expression names; None for all messages.

    Raises:
        FilterSyntaxError: it consists of separators only.
    """
    return _hashes_of(expression)


@lru_cache(_LONG_EXPRESSIONS)
def _long_hashes_of(expression: str) -> tuple[int, ...] | None:
    return _hashes_of(expression)


def _hashes_of(expression: str) -> tuple[int, ...] | None:
    if not expression or expression == _EVERYTHING:
        return None
    tags = list(filter(None, tags_in(expression)))
    if not tags:
        raise FilterSyntaxError(f"the subscription {expression[:64]!a} names no tag")
    return tuple(dict.fromkeys(map(tag_hash, tags)))
