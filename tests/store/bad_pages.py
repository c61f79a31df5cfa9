"""A disk that does not give some pages of a file: a call gives what lies in front of one, and fails at it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = 4096


def gives_no_pages(monkeypatch: pytest.MonkeyPatch, path: Path, *pages: int) -> None:
    """Let the disk not give some pages of a file."""
    inode = path.stat().st_ino

    def given(whole: Callable[..., Any], size_of: Callable[[Any], int], part: Callable[[Any, int], Any]) -> Any:
        def read(file: int, what: Any, at: int) -> Any:
            bad = [page * PAGE for page in pages if page * PAGE < at + size_of(what) and (page + 1) * PAGE > at]
            if os.fstat(file).st_ino != inode or not bad:
                return whole(file, what, at)
            if min(bad) <= at:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return whole(file, part(what, min(bad) - at), at)

        return read

    monkeypatch.setattr(os, "pread", given(os.pread, int, lambda _, size: size))
    preadv = given(os.preadv, lambda rooms: len(rooms[0]), lambda rooms, size: [memoryview(rooms[0])[:size]])
    monkeypatch.setattr(os, "preadv", preadv)
