"""The tree of an SQL92 expression; each part knows its place in the text.

`grammar` makes the tree from text, `compiler` checks it and turns it into a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Relation(Enum):
    """A comparison of two values; the value is the number in a filter program."""

    EQUAL = 0
    LESS = 1
    LESS_EQUAL = 2
    GREATER = 3
    GREATER_EQUAL = 4

    @property
    def mirrored(self) -> Relation:
        """The relation with its sides exchanged."""
        return _MIRRORED.get(self, self)


_MIRRORED = {
    Relation.LESS: Relation.GREATER,
    Relation.GREATER: Relation.LESS,
    Relation.LESS_EQUAL: Relation.GREATER_EQUAL,
    Relation.GREATER_EQUAL: Relation.LESS_EQUAL,
}


class Place(Enum):
    """The place of a text within a property; the value is the number in a filter program."""

    ANYWHERE = 0
    START = 1
    END = 2


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `end` of the text."""

    start: int
    end: int


class Refused(Exception):
    """The text at `span` is not allowed; `sql` words it for the user."""

    def __init__(self, span: Span, reason: str, *, hint: str = "") -> None:
        super().__init__(span, reason)
        self.span = span
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message property: text, or missing."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `int` is Java's Integer or Long, by its size; `None` is NULL."""

    value: str | int | float | bool | None
    span: Span


@dataclass(frozen=True, slots=True)
class Negative:
    """A minus sign and what follows it."""

    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values and the relation asked for; `<>` is a `Not` around EQUAL."""

    relation: Relation
    left: Expression
    right: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Between:
    """Whether a value lies between two others, both included; or, `negated`, beyond one of them."""

    value: Expression
    low: Expression
    high: Expression
    negated: bool
    span: Span


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a value is missing; IS NOT NULL is a `Not` around it."""

    value: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class In:
    """Whether a property is one of some texts."""

    value: Expression
    texts: tuple[str, ...]
    negated: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Part:
    """Whether a text occurs in a value."""

    value: Expression
    place: Place
    text: str
    negated: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a condition."""

    condition: Expression
    span: Span


@dataclass(frozen=True, slots=True)
class Junction:
    """Conditions joined by AND (`is_and`) or OR; two at least, looked at from the left until one decides."""

    is_and: bool
    conditions: tuple[Expression, ...]
    span: Span


Expression: TypeAlias = Property | Literal | Negative | Comparison | Between | IsNull | In | Part | Not | Junction
