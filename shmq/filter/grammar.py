"""Reading SQL92 text: RocketMQ's grammar of 5.3, through lark.

`compiler` says which comparisons make sense, `sql` words an error for the user.

    loosest   OR
              AND
              =  <>  IS [NOT] NULL
              >  >=  <  <=  [NOT] BETWEEN … AND …  [NOT] IN (…)  [NOT] CONTAINS | STARTSWITH | ENDSWITH '…'
              NOT  +  -
    tightest  'text'  12  12L  1.5  1E3  TRUE  FALSE  NULL  name  (…)

Keywords in any case; names are [A-Za-z_$][A-Za-z0-9_$]*; comments are `-- …` and `/* … */`. RocketMQ ignores whatever
follows the first complete expression: `a = 1 b = 2` selects there what `a = 1` selects. Here it is an error.

lark is imported when the first expression is read, not by `import shmq`.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from shmq.filter.expression import (
    Between,
    Comparison,
    Expression,
    In,
    IsNull,
    Junction,
    Literal,
    Negative,
    Not,
    Part,
    Place,
    Property,
    Refused,
    Relation,
    Span,
)

if TYPE_CHECKING:
    from lark import Lark, Token

_LONG_MAX: Final = (1 << 63) - 1
_DOUBLE_MIN: Final = 5e-324
_DOUBLE_MAX: Final = 1.7976931348623157e308

_GRAMMAR: Final = r"""
?start: either
?either: both ("OR"i both)*                             -> either
?both: equal ("AND"i equal)*                            -> both
?equal: order
    | equal "=" order                                   -> equal
    | equal "<>" order                                  -> unequal
    | equal "IS"i "NULL"i                               -> is_null
    | equal "IS"i "NOT"i "NULL"i                        -> is_not_null
?order: unary
    | order ">" unary                                   -> greater
    | order ">=" unary                                  -> greater_equal
    | order "<" unary                                   -> less
    | order "<=" unary                                  -> less_equal
    | order "BETWEEN"i unary "AND"i unary               -> between
    | order "NOT"i "BETWEEN"i unary "AND"i unary        -> not_between
    | order "IN"i texts                                 -> is_in
    | order "NOT"i "IN"i texts                          -> not_in
    | order "CONTAINS"i TEXT                            -> contains
    | order "NOT"i "CONTAINS"i TEXT                     -> not_contains
    | order "STARTSWITH"i TEXT                          -> starts
    | order "NOT"i "STARTSWITH"i TEXT                   -> not_starts
    | order "ENDSWITH"i TEXT                            -> ends
    | order "NOT"i "ENDSWITH"i TEXT                     -> not_ends
texts: "(" TEXT ("," TEXT)* _CLOSE
?unary: primary
    | "+" unary
    | MINUS unary                                       -> negative
    | NOT unary                                         -> negation
?primary: TEXT                                          -> text
    | DECIMAL                                           -> decimal
    | FLOATING                                          -> floating
    | TRUE                                              -> true
    | FALSE                                             -> false
    | NULL                                              -> null
    | NAME                                              -> name
    | "(" either ")"
