"""Compiles SQL92 filters: text in, `Filter` or an error that points at the fault out.

The limits of a text and the words of an error are here.

    wanted = sql_filter("region = 'eu' AND qty BETWEEN 1 AND 10")
    wanted.matches(message)                  # or property text, as bytes

The core's readers and pulls take the filter as `where=` and look at no message in Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from shmq.errors import FilterSyntaxError
from shmq.filter.compiler import compile_expression
from shmq.filter.expression import Refused, Span
from shmq.filter.grammar import parse_expression
from shmq.shm.core import Filter

SQL92: Final = "SQL92"
CHARACTERS_MAX: Final = 8192
_COMPILED: Final = 1024  # kept; a client repeats its filter with every pull


@lru_cache(_COMPILED)
def sql_filter(text: str) -> Filter:
    """Return the filter an expression describes.

    Raises:
        FilterSyntaxError: it is none; the error says where and why.
    """
    return Filter(sql_program(text))


def sql_program(text: str) -> bytes:
    """Return the program an expression compiles to; see `bindings/core/filter/filter.h`.

    Raises:
        FilterSyntaxError: it is none; the error says where and why.
    """
    try:
        _check_text(text)
        return compile_expression(parse_expression(text))
    except Refused as refused:
        raise _syntax_error(text, refused) from None


def with_tags(where: str | None, tags: Iterable[str]) -> str | None:
    """Return an expression that asks for one of some tags as well; None without either."""
    listed = ", ".join("'" + tag.replace("'", "''") + "'" for tag in tags)
    if where is None or not listed:
        return where
    return f"TAGS IN ({listed}) AND ({where}\n)"  # the line may end in a comment


def _check_text(text: str) -> None:
    if len(text) > CHARACTERS_MAX:
        reason = f"the expression has {len(text)} characters, {CHARACTERS_MAX} at most can be"
        raise Refused(Span(CHARACTERS_MAX, CHARACTERS_MAX + 1), reason)
    if not text.strip():
        raise Refused(Span(0, 0), "the expression is empty", hint="leave it out to take all messages")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(Span(error.start, error.end), "a character that UTF-8 does not have") from None


def _syntax_error(text: str, refused: Refused) -> FilterSyntaxError:
    span = refused.span
    return FilterSyntaxError(refused.reason, hint=refused.hint, text=text, start=span.start, end=span.end)
