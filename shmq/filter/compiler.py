"""Expressions as filter programs, by the rules of RocketMQ's evaluator.

RocketMQ's odd results are kept; `tests/filter/java_rules.py` derives them a second time.

What is decided here and not for each message: every operand is a property (text, or missing), a number, a text, or a
*truth* (true, false, unknown). A property is read as the class of the number it meets: `a > 5` fails for "5.0" and for
"3000000000", which are no Integer, and a failure anywhere means the message does not match, as in RocketMQ.

    a = 5, a = 'x'       missing: unknown              5 = a, 'x' = a     missing: false
    a = b                both missing: true            a missing: unknown         b missing: false
    a = TRUE             "true" in any case            TRUE = a           fails unless missing: Java casts wrongly
    a < b                both as doubles               missing: unknown
    NOT a = 5            (NOT a) = 5, false or unknown: NOT binds tighter than any comparison
    a                    as a condition: unknown when missing, else false, for text is no truth
    a IN (…)             missing: unknown              a CONTAINS 'x', NOT CONTAINS    missing: false

Refused: NULL beside = or <>, TRUE = 5, an order of texts or truths, IN of anything but a property, BETWEEN with its
bounds exchanged, and a value where a condition is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

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
)
from shmq.filter.java_number import double_of, integer_of
from shmq.filter.program import NAMES_MAX, NumberClass, Program, Truth

DEPTH_MAX: Final = 100
_INTEGER_MAX: Final = (1 << 31) - 1
_INTEGER_RANGE: Final = (-_INTEGER_MAX - 1, _INTEGER_MAX)
_LONG_RANGE: Final = (-(1 << 63), (1 << 63) - 1)
_FALSE, _TRUE, _UNKNOWN, _FAILED = Truth.FALSE, Truth.TRUE, Truth.UNKNOWN, Truth.FAILED


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(frozen=True, slots=True)
class _Number:
    value: float  # an int unless DOUBLE
    kind: NumberClass


@dataclass(frozen=True, slots=True)
class _Text:
    text: str


@dataclass(frozen=True, slots=True)
class _Truth:
    """Something that pushes a truth; what is no condition (a minus before something else than a number) is unknown."""

    emit: Callable[[], None]
    is_condition: bool = True


_Operand: TypeAlias = _Name | _Number | _Text | _Truth


def compile_expression(expression: Expression) -> bytes:
    """Return the program of a condition.

    Raises:
        Refused: it compares what cannot be compared, or is too large.
    """
    for inner, depth in _walk(expression):
        if depth > DEPTH_MAX:
            raise Refused(inner.span, f"this is nested in more than {DEPTH_MAX} others")
    compiler = _Compiler()
    compiler.condition(expression)
    if (count := compiler.program.name_count) > NAMES_MAX:
        raise Refused(expression.span, f"{count} properties are named, at most {NAMES_MAX} can be")
    return compiler.program.data()


def _walk(expression: Expression) -> Iterator[tuple[Expression, int]]:
    pending = [(expression, 1)]
    while pending:
        each, depth = pending.pop()
        yield each, depth
        pending += [(child, depth + 1) for child in _children(each)]


def _children(expression: Expression) -> tuple[Expression, ...]:
    match expression:
        case Negative(value) | IsNull(value) | In(value) | Part(value) | Not(value):
            return (value,)
        case Comparison(_, left, right):
            return (left, right)
        case Between(value, low, high):
            return (value, low, high)
        case Junction(_, conditions):
            return conditions
        case _:
            return ()


class _Compiler:
    """Emits one expression."""

    def __init__(self) -> None:
        self.program = Program()

    def condition(self, expression: Expression) -> None:
        """Emit what is to be true or not."""
        operand = self._operand(expression)
        if isinstance(operand, _Name):
            self.program.bare(operand.name)
        elif isinstance(operand, _Truth) and operand.is_condition:
            operand.emit()
        else:
            raise Refused(expression.span, "this is a value, and a condition is needed", hint="compare it: a = 'x'")

    # -- operands
    def _operand(self, expression: Expression) -> _Operand:
        match expression:
            case Property(name):
                return _Name(name)
            case Literal(value):
                return self._literal(value)
            case Negative(value):
                return self._negative(self._operand(value))
            case Comparison():
                return _Truth(lambda: self._compare(expression))
            case Between():
                return _Truth(lambda: self._between(expression))
            case IsNull(value):
                return _Truth(lambda: self._is_null(value))
            case In():
                return _Truth(lambda: self._in(expression))
            case Part():
                return _Truth(lambda: self._part(expression))
            case Not(condition):
                return _Truth(lambda: self._not(condition))
            case Junction(is_and, conditions):
                return _Truth(lambda: self._join([_Later(self, each) for each in conditions], is_and=is_and))

    def _literal(self, value: str | float | bool | None) -> _Operand:
        if value is None or isinstance(value, bool):
            truth = _UNKNOWN if value is None else Truth(value)
            return _Truth(lambda: self.program.push(truth))
        if isinstance(value, str):
            return _Text(value)
        if isinstance(value, int):
            return _Number(value, NumberClass.INTEGER if value <= _INTEGER_MAX else NumberClass.LONG)
        return _Number(value, NumberClass.DOUBLE)

    def _negative(self, operand: _Operand) -> _Operand:
        if isinstance(operand, _Number):
            return _Number(-operand.value, operand.kind)

        def emit() -> None:
            if isinstance(operand, _Truth):  # it may fail
                operand.emit()
                self.program.map(_UNKNOWN, _UNKNOWN, _UNKNOWN)
            else:
                self.program.push(_UNKNOWN)

        return _Truth(emit, is_condition=False)

    # -- conditions
    def _not(self, condition: Expression) -> None:
        self.condition(condition)
        self.program.negate()

    def _join(self, conditions: list[Callable[[], None]], *, is_and: bool) -> None:
        jumps = []
        for number, emit in enumerate(conditions):
            if number:
                jumps.append(self.program.jump(if_true=not is_and))
            emit()
            if number:
                (self.program.both if is_and else self.program.either)()
        self.program.land(*jumps)

    def _is_null(self, value: Expression) -> None:
        operand = self._operand(value)
        if isinstance(operand, _Name):
            self.program.missing(operand.name)
        elif isinstance(operand, _Truth):
            operand.emit()
            self.program.map(_FALSE, _FALSE, _TRUE)
        else:
            self.program.push(_FALSE)

    def _in(self, expression: In) -> None:
        if not isinstance(expression.value, Property):
            raise Refused(expression.value.span, "only a property can be IN a list")
        self.program.is_in(expression.value.name, expression.texts, negated=expression.negated)

    def _part(self, expression: Part) -> None:
        operand, text = self._operand(expression.value), expression.text
        if isinstance(operand, _Name):
            self.program.part(operand.name, expression.place.value, text, negated=expression.negated)
        elif isinstance(operand, _Truth) and text:
            operand.emit()
            self.program.map(_FALSE, _FALSE, _FALSE)
        elif isinstance(operand, _Text) and text:
            self.program.push(Truth(_occurs(text, operand.text, expression.place) != expression.negated))
        else:
            self.program.push(_FALSE)

    def _between(self, expression: Between) -> None:
        low, high = expression.low, expression.high
        if isinstance(low, Literal) and isinstance(high, Literal):
            bounds = self._literal(low.value), self._literal(high.value)
            if all(isinstance(bound, _Number) for bound in bounds) and high.value < low.value:  # type: ignore[operator]
                raise Refused(low.span, f"BETWEEN {low.value} AND {high.value} selects nothing", hint="exchange them")
        relations = (
            (Relation.LESS, Relation.GREATER) if expression.negated else (Relation.GREATER_EQUAL, Relation.LESS_EQUAL)
        )
        comparisons = [
            Comparison(relation, expression.value, bound, expression.span)
            for relation, bound in zip(relations, (low, high), strict=True)
        ]
        self._join([_Later(self, each) for each in comparisons], is_and=not expression.negated)

    # -- comparisons
    def _compare(self, expression: Comparison) -> None:
        check = _check_equal if expression.relation is Relation.EQUAL else _check_order
        left, right = self._operand(expression.left), self._operand(expression.right)
        check(expression, left, right)
        match left, right:
            case _Name(first), _Name(second):
                self.program.pair(first, second, expression.relation.value)
            case _Name(name), _Number():
                self._number(name, expression.relation, right, _UNKNOWN)
            case _Number(), _Name(name):
                is_equal = expression.relation is Relation.EQUAL
                self._number(name, expression.relation.mirrored, left, _FALSE if is_equal else _UNKNOWN)
            case ((_Number() | _Text()), (_Number() | _Text())):
                self.program.push(_constants(expression.relation, left, right))
            case _ if expression.relation is Relation.EQUAL:
                self._equal(left, right)
            case _:
                self._order_unknown(left, right)

    def _number(self, name: str, relation: Relation, number: _Number, missing: Truth) -> None:
        self.program.number(name, relation.value, missing, number.kind, number.value)

    def _order_unknown(self, left: _Operand, right: _Operand) -> None:
        """An order with something that is always unknown; only whether it fails has to be found out."""
        if isinstance(left, _Truth):
            left.emit()
            return
        assert isinstance(right, _Truth)
        if not isinstance(left, _Name):
            right.emit()
            return
        self.program.missing(left.name)
        jump = self.program.jump(if_true=True)  # Java does not look at the right side then
        right.emit()
        self.program.either()
        self.program.land(jump)
        self.program.map(_UNKNOWN, _UNKNOWN, _UNKNOWN)

    def _equal(self, left: _Operand, right: _Operand) -> None:
        """A property and a text, or a truth and anything."""
        program = self.program
        match left, right:
            case _Name(name), _Text(text):
                program.text(name, _UNKNOWN, text)
            case _Text(text), _Name(name):
                program.text(name, _FALSE, text)
            case _Name(name), _Truth(emit):
                emit()
                program.name_truth(name)
            case _Truth(emit), _Name(name):
                emit()
                program.truth_name(name)
            case _Truth(first), _Truth(second):
                first()
                second()
                program.equal()
            case _Truth(emit), _Number():
                emit()
                program.map(_FALSE, _FALSE, _UNKNOWN)
            case _Truth(emit), _Text():
                emit()
                program.map(_FAILED, _FAILED, _UNKNOWN)
            case _Text(text), _Truth(emit):
                emit()
                is_true = text.lower() == "true"
                program.map(Truth(not is_true), Truth(is_true), _FALSE)
            case _, _Truth(emit):
                emit()
                program.map(_FALSE, _FALSE, _FALSE)


@dataclass(frozen=True, slots=True)
class _Later:
    """A condition to be emitted when it is called for."""

    compiler: _Compiler
    expression: Expression

    def __call__(self) -> None:
        self.compiler.condition(self.expression)


# -- what is refused


def _check_equal(expression: Comparison, left: _Operand, right: _Operand) -> None:
    for side in (expression.left, expression.right):
        if isinstance(side, Literal) and side.value is None:
            raise Refused(side.span, "NULL cannot be compared", hint="use IS NULL or IS NOT NULL")
    both_constant = isinstance(expression.left, Literal) and isinstance(expression.right, Literal)
    if both_constant and isinstance(left, _Truth) and not isinstance(right, _Truth):
        raise Refused(expression.span, "TRUE and FALSE can only be compared with each other, or with a property")


def _check_order(expression: Comparison, left: _Operand, right: _Operand) -> None:
    for side, operand in ((expression.left, left), (expression.right, right)):
        if isinstance(operand, _Text):
            raise Refused(side.span, "texts have no order, only numbers do", hint="leave the quotes out: a > 5")
        if isinstance(operand, _Truth) and operand.is_condition:
            raise Refused(side.span, "conditions have no order, only numbers do")


# -- what is known already


def _occurs(part: str, text: str, place: Place) -> bool:
    if place is Place.ANYWHERE:
        return part in text
    return text.startswith(part) if place is Place.START else text.endswith(part)


def _constants(relation: Relation, left: _Number | _Text, right: _Number | _Text) -> Truth:
    """Compare two constants; a text beside a number is read as one."""
    if isinstance(left, _Text) and isinstance(right, _Text):
        return Truth(left.text == right.text)
    kinds = [side.kind for side in (left, right) if isinstance(side, _Number)]
    values = [_value(side, kinds[0]) for side in (left, right)]
    if None in values:
        return _FAILED
    if NumberClass.DOUBLE in kinds:
        values = [float(value) for value in values if value is not None]
    first, second = values
    assert first is not None and second is not None
    return Truth(
        {
            Relation.EQUAL: first == second,
            Relation.LESS: first < second,
            Relation.LESS_EQUAL: first <= second,
            Relation.GREATER: first > second,
            Relation.GREATER_EQUAL: first >= second,
        }[relation]
    )


def _value(side: _Number | _Text, kind: NumberClass) -> float | None:
    if isinstance(side, _Number):
        return side.value
    if kind is NumberClass.DOUBLE:
        return double_of(side.text)
    return integer_of(side.text, *(_INTEGER_RANGE if kind is NumberClass.INTEGER else _LONG_RANGE))
