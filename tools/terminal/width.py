"""How many cells of a terminal a text takes: Chinese letters take two, combining marks none.

rich knows the width of every letter and takes some milliseconds to load, so text of ASCII does not ask it.
"""

from __future__ import annotations


def width_of(text: str) -> int:
    """Return the cells a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Return the text, or as much of its begin as fits before an ellipsis."""
    if width_of(text) <= width:
        return text
    if text.isascii():
        return text[: max(0, width - 1)] + "…"
    from rich.cells import set_cell_size

    return set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return the text with blanks, which stand before it if it belongs to the right."""
    blanks = " " * max(0, width - width_of(text))
    return blanks + text if right else text + blanks
