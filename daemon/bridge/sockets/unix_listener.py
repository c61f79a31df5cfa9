"""The listening Unix socket: bound under another name, then renamed, so that every process that sees it can connect.

    path absent                        bind beside it, listen, rename
    path is a socket, no answer        a dead bridge left it: replaced by the rename
    path is a socket, and answers      refused
    path is anything else              refused: it is not ours to remove
    path vanishes later                bound again under a new socket: `look`

Invariants:
 1. The path never names a socket that is not listening yet.
 2. Closing removes the path only while it still names our own socket.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from shmq.errors import PermissionDenied, StoreLocked
from shmq.shm.replacing import writing_path

_BACKLOG = 1024
_PROBE_TIMEOUT = 1.0


class Listener:
    """A listening socket and the path that leads to it."""

    def __init__(self, path: Path, *, mode: int, gid: int) -> None:
        """Listen at `path`.

        Raises:
            StoreLocked: another bridge answers there.
            PermissionDenied: something else is in the way, or the directory is not ours.
        """
        self.path = path
        self._mode, self._gid = mode, gid
        self._said = ""
        _check_vacant(path)
        self.socket, self._identity = self._opened()

    def look(self, log: Callable[..., None]) -> socket.socket | None:
        """Listen anew where the path is gone; return the socket of before, which the caller closes then, else None.

        Cleaners of /tmp remove what is old. What hinders it is said once for each reason.
        """
        if os.path.lexists(self.path):
            return None
        before = self.socket
        try:
            self.socket, self._identity = self._opened()
        except PermissionDenied as error:
            if self._said != str(error):
                self._said = str(error)
                log("socket.not_made", reason=self._said, hint=error.hint)
            return None
        self._said = ""
        log("socket.made_again", path=str(self.path))
        return before

    def _opened(self) -> tuple[socket.socket, tuple[int, int]]:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            return made, self._bind(made)
        except OSError as error:
            made.close()
            raise PermissionDenied(
                f"the socket {self.path} cannot be made: {error.strerror}",
                hint=f"ls -ld {self.path.parent}; the directory has to belong to uid {os.geteuid()}",
            ) from error

    def _bind(self, made: socket.socket) -> tuple[int, int]:
        temporary = writing_path(self.path.with_name("s"))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        # The path itself is known to fit into a socket address, a longer name beside it may not.
        directory = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.bind(f"/proc/self/fd/{directory}/{temporary.name}")
        finally:
            os.close(directory)
        try:
            os.chown(temporary, -1, self._gid, follow_symlinks=False)
            os.chmod(temporary, self._mode)
            made.listen(_BACKLOG)
            status = os.lstat(temporary)
            os.rename(temporary, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return status.st_dev, status.st_ino

    def close(self) -> None:
        """Stop listening and remove the path if it is still ours."""
        with contextlib.suppress(OSError):
            status = os.lstat(self.path)
            if (status.st_dev, status.st_ino) == self._identity:
                os.unlink(self.path)
        self.socket.close()


def _check_vacant(path: Path) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise PermissionDenied(f"{path} cannot be looked at: {error.strerror}", hint=f"ls -ld {path.parent}") from error
    if not stat.S_ISSOCK(status.st_mode):
        raise PermissionDenied(f"{path} is in the way and is no socket", hint=f"look at it, then: rm {path}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return  # left behind by a bridge that was killed
        except OSError:
            pass  # a full backlog or a foreign mode: a bridge serves it
    raise StoreLocked(f"another bridge answers at {path}", hint="stop it first: shmq stop")
