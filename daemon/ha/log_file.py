"""Parts of the log as its files have them: to be shipped, or to be held against what another host ships."""

from __future__ import annotations

import errno
import os
import socket

from shmq.errors import ShmqError
from shmq.shm.core import Store

COPIED_BYTES_MAX = 16 << 10  # cheaper to copy behind their header than to send by themselves
_CANNOT_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # a file system may have no such call


class LogFile:
    """Parts of the log, read from its files; one of them is open at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._file_bytes = int(store.head["file_bytes"])
        self._base = -1
        self._descriptor = -1

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes of one file. Raises OSError."""
        descriptor = self._opened(position)
        data = os.pread(descriptor, size_bytes, position - self._base)
        if len(data) != size_bytes:
            raise self._ends(position + len(data))
        return data

    def send(self, connection: socket.socket, position: int, size_bytes: int) -> int:
        """Send bytes of one file, as many as the socket takes at once; returns how many.

        They come from the page cache, without a copy of ours. Below the log end no byte changes but in the body of an
        open hole, which is never read.

        Raises:
            BlockingIOError: it takes none.
            OSError: of the file or the connection.
        """
        try:
            sent = os.sendfile(connection.fileno(), self._opened(position), position - self._base, size_bytes)
        except OSError as error:
            if error.errno not in _CANNOT_SENDFILE:
                raise
            return connection.send(self.read(position, size_bytes))
        if not sent:
            raise self._ends(position)
        return sent

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = self._base = -1

    def _opened(self, position: int) -> int:
        base = position - position % self._file_bytes
        if base != self._base:
            self.close()
            try:
                self._descriptor = self._store.log_file(base)
            except ShmqError as error:
                raise OSError(str(error)) from error
            self._base = base
        return self._descriptor

    def _ends(self, position: int) -> OSError:
        return OSError(f"the log file at {self._base} ends after {position - self._base} bytes")
