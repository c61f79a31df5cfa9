"""Counts the cells that a text takes on a terminal: Chinese letters take two, combining marks none.

rich knows the width of every letter and takes some milliseconds to load, so text of letters that are known to take one
cell (Latin ones, dashes, arrows) does not ask it.
"""

from __future__ import annotations

import re

_NARROW = re.compile("[ -~\u00a0-\u00ac\u00ae-\u02ff\u2010-\u2027\u2190-\u2193\u2264\u2265]*")


def width_of(text: str) -> int:
    """Return the cells a text takes."""
    if _NARROW.fullmatch(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Return the text, or as much of its begin as fits before an ellipsis."""
    if width_of(text) <= width:
        return text
    if _NARROW.fullmatch(text):
        return text[: max(0, width - 1)] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return the text with blanks, which stand before it if it belongs to the right."""
    blanks = " " * max(0, width - width_of(text))
    return blanks + text if right else text + blanks
