"""Standard input of a command; what cannot be read, as a descriptor that is no file, is an error of its caller's."""

from __future__ import annotations

import sys
from io import BufferedReader
from typing import cast

from shmq.errors import UsageError


def stdin_part(bytes_max: int) -> bytes:
    """Return what is there, at most so much, waiting until something is; b"" at the end.

    Raises:
        UsageError: it cannot be read.
    """
    return _read(bytes_max)


def stdin_whole() -> bytes:
    """Return everything until the end; raises as `stdin_part`."""
    return _read(None)


def stdin_text() -> str:
    """Return everything until the end as text.

    Raises:
        UsageError: it cannot be read, or is no UTF-8.
    """
    try:
        return _read(None).decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"standard input is no UTF-8: {error.reason} at byte {error.start}", hint="iconv -t UTF-8"
        ) from None


def _read(bytes_max: int | None) -> bytes:
    stream = cast(BufferedReader, sys.stdin.buffer)
    try:
        return stream.read() if bytes_max is None else stream.read1(bytes_max)
    except OSError as error:
        raise UsageError(
            f"standard input cannot be read: {error.strerror}", hint="give it a file or a pipe: < FILE, or COMMAND |"
        ) from error
