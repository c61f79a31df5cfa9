"""Ranges of a log, and the words in which an operator types them: "BEGIN-END,BEGIN-END" in bytes."""

from __future__ import annotations

from typing import NamedTuple

from shmq.errors import UsageError


class Range(NamedTuple):
    """Log positions; `end` is the first one behind."""

    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.begin}-{self.end}"


def parse_ranges(text: str) -> list[Range]:
    """Return the ranges of "BEGIN-END,BEGIN-END".

    Raises:
        UsageError: it is no such text.
    """
    ranges = []
    for part in filter(None, text.split(",")):
        begin, dash, end = part.strip().partition("-")
        if not (dash and (begin + end).isascii() and begin.isdecimal() and end.isdecimal() and int(begin) < int(end)):
            raise UsageError(
                f"accept_loss is {text!r}, BEGIN-END in bytes of the log is needed",
                hint="type the numbers that the refused start told",
            )
        ranges.append(Range(int(begin), int(end)))
    return ranges
