"""The store lock: at most one broker works on a store, ours or a stock RocketMQ.

    byte 0, fcntl lock   as Java's FileChannel.tryLock(0, 1, false); names its owner's pid; dies with the supervisor
    whole file, flock    shared with the children that inherit the descriptor; free only when the last of them is gone

Rules: (1) a store is ours only with both locks; (2) a new supervisor therefore waits for the keeper of a killed one;
(3) the file is opened once per process, because closing any descriptor of it would drop the fcntl lock;
(4) the file is never removed, or two brokers could lock two files of that name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time

from shmq.errors import StoreError, StoreLocked
from shmq.store.layout import StoreLayout

_POLL_SECONDS = 0.02
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, bytes, pid
_CONTENT = b"lock"


class StoreLock:
    """The held lock of one store."""

    def __init__(self, layout: StoreLayout, descriptor: int) -> None:
        self._layout = layout
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, layout: StoreLayout, *, wait_seconds: float = 0.0) -> StoreLock:
        """Take the lock.

        Args:
            wait_seconds: how long to wait for the processes of a dead supervisor; a living owner is never waited for.

        Raises:
            StoreLocked: another broker owns the store.
            StoreError: the lock file cannot be opened.
        """
        try:
            descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        except OSError as error:
            raise StoreError(
                f"the lock file {layout.lock} cannot be opened: {error.strerror}", hint="fix its owner and mode"
            ) from error
        try:
            cls._lock(layout, descriptor, wait_seconds)
            os.pwrite(descriptor, _CONTENT, 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(layout, descriptor)

    def release(self) -> None:
        """Give the store up; children that inherited the descriptor still hold their part."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @staticmethod
    def _lock(layout: StoreLayout, descriptor: int, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while True:
            owner = lock_owner(descriptor)
            if owner:
                named = f"pid {owner}" if owner > 0 else "in another PID namespace"
                raise StoreLocked(
                    f"the store {layout.root} belongs to a running broker, {named}",
                    hint="stop that broker, or use another store: shmq serve --store DIRECTORY",
                )
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise StoreError(f"the store {layout.root} cannot be locked: {error.strerror}") from error
            if time.monotonic() >= deadline:
                raise StoreLocked(
                    f"processes of a dead broker still work on the store {layout.root}",
                    hint=f"see `fuser {layout.lock}`; a stopped process has to be continued or killed",
                )
            time.sleep(_POLL_SECONDS)


def lock_owner(descriptor: int) -> int:
    """Return the pid that holds byte 0 of the lock file: 0 nobody (else), -1 a process of another PID namespace."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return 0 if kind == fcntl.F_UNLCK else pid or -1
