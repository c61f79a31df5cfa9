"""Writing a filter program: the bytes that `bindings/core/filter/filter.h` describes.

Here are the instruction numbers and operand widths of the Python side. The core runs a program over the property text
of a record without allocating anything, 0.2 us for three terms; it checks each program when it loads it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

CHARACTERS_MAX: Final = 8192
"""Of the text of a filter."""
NAMES_MAX: Final = 128

_HEAD: Final = struct.Struct("<IHHII")
_MAGIC: Final = int.from_bytes(b"SQL\x01", "little")


class Truth(IntEnum):
    """The value of a condition; FAILED is what Java would throw: the message does not match, whatever else is said."""

    FALSE = 0
    TRUE = 1
    UNKNOWN = 2
    FAILED = 3


class NumberClass(IntEnum):
    """As which of Java's classes a property is read."""

    INTEGER = 0
    LONG = 1
    DOUBLE = 2


class _Code(IntEnum):
    PUSH = 1
    FAIL = 2
    MISSING = 3
    BARE = 4
    NUMBER = 5
    TEXT = 6
    PAIR = 7
    IN = 8
    PART = 9
    NOT = 10
    AND = 11
    OR = 12
    JUMP_FALSE = 13
    JUMP_TRUE = 14
    EQUAL = 15
    TRUTH_NAME = 16
    NAME_TRUTH = 17
    MAP = 18


class Program:
    """Instructions in the order they are run; each is checked again when the core loads them."""

    def __init__(self) -> None:
        self._code = bytearray()
        self._names: dict[str, int] = {}
        self._depth = 0
        self._depth_max = 0

    @property
    def name_count(self) -> int:
        """How many different properties are named."""
        return len(self._names)

    def data(self) -> bytes:
        """Return the program."""
        names = b"".join(map(_counted, self._names))
        head = _HEAD.pack(_MAGIC, len(self._names), self._depth_max, len(names), len(self._code))
        return head + names + bytes(self._code)

    # -- instructions that push a truth
    def push(self, truth: Truth) -> None:
        """FAILED ends the run."""
        if truth is Truth.FAILED:
            self._leaf(_Code.FAIL, b"")
        else:
            self._leaf(_Code.PUSH, bytes((truth,)))

    def missing(self, name: str) -> None:
        """Whether there is no such property."""
        self._leaf(_Code.MISSING, self._name(name))

    def bare(self, name: str) -> None:
        """A property as a condition."""
        self._leaf(_Code.BARE, self._name(name))

    def number(self, name: str, relation: int, missing: Truth, kind: NumberClass, value: float) -> None:
        """Compare a property with a number; `value` is an int unless `kind` is DOUBLE."""
        packed = struct.pack("<d" if kind is NumberClass.DOUBLE else "<q", value)
        self._leaf(_Code.NUMBER, self._name(name) + bytes((relation, missing, kind)) + packed)

    def text(self, name: str, missing: Truth, text: str) -> None:
        """Whether a property is a text."""
        self._leaf(_Code.TEXT, self._name(name) + bytes((missing,)) + _counted(text))

    def pair(self, left: str, right: str, relation: int) -> None:
        """Compare two properties."""
        self._leaf(_Code.PAIR, self._name(left) + self._name(right) + bytes((relation,)))

    def is_in(self, name: str, texts: Sequence[str], *, negated: bool) -> None:
        """Whether a property is one of the texts."""
        head = self._name(name) + bytes((negated,)) + struct.pack("<H", len(texts))
        self._leaf(_Code.IN, head + b"".join(map(_counted, texts)))

    def part(self, name: str, place: int, text: str, *, negated: bool) -> None:
        """Whether a text occurs in a property."""
        self._leaf(_Code.PART, self._name(name) + bytes((place, negated)) + _counted(text))

    # -- instructions on the top of the stack
    def negate(self) -> None:
        """Replace the top by its opposite."""
        self._code.append(_Code.NOT)

    def both(self) -> None:
        """Join the two on top by AND."""
        self._pop(_Code.AND)

    def either(self) -> None:
        """Join the two on top by OR."""
        self._pop(_Code.OR)

    def equal(self) -> None:
        """Compare the two on top."""
        self._pop(_Code.EQUAL)

    def truth_name(self, name: str) -> None:
        """Compare the top, on the left, with a property."""
        self._code += bytes((_Code.TRUTH_NAME,)) + self._name(name)

    def name_truth(self, name: str) -> None:
        """Compare a property, on the left, with the top."""
        self._code += bytes((_Code.NAME_TRUTH,)) + self._name(name)

    def map(self, false: Truth, true: Truth, unknown: Truth) -> None:
        """Replace the top by what is given for it."""
        self._code += bytes((_Code.MAP, false, true, unknown, Truth.FAILED))

    def jump(self, *, if_true: bool) -> int:
        """Skip what follows if the top is decided; returns what `land` takes."""
        self._code.append(_Code.JUMP_TRUE if if_true else _Code.JUMP_FALSE)
        self._code += bytes(4)
        return len(self._code) - 4

    def land(self, *jumps: int) -> None:
        """Let jumps end here."""
        for jump in jumps:
            struct.pack_into("<I", self._code, jump, len(self._code))

    def _leaf(self, code: _Code, operands: bytes) -> None:
        self._code.append(code)
        self._code += operands
        self._depth += 1
        self._depth_max = max(self._depth_max, self._depth)

    def _pop(self, code: _Code) -> None:
        self._code.append(code)
        self._depth -= 1

    def _name(self, name: str) -> bytes:
        return struct.pack("<H", self._names.setdefault(name, len(self._names)))


def _counted(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<H", len(data)) + data
