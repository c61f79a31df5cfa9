"""A small file of the administrator's, with accounts or TLS keys: read again when it has changed.

Secrets are read only from a file that no other user may read.

    open -> plain, ours or root's, no right for group and others, not too long -> bytes

Invariants:
 1. What is checked and what is read is one open file.
 2. An error names the path and what to type; nothing of the content.
"""

import os
import stat
from pathlib import Path

from shmq.errors import UsageError
from shmq.plain_file import open_plain

FILE_BYTES_MAX = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class WatchedFile:
    """One file and the state it was last read in; `is_secret` when only we and root may have rights to it."""

    def __init__(self, path: Path, *, is_secret: bool = True) -> None:
        self.path = path
        self._is_secret = is_secret
        self._seen: tuple[int, ...] | None = None

    def read(self) -> bytes:
        """Return the content.

        Raises:
            UsageError: it cannot be read, or others could.
        """
        try:
            descriptor = open_plain(self.path, os.O_RDONLY, follows_links=True)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}", hint=f"ls -l {self.path}") from error
        try:
            status = os.fstat(descriptor)
            self._seen = _state(status)
            self._check(status)
            # A regular file of this size comes in one piece; one that was cut meanwhile fails where it is understood.
            return os.read(descriptor, FILE_BYTES_MAX)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}", hint=f"ls -l {self.path}") from error
        finally:
            os.close(descriptor)

    def _check(self, status: os.stat_result) -> None:
        if self._is_secret and status.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{self.path} belongs to uid {status.st_uid}", hint=f"chown {os.geteuid()} {self.path}")
        if self._is_secret and status.st_mode & _OTHERS:
            raise UsageError(
                f"{self.path} has mode {stat.S_IMODE(status.st_mode):04o}: others can reach the secrets in it",
                hint=f"chmod 600 {self.path}",
            )
        if status.st_size > FILE_BYTES_MAX:
            raise UsageError(f"{self.path} has {status.st_size} bytes; {FILE_BYTES_MAX} are allowed")

    def has_changed(self) -> bool:
        """Say whether the path leads to something else than what was read last.

        Raises:
            UsageError: it leads to nothing that can be looked at.
        """
        try:
            return _state(os.stat(self.path)) != self._seen
        except OSError as error:
            reason = f"{self.path} cannot be looked at: {error.strerror}"
            raise UsageError(reason, hint="put the file back; after a restart there is none") from error


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid
