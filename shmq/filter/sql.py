"""SQL92 filters: text in, `Filter` or an error that points at the fault out.

    wanted = sql_filter("region = 'eu' AND qty BETWEEN 1 AND 10")
    wanted.matches(message)                  # or property text, as bytes

The core's readers and pulls take the filter as `where=` and look at no message in Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from shmq.shm.core import Filter

SQL92: Final = "SQL92"
_COMPILED: Final = 1024  # kept; a client repeats its filter with every pull


@lru_cache(_COMPILED)
def sql_filter(text: str) -> Filter:
    """Return the filter an expression describes.

    Raises:
        FilterSyntaxError: it is none; the error says where and why.
    """
    from shmq.filter.translation import sql_program  # a tenth of the start of a broker, and most never meet a filter

    return Filter(sql_program(text))


def with_tags(where: str | None, tags: Iterable[str]) -> str | None:
    """Return an expression that asks for one of some tags as well; None without either."""
    listed = ", ".join("'" + tag.replace("'", "''") + "'" for tag in tags)
    if where is None or not listed:
        return where
    return f"TAGS IN ({listed}) AND ({where}\n)"  # the line may end in a comment
