"""A byte stream cut into lines, whatever pieces it arrives in; the caller reads the stream and feeds the pieces.

    "a\\nb"      a | b            the last line needs no delimiter
    "a\\n"       a                a delimiter ends a line, it does not begin one
    "a\\n\\nb"    a | (empty) | b  an empty line is a line
    ""          nothing

Invariants:
1. Any cut of the same bytes gives the same lines.
2. Joined by the delimiter, the lines are the stream, but for one delimiter at its end.
3. No more than `line_bytes_max` and two fed pieces are ever held.
"""

from __future__ import annotations

from shmq.errors import MessageTooLarge, UsageError


class LineSplitter:
    """Feed pieces, take the complete lines; `finish` gives the last one.

    Args:
        delimiter: what ends a line; it is not part of it.
        line_bytes_max: the longest line that can become a message.
    """

    def __init__(self, delimiter: bytes, *, line_bytes_max: int) -> None:
        if not delimiter:
            raise UsageError("the delimiter is empty", hint=r"use --delimiter '\n', or -0 for NUL")
        self._delimiter = delimiter
        self._line_bytes_max = line_bytes_max
        self._pending = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that this piece completes.

        Raises:
            MessageTooLarge: the line still open after the piece before was too long already. It is not raised
                earlier, so that the complete lines before it are never held back.
        """
        if len(self._pending) > self._line_bytes_max:
            raise MessageTooLarge(
                f"a line has more than {self._line_bytes_max} bytes",
                hint="give the right --delimiter",
            )
        lines = (self._pending + piece).split(self._delimiter)
        self._pending = lines.pop()
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line, if the stream did not end with a delimiter."""
        lines, self._pending = ([self._pending] if self._pending else []), b""
        return lines
