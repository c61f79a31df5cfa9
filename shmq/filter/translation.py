"""Translates the text of an SQL92 filter into a program, or says what is wrong with it.

The limits of a text and the words of an error are here.
"""

from __future__ import annotations

from shmq.errors import FilterSyntaxError
from shmq.filter.compiler import compile_expression
from shmq.filter.expression import Refused, Span
from shmq.filter.grammar import parse_expression
from shmq.filter.program import CHARACTERS_MAX


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
