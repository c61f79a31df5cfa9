"""The store lock: at most one broker works on a store, ours or a stock RocketMQ.

    byte 0, fcntl lock   as Java's FileChannel.tryLock(0, 1, false); names its owner's pid; dies with the supervisor
    whole file, flock    shared with the children that inherit the descriptor; free only when the last of them is gone
    directories, flock   the store and its commitlog/, likewise: a lock file can be removed under its owner and made
                         again, a directory in which files are open cannot

Rules: (1) a store is ours only with all of them; (2) a new supervisor therefore waits for the keeper of a killed one;
(3) the file is opened once per process, because closing any descriptor of it would drop the fcntl lock;
(4) we never remove the file, or two brokers could lock two files of that name; where another program does, the keeper
makes it again (`daemon/keeper/live/lock.py`);
(5) a file system that cannot lock directories (NFS) is no reason not to start: `unlocked` says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from pathlib import Path
from shlex import quote

from shmq.errors import StoreError, StoreLocked
from shmq.plain_file import NoPlainFile, open_plain, write_whole
from shmq.shm.core import process_died
from shmq.store.layout import StoreLayout

_POLL_SECONDS = 0.02
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, bytes, pid
_CONTENT = b"lock"


class StoreLock:
    """The held lock of one store.

    Attributes:
        descriptors: what children inherit.
        unlocked: why directories could not be locked, "" when they are.
    """

    def __init__(self, layout: StoreLayout) -> None:
        self._layout = layout
        self.descriptors: tuple[int, ...] = ()
        self.unlocked = ""

    @classmethod
    def acquire(cls, layout: StoreLayout, *, wait_seconds: float = 0.0) -> StoreLock:
        """Take the lock.

        Args:
            wait_seconds: how long to wait for the processes of a dead supervisor; a living owner is never waited for.

        Raises:
            StoreLocked: another broker owns the store.
            StoreError: the lock file cannot be opened.
        """
        lock = cls(layout)
        try:
            lock._open()
            lock._lock(wait_seconds)
            write_whole(lock.descriptor, _CONTENT, 0)
        except BaseException:
            lock.release()
            raise
        return lock

    @property
    def descriptor(self) -> int:
        """The descriptor of the lock file."""
        return self.descriptors[0]

    def release(self) -> None:
        """Give the store up; children that inherited the descriptors still hold their part."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()

    def _open(self) -> None:
        layout = self._layout
        try:
            descriptor = open_plain(layout.lock, os.O_RDWR | os.O_CREAT, 0o640)
        except NoPlainFile as error:
            fault = f"the lock file {layout.lock} cannot be locked: {error.strerror}"
            raise StoreError(fault, hint=f"mv {quote(str(layout.lock))} {quote(f'{layout.lock}.away')}") from error
        except OSError as error:
            raise StoreError(
                f"the lock file {layout.lock} cannot be opened: {error.strerror}", hint="fix its owner and mode"
            ) from error
        self.descriptors = (descriptor,)
        for directory in (layout.root, layout.commitlog):
            try:
                self.descriptors += (os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),)
            except FileNotFoundError:
                continue  # a store that has no log yet
            except OSError as error:
                raise StoreError(f"{directory} cannot be opened: {error.strerror}", hint="fix its mode") from error

    def _lock(self, wait_seconds: float) -> None:
        deadline = time.monotonic() + wait_seconds
        while not self._try_lock():
            if time.monotonic() >= deadline:
                raise StoreLocked(
                    f"processes of a dead broker still work on the store {self._layout.root}",
                    hint=f"see `fuser {self._layout.lock} {self._layout.root}`; "
                    "a stopped process has to be continued or killed",
                )
            time.sleep(_POLL_SECONDS)

    def _try_lock(self) -> bool:
        """Take what is free; False when the processes of a dead broker hold some of it."""
        self._refuse(lock_owner(self.descriptor))
        if not lock_file(self.descriptor, self._layout.root):
            return False
        for descriptor in self.descriptors[1:]:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse(flock_owner(descriptor))
                return False
            except OSError as error:
                self.unlocked = error.strerror or str(error)
        return True

    def _refuse(self, owner: int) -> None:
        if owner:
            named = f"pid {owner}" if owner > 0 else "in another PID namespace"
            raise StoreLocked(
                f"the store {self._layout.root} belongs to a running broker, {named}",
                hint="stop that broker, or use another store: shmq serve --store DIRECTORY",
            )


def lock_file(descriptor: int, root: Path) -> bool:
    """Take both locks of an open lock file; False when another process has one.

    Raises:
        StoreError: the file system refuses.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise StoreError(f"the store {root} cannot be locked: {error.strerror}") from error
        return False
    return True


def flock_owner(descriptor: int) -> int:
    """Return the pid that took the flock of an open file, if it lives: 0 unknown."""
    status = os.fstat(descriptor)
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:  # "1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF"; the device differs on some file systems
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(status.st_ino):
            pid = int(fields[4])
            if not process_died(pid, 0):
                return pid
    return 0


def lock_owner(descriptor: int) -> int:
    """Return the pid that holds byte 0 of the lock file: 0 no other, -1 a process of another PID namespace."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return 0 if kind == fcntl.F_UNLCK else pid or -1
