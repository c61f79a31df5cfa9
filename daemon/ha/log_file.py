"""Parts of the log as its files have them: to be shipped, or to be held against what another host ships."""

from __future__ import annotations

import os

from shmq.errors import ShmqError
from shmq.shm.core import Store


class LogFile:
    """Parts of the log, read from its files; one of them is open at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._file_bytes = int(store.head["file_bytes"])
        self._base = -1
        self._descriptor = -1

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of one file. Raises OSError."""
        base = position - position % self._file_bytes
        if base != self._base:
            self.close()
            try:
                self._descriptor = self._store.log_file(base)
            except ShmqError as error:
                raise OSError(str(error)) from error
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
