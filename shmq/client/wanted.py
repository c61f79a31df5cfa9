"""What a consumer wants of a topic: some tags, what an SQL92 expression selects, or both at once.

This module checks both and makes the words a broker is told.

    tags        where        told a broker as               looked at
    ()          None         TAG *                          –
    a, b        None         TAG a || b                     hashes by the broker or the core, tags by the reader
    ()          expression   SQL92 expression               by a broker for TCP clients, else by the reading process
    a, b        expression   SQL92 TAGS IN … AND (…)        both of the above
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from shmq.errors import UsageError
from shmq.filter.sql import SQL92, sql_filter, with_tags
from shmq.protocol.body import SubscriptionData
from shmq.shm.core import Filter, tag_hash

TAG = "TAG"


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
        UsageError: an empty tag, or one that cannot be written in an expression.
        FilterSyntaxError: `where` is no expression; the error points at the fault.
    """
    wanted = Wanted(parse_tags(tags), where)
    if where is not None:
        sql_filter(where)
        sql_filter(wanted.expression)  # too long with the tags?
    return wanted


def parse_tags(tags: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the tags of `"fruit || veg"` or `["fruit", "veg"]`; () stands for all messages.

    Raises:
        UsageError: an empty tag, or one that cannot be written in an expression.
    """
    if tags is None:
        return ()
    parts = [part.strip() for part in (tags.split("||") if isinstance(tags, str) else tags)]
    if "*" in parts or parts == [""]:
        return ()
    if not parts or not all(parts) or any("|" in part for part in parts):
        raise UsageError(
            f"tags {tags!r} hold an empty tag or a single |", hint='tags="fruit || veg" or ["fruit", "veg"]'
        )
    return tuple(dict.fromkeys(parts))
