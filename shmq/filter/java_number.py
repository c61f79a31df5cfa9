"""Numbers in text as Java's valueOf methods read them, for constants; the core does the same for properties."""

from __future__ import annotations

import re
from typing import Final

_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_WORD: Final = re.compile(r"([+-]?)(NaN|Infinity)")
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEX: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_BLANKS: Final = "".join(map(chr, range(0x21)))
_DIGITS_MAX: Final = 19


def integer_of(text: str, least: int, most: int) -> int | None:
    """Return an integer within a range, None if the text is none."""
    if not _INTEGER.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _DIGITS_MAX:
        return None
    value = int(digits or "0") * (-1 if text.startswith("-") else 1)
    return value if least <= value <= most else None


def double_of(text: str) -> float | None:
    """Return a double, None if the text is none."""
    bare = text.strip(_BLANKS)
    if found := _DECIMAL.fullmatch(bare):
        return float(found[1])
    if found := _HEX.fullmatch(bare):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return float("-inf" if found[1].startswith("-") else "inf")
    return float(bare) if _WORD.fullmatch(bare) else None
