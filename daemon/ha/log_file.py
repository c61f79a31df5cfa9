"""Parts of the log as its files have them: to be shipped, or to be held against what another host ships."""

from __future__ import annotations

import os
from pathlib import Path

from shmq.plain_file import open_plain


class LogFile:
    """Parts of the log, read from its files; one of them is open at a time."""

    def __init__(self, store_path: Path, file_bytes: int) -> None:
        self._folder = store_path / "commitlog"
        self._file_bytes = file_bytes
        self._base = -1
        self._descriptor = -1

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of one file. Raises OSError."""
        base = position - position % self._file_bytes
        if base != self._base:
            self.close()
            self._descriptor = open_plain(self._folder / f"{base:020d}", os.O_RDONLY)
            self._base = base
        data = os.pread(self._descriptor, size_bytes, position - base)
        if len(data) != size_bytes:
            raise OSError(f"the log file at {base} ends after {position - base + len(data)} bytes")
        return data

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._base = -1
