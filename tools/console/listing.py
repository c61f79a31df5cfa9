"""A long list on a page: filtered by a word, sorted by a column, one part of it at a time.

Only the part that is shown is rendered, so a page of ten thousand topics costs a sort of them.

    ?q=ord&sort=-lag&page=2        - sorts the largest first; what cannot be known comes last either way
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from starlette.requests import Request

ROWS_MAX = 100
Row = TypeVar("Row")


class Listing(NamedTuple, Generic[Row]):
    """One part of a list, and where it lies in the whole."""

    rows: tuple[Row, ...]
    total: int
    page: int
    pages: int
    sort: str
    descending: bool
    words: str

    @property
    def first(self) -> int:
        """The number of the first row, from 1."""
        return min(self.total, (self.page - 1) * ROWS_MAX + 1)

    @property
    def last(self) -> int:
        """The number of the last row."""
        return min(self.total, self.page * ROWS_MAX)


def listing_of(
    request: Request,
    rows: Iterable[Row],
    columns: Mapping[str, Callable[[Row], Any]],
    *,
    name: Callable[[Row], str],
    sort: str = "name",
) -> Listing[Row]:
    """Return the part of a list that a request asks for.

    Args:
        columns: what can be sorted by, beside "name".
        name: what a word is looked for in, and what equals are sorted by.
        sort: what it is sorted by unless the request says so.
    """
    wanted = request.query_params
    words = wanted.get("q", "").strip()
    found = [row for row in rows if words.lower() in name(row).lower()] if words else list(rows)
    found.sort(key=name)
    asked = wanted.get("sort", sort)
    column, descending = asked.removeprefix("-"), asked.startswith("-")
    by = columns.get(column)
    if by is not None:
        known = [row for row in found if by(row) is not None]
        unknown = [row for row in found if by(row) is None]
        found = sorted(known, key=by, reverse=descending) + unknown
    elif descending:
        found.reverse()
    pages = max(1, -(-len(found) // ROWS_MAX))
    page = min(max(1, number_of(wanted.get("page"), 1)), pages)
    shown = tuple(found[(page - 1) * ROWS_MAX : page * ROWS_MAX])
    return Listing(shown, len(found), page, pages, column, descending, words)


def number_of(text: str | None, otherwise: int) -> int:
    """Return a number of a request; what is none, or missing, is another one."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return otherwise
    return int(text)
