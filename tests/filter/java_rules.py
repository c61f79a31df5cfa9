"""RocketMQ's evaluator a second time, slowly: a recursive-descent parser of the grammar and one method per Java class.

Shares nothing with the product: no lark, no compilation, values are Python objects that carry their Java class. Tests
compare the two. Differs from RocketMQ in one point on purpose: what follows the expression is refused.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

FALSE, TRUE, UNKNOWN, FAILED = range(4)


class Refused(Exception):
    """The parser of RocketMQ throws."""


class Thrown(Exception):
    """The evaluator throws."""


class Integer(int):
    """java.lang.Integer"""


class Long(int):
    """java.lang.Long"""


# A node: what Java's instanceof would say of it, and its evaluate().
class Node(NamedTuple):
    evaluate: Callable[[Mapping[str, str]], Any]
    is_boolean: bool = False
    is_constant: bool = False
    is_property: bool = False
    value: Any = None


TOKEN = re.compile(
    r"""(?P<skip>[ \t\n\r\f]+|--[^\n\r]*|/\*(?:[^*]|\*(?!/))*\*/)
    |(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>0|[1-9]\d*[lL]?)
    |(?P<string>'(?:''|[^'])*')
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<sign><>|<=|>=|[=<>()+,-])""",
    re.VERBOSE | re.ASCII,
)
KEYWORDS = ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]


def tokens_of(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise Refused(f"lexical error at {at}")
        at = match.end()
        kind, image = match.lastgroup or "", match.group()
        if kind == "word" and image.upper() in KEYWORDS:
            found.append((image.upper(), image))
        elif kind == "sign":
            found.append((image, image))
        elif kind != "skip":
            found.append((kind, image))
    return [*found, ("end", "")]


class Parser:
    def __init__(self, text: str) -> None:
        self.tokens = tokens_of(text)
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)][0]

    def take(self, *kinds: str) -> str:
        if self.peek() not in kinds:
            raise Refused(f"{self.tokens[self.at]} instead of {kinds}")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def whole(self) -> Node:
        node = as_boolean(self.either())
        self.take("end")
        return node

    def either(self) -> Node:
        left = self.both()
        while self.peek() == "OR":
            self.at += 1
            left = logic(as_boolean(left), as_boolean(self.both()), decided=True)
        return left

    def both(self) -> Node:
        left = self.equality()
        while self.peek() == "AND":
            self.at += 1
            left = logic(as_boolean(left), as_boolean(self.equality()), decided=False)
        return left

    def equality(self) -> Node:
        left = self.comparison()
        while True:
            kind = self.peek()
            if kind == "=":
                self.at += 1
                left = equal(left, self.comparison())
            elif kind == "<>":
                self.at += 1
                left = negate(equal(left, self.comparison()))
            elif kind == "IS" and self.peek(1) == "NULL":
                self.at += 2
                left = raw_equal(left, NULL)
            elif kind == "IS":
                self.at += 1
                self.take("NOT")
                self.take("NULL")
                left = negate(raw_equal(left, NULL))
            else:
                return left

    def comparison(self) -> Node:
        left = self.unary()
        while True:
            kind = self.peek()
            negated = kind == "NOT" and self.peek(1) in ("CONTAINS", "STARTSWITH", "ENDSWITH", "BETWEEN", "IN")
            if negated:
                self.at += 1
                kind = self.peek()
            if kind in (">", ">=", "<", "<="):
                self.at += 1
                left = ordered(left, self.unary(), kind)
            elif kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
                self.at += 1
                left = part(left, unquote(self.take("string")), kind, negated)
            elif kind == "BETWEEN":
                self.at += 1
                low = self.unary()
                self.take("AND")
                left = between(left, low, self.unary(), negated)
            elif kind == "IN":
                self.at += 1
                left = contained(left, self.texts(), negated)
            elif negated:
                raise Refused("NOT")
            else:
                return left

    def texts(self) -> list[str]:
        self.take("(")
        found = [unquote(self.take("string"))]
        while self.peek() == ",":
            self.at += 1
            found.append(unquote(self.take("string")))
        self.take(")")
        return found

    def unary(self) -> Node:
        kind = self.peek()
        if kind == "+":
            self.at += 1
            return self.unary()
        if kind == "-":
            self.at += 1
            return minus(self.unary())
        if kind == "NOT":
            self.at += 1
            return negate(as_boolean(self.unary()))
        return self.primary()

    def primary(self) -> Node:
        kind = self.peek()
        if kind == "(":
            self.at += 1
            inner = self.either()
            self.take(")")
            return inner
        image = self.take("string", "int", "float", "TRUE", "FALSE", "NULL", "word")
        if kind == "string":
            return constant(unquote(image))
        if kind == "int":
            number = int(image.rstrip("lL"))
            if number >= 1 << 63:
                raise Refused("NumberFormatException")
            return constant(Integer(number) if number < 1 << 31 else Long(number))
        if kind == "float":
            real = float(image)
            if real < 5e-324 or math.isinf(real):
                raise Refused("range")
            return constant(real)
        if kind == "word":
            return Node(lambda properties: properties.get(image), is_property=True)
        return {"TRUE": YES, "FALSE": NO, "NULL": NULL}[kind]


def unquote(image: str) -> str:
    return image[1:-1].replace("''", "'")


def constant(value: Any) -> Node:
    return Node(lambda _: value, is_constant=True, value=value)


def boolean_constant(value: bool | None) -> Node:
    return Node(lambda _: value, is_boolean=True, is_constant=True, value=value)


YES, NO, NULL = boolean_constant(True), boolean_constant(False), boolean_constant(None)


def condition(evaluate: Callable[[Mapping[str, str]], Any]) -> Node:
    return Node(evaluate, is_boolean=True)


def as_boolean(node: Node) -> Node:
    if node.is_boolean:
        return node
    if not node.is_property:
        raise Refused("not boolean")
    return condition(lambda properties: None if node.evaluate(properties) is None else False)


def logic(left: Node, right: Node, *, decided: bool) -> Node:
    def evaluate(properties: Mapping[str, str]) -> Any:
        first = left.evaluate(properties)
        if first is decided:
            return decided
        second = right.evaluate(properties)
        if second is decided:
            return decided
        return None if first is None or second is None else not decided

    return condition(evaluate)


def negate(node: Node) -> Node:
    def evaluate(properties: Mapping[str, str]) -> Any:
        value = node.evaluate(properties)
        return None if value is None else not value

    return condition(evaluate)


def minus(node: Node) -> Node:
    def evaluate(properties: Mapping[str, str]) -> Any:
        value = node.evaluate(properties)
        if isinstance(value, (Integer, Long)):
            return type(value)(-value)
        return -value if isinstance(value, float) else None

    return Node(evaluate)


def contained(node: Node, texts: list[str], negated: bool) -> Node:
    if not node.is_property:
        raise Refused("IN")

    def evaluate(properties: Mapping[str, str]) -> Any:
        value = node.evaluate(properties)
        return None if value is None else (value in texts) != negated

    return condition(evaluate)


def part(node: Node, text: str, kind: str, negated: bool) -> Node:
    def evaluate(properties: Mapping[str, str]) -> Any:
        if not text:
            return False
        value = node.evaluate(properties)
        if not isinstance(value, str):
            return False
        found = {"CONTAINS": value.find(text) >= 0, "STARTSWITH": value[: len(text)] == text}.get(
            kind, value[-len(text) :] == text
        )
        return found != negated

    return condition(evaluate)


def between(value: Node, low: Node, high: Node, negated: bool) -> Node:
    if low.is_constant and high.is_constant:
        if low.value is None or high.value is None:
            raise Refused("null bound")
        try:
            if compare(high.value, low.value) < 0:
                raise Refused("bounds")
        except Thrown:
            raise Refused("bounds") from None
    if negated:
        return logic(ordered(value, low, "<"), ordered(value, high, ">"), decided=True)
    return logic(ordered(value, low, ">="), ordered(value, high, "<="), decided=False)


def equal(left: Node, right: Node) -> Node:
    for side in (left, right):
        if side.is_constant and side.value is None:
            raise Refused("null")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise Refused("types")
    return raw_equal(left, right)


def raw_equal(left: Node, right: Node) -> Node:
    def evaluate(properties: Mapping[str, str]) -> Any:
        first, second = left.evaluate(properties), right.evaluate(properties)
        if (first is None) != (second is None):
            return None if first is None else False
        if first is None:
            return True
        if type(first) is type(second) and first == second:
            return True
        return compare(first, second) == 0

    return condition(evaluate)


def ordered(left: Node, right: Node, sign: str) -> Node:
    for side in (left, right):
        if side.is_constant and (isinstance(side.value, (str, bool)) or side.value is None):
            raise Refused("order")
        if side.is_boolean:
            raise Refused("order")

    def evaluate(properties: Mapping[str, str]) -> Any:
        first = left.evaluate(properties)
        if first is None:
            return None
        second = right.evaluate(properties)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            first, second = java_double(first), java_double(second)
        order = compare(first, second)
        return {">": order > 0, ">=": order >= 0, "<": order < 0, "<=": order <= 0}[sign]

    return condition(evaluate)


def compare(left: Any, right: Any) -> int:
    """ComparisonExpression.__compare with convertStringExpressions."""
    if type(left) is not type(right):
        if isinstance(left, bool):
            if isinstance(right, str):
                raise Thrown("ClassCastException")
            return -1
        if isinstance(right, bool):
            if not isinstance(left, str):
                return -1
            left = left.lower() == "true"
        elif isinstance(left, str):
            left = converted(left, type(right))
        elif isinstance(right, str):
            right = converted(right, type(left))
        elif isinstance(left, float) or isinstance(right, float):
            left, right = float(left), float(right)
    return java_order(left, right) if isinstance(left, float) else (left > right) - (left < right)


def converted(text: str, kind: type) -> Any:
    if kind is float:
        return java_double(text)
    bits = 31 if kind is Integer else 63
    if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(1 << bits) <= int(text) < 1 << bits:
        raise Thrown("NumberFormatException")
    return kind(int(text))


def java_double(text: str) -> float:
    bare = text.strip("".join(map(chr, range(33))))
    if re.fullmatch(r"[+-]?(NaN|Infinity)", bare):
        return math.nan if "NaN" in bare else float(bare)
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?", bare, re.ASCII):
        return float(bare.rstrip("fFdD"))
    hexadecimal = re.fullmatch(
        r"([+-]?)0[xX](?:([0-9a-fA-F]+)\.?([0-9a-fA-F]*)|\.([0-9a-fA-F]+))[pP]([+-]?[0-9]+)[fFdD]?", bare
    )
    if hexadecimal is None:
        raise Thrown("NumberFormatException")
    sign, whole, behind, only_behind, exponent = hexadecimal.groups()
    fraction = behind or only_behind or ""
    try:
        value = float.fromhex(f"0x{whole or '0'}.{fraction or '0'}p{exponent}")
    except OverflowError:
        value = math.inf
    return -value if sign == "-" else value


def java_order(left: float, right: float) -> int:
    """Double.compareTo"""
    if left < right or left > right:
        return -1 if left < right else 1
    first, second = (struct.unpack("<q", struct.pack("<d", math.nan if v != v else v))[0] for v in (left, right))
    return (first > second) - (first < second)


def parse(text: str) -> Node:
    """Raises Refused."""
    return Parser(text).whole()


def outcome(node: Node, properties: Mapping[str, str]) -> int:
    """FALSE, TRUE, UNKNOWN or FAILED."""
    try:
        value = node.evaluate(properties)
    except Thrown:
        return FAILED
    return UNKNOWN if value is None else int(value)