MINUS: "-"
NOT: "NOT"i
TRUE: "TRUE"i
FALSE: "FALSE"i
NULL: "NULL"i
_CLOSE: ")"
TEXT: /'(?:''|[^'])*'/
FLOATING.2: /(?:[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)/i
DECIMAL: /(?:0|[1-9][0-9]*l?)/i
NAME: /[a-z_$][a-z0-9_$]*/i
BLANK: /[ \t\n\r\f]+/
LINE_COMMENT.3: /--[^\n\r]*/
BLOCK_COMMENT.3: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
%ignore BLANK
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""


def parse_expression(text: str) -> Expression:
    """Return what a text says.

    Raises:
        Refused: it is not written as the grammar wants.
    """
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    try:
        return _parser().parse(text)  # type: ignore[return-value]  # its transformer makes expressions, not trees
    except UnexpectedToken as error:
        found: Token = error.token
        if found.type == "$END":
            end = len(text.rstrip())
            raise _unexpected(text, Span(end, end), error.expected) from None
        raise _unexpected(text, _span(found), error.expected) from None
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise _unexpected(text, Span(at, at + 1), frozenset()) from None


@cache
def _parser() -> Lark:
    from lark import Lark

    # The basic lexer, because a keyword is one everywhere: "AND = 1" is no comparison of a property AND.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder())


# -- what rules become


def _over(first: Expression, last: Expression) -> Span:
    return Span(first.span.start, last.span.end)


def _span(token: Token) -> Span:
    return Span(token.start_pos or 0, token.end_pos or 0)


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _comparison(relation: Relation, left: Expression, right: Expression) -> Comparison:
    return Comparison(relation, left, right, _over(left, right))


def _junction(parts: list[Any], *, is_and: bool) -> Expression:
    if len(parts) == 1:  # what stands alone keeps its kind: "b = (a)" compares two properties
        return parts[0]  # type: ignore[no-any-return]
    return Junction(is_and, tuple(parts), _over(parts[0], parts[-1]))


class _Builder:
    """Makes the tree; lark calls a method for each rule, with the parts of the rule."""

    def either(self, parts: list[Any]) -> Expression:
        return _junction(parts, is_and=False)

    def both(self, parts: list[Any]) -> Expression:
        return _junction(parts, is_and=True)

    def equal(self, parts: list[Any]) -> Expression:
        return _comparison(Relation.EQUAL, *parts)

    def unequal(self, parts: list[Any]) -> Expression:
        inner = _comparison(Relation.EQUAL, *parts)
        return Not(inner, inner.span)

    def is_null(self, parts: list[Any]) -> Expression:
        return IsNull(parts[0], parts[0].span)

    def is_not_null(self, parts: list[Any]) -> Expression:
        return Not(self.is_null(parts), parts[0].span)

    def greater(self, parts: list[Any]) -> Expression:
        return _comparison(Relation.GREATER, *parts)

    def greater_equal(self, parts: list[Any]) -> Expression:
        return _comparison(Relation.GREATER_EQUAL, *parts)

    def less(self, parts: list[Any]) -> Expression:
        return _comparison(Relation.LESS, *parts)

    def less_equal(self, parts: list[Any]) -> Expression:
        return _comparison(Relation.LESS_EQUAL, *parts)

    def between(self, parts: list[Any], *, negated: bool = False) -> Expression:
        value, low, high = parts
        return Between(value, low, high, negated, _over(value, high))

    def not_between(self, parts: list[Any]) -> Expression:
        return self.between(parts, negated=True)

    def texts(self, parts: list[Any]) -> list[Token]:
        return parts

    def is_in(self, parts: list[Any], *, negated: bool = False) -> Expression:
        value, texts = parts
        span = Span(value.span.start, _span(texts[-1]).end)
        return In(value, tuple(dict.fromkeys(map(_unquoted, texts))), negated, span)

    def not_in(self, parts: list[Any]) -> Expression:
        return self.is_in(parts, negated=True)

    def contains(self, parts: list[Any]) -> Expression:
        return _part(Place.ANYWHERE, parts, negated=False)

    def not_contains(self, parts: list[Any]) -> Expression:
        return _part(Place.ANYWHERE, parts, negated=True)

    def starts(self, parts: list[Any]) -> Expression:
        return _part(Place.START, parts, negated=False)

    def not_starts(self, parts: list[Any]) -> Expression:
        return _part(Place.START, parts, negated=True)

    def ends(self, parts: list[Any]) -> Expression:
        return _part(Place.END, parts, negated=False)

    def not_ends(self, parts: list[Any]) -> Expression:
        return _part(Place.END, parts, negated=True)

    def negative(self, parts: list[Any]) -> Expression:
        sign, value = parts
        return Negative(value, Span(_span(sign).start, value.span.end))

    def negation(self, parts: list[Any]) -> Expression:
        word, condition = parts
        return Not(condition, Span(_span(word).start, condition.span.end))

    def text(self, parts: list[Any]) -> Expression:
        return Literal(_unquoted(parts[0]), _span(parts[0]))

    def decimal(self, parts: list[Any]) -> Expression:
        digits, span = parts[0].rstrip("lL"), _span(parts[0])
        if len(digits) > 19 or int(digits) > _LONG_MAX:
            raise Refused(span, f"{digits[:32]} is above {_LONG_MAX}")
        return Literal(int(digits), span)

    def floating(self, parts: list[Any]) -> Expression:
        value, span = float(parts[0]), _span(parts[0])
        if not value:
            raise Refused(span, f"{parts[0][:32]} is below {_DOUBLE_MIN}, the least RocketMQ takes", hint="write 0")
        if value > _DOUBLE_MAX:
            raise Refused(span, f"{parts[0][:32]} is above {_DOUBLE_MAX}")
        return Literal(value, span)

    def true(self, parts: list[Any]) -> Expression:
        return Literal(True, _span(parts[0]))

    def false(self, parts: list[Any]) -> Expression:
        return Literal(False, _span(parts[0]))

    def null(self, parts: list[Any]) -> Expression:
        return Literal(None, _span(parts[0]))

    def name(self, parts: list[Any]) -> Expression:
        return Property(str(parts[0]), _span(parts[0]))


def _part(place: Place, parts: list[Any], *, negated: bool) -> Expression:
    value, text = parts
    return Part(value, place, _unquoted(text), negated, Span(value.span.start, _span(text).end))


# -- the words of an error

_WORDS: Final = {"_CLOSE": ")", "LPAR": "(", "COMMA": ","}
_VALUE: Final = frozenset({"TEXT", "DECIMAL", "NAME", "LPAR"})
_HINTS: Final = {
    "LIKE": "there is no LIKE: use CONTAINS 'x', STARTSWITH 'x' or ENDSWITH 'x'",
    '"': "texts stand in single quotes: 'x'",
    "!": "not equal is <>",
    "=": "equal is a single =",
    "'": "the text has no closing quote; a quote inside of one is written ''",
    ".": "names consist of letters, digits, _ and $",
    "[": "a list stands in ( and )",
    "&": "write AND",
    "|": "write OR",
    **dict.fromkeys("%*/+-", "there is no arithmetic"),
}


def _unexpected(text: str, span: Span, expected: Set[str]) -> Refused:
    found = text[span.start : span.end]
    shown = f'"{found[:32]}"' if found else "the end"
    hint = _HINTS.get(found.upper(), "")
    if expected >= _VALUE:
        wanted = "a value is expected"
    elif not found and "_CLOSE" in expected:
        wanted = "the parenthesis is not closed"
    elif "$END" in expected:
        wanted = "the expression is complete before it; AND, OR or the end is expected"
    elif expected == {"TEXT"}:
        wanted = "a text in single quotes is expected"
    elif expected:
        words = sorted(_WORDS.get(name, name) for name in expected if not name.startswith("__"))
        wanted = f"{' or '.join(words)} is expected"
    else:
        return Refused(span, f"nothing begins with {shown}", hint=hint)
    return Refused(span, f"{shown} stands where {wanted}", hint=hint)
