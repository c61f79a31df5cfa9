"""Rows of text under titles, cut to a terminal's width and height.

Columns that do not fit are left out, the least important first; a name that is
too long ends with an ellipsis; rows that do not fit are counted in the last line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from shmq.tools.terminal.width import cut, padded, width_of

GAP = 2
NAME_WIDTH_LEAST = 8


@dataclass(frozen=True)
class Column:
    """Head of one column; `importance` 0 stays longest, `flexible` gives way before anything is left out."""

    title: str
    right: bool = True
    importance: int = 0
    flexible: bool = False


@dataclass(frozen=True)
class Row:
    """Cells, and the style of the whole line."""

    cells: tuple[str, ...]
    style: str = ""


def layout(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    width: int,
    height: int,
    offset: int = 0,
    sorted_by: str = "",
) -> list[Text]:
    """Return a title line and as many rows as fit into `height` lines, from the row `offset` on."""
    if height < 1:
        return []
    room = height - 1
    more = len(rows) > room
    shown = rows[offset : offset + (room - 1 if more else room)] if room > 0 else []
    kept, widths = _fitting(columns, shown, width)
    head = Text(_line([columns[index].title.upper() for index in kept], kept, columns, widths), "bold reverse")
    head.pad_right(max(0, width - width_of(head.plain)))
    _mark(head, sorted_by.upper())
    lines = [head]
    for row in shown:
        lines.append(Text(_line([row.cells[index] for index in kept], kept, columns, widths), row.style))
    left = len(rows) - offset - len(shown)
    if more and room > 0:
        above = f"{offset} above, " if offset else ""
        lines.append(Text(f"… {above}{left} more", "dim"))
    return lines


def _mark(head: Text, title: str) -> None:
    at = f" {head.plain} ".find(f" {title} ") if title else -1
    if at >= 0:
        head.stylize("bold reverse cyan", at, at + len(title))


def _fitting(columns: Sequence[Column], rows: Sequence[Row], width: int) -> tuple[list[int], list[int]]:
    """The columns that fit, and the width of each of them."""
    natural = [
        max([width_of(column.title), *(width_of(row.cells[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while True:
        widths = [natural[index] for index in kept]
        excess = sum(widths) + GAP * (len(kept) - 1) - width
        for place, index in enumerate(kept):
            if columns[index].flexible and excess > 0:
                cut = min(excess, max(0, widths[place] - NAME_WIDTH_LEAST))
                widths[place], excess = widths[place] - cut, excess - cut
        if excess <= 0 or len(kept) == 1:
            return kept, widths
        kept.remove(max(kept, key=lambda index: columns[index].importance))


def _line(cells: Sequence[str], kept: Sequence[int], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for cell, index, width in zip(cells, kept, widths, strict=True):
        parts.append(padded(cut(cell, width), width, right=columns[index].right))
    return (" " * GAP).join(parts).rstrip()
