"""Keeps the store's lock file locked: a stock broker looks at nothing else.

The supervisor locked the file that lay there when it started. Removing it keeps that lock, but a process that makes
another file of the name can lock that. Brokers of ours are kept out by the locked directories (`store/lock.py`).

    the file is gone or another      made again and locked, by the keeper; said
    what lies there is no file       moved to quarantine/, and the same
    it may not be opened any more    said, with the command that mends it
    another process holds the lock   two brokers may be at work on one store: sends stop

Rules: (1) the file is opened once for each file that lies there: closing any descriptor of it drops this process' lock;
(2) a keeper whose supervisor died locks nothing, or the next supervisor would not wait for it: it does not come to a
round any more.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable

from shmq.daemon.keeper.live.held_files import FileNews, access_fault, access_of, put_aside
from shmq.figures.changed_files import ACCESS, LOST, RESTORED
from shmq.plain_file import NoPlainFile, open_plain
from shmq.shm.core import process_died
from shmq.store.layout import StoreLayout
from shmq.store.lock import lock_owner

_NO_FILE = 0, 0


class LiveLock:
    """The keeper's part for the lock file.

    Args:
        stop_sends: called when another process holds the lock.
    """

    def __init__(self, layout: StoreLayout, news: FileNews, *, stop_sends: Callable[[], None]) -> None:
        self._layout = layout
        self._news = news
        self._stop_sends = stop_sends
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None  # None before the first look
        self._access = 0, 0, 0

    def round(self) -> None:
        """Look at the file."""
        is_first = self._identity is None
        fault = self._fault()
        if fault and self._open() and not is_first:
            self._news.tell(self._layout.lock, RESTORED, fault)
        if self._descriptor >= 0:
            self._look_at_access()

    def close(self) -> None:
        """Let go of it; another file may get its inode from now on."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self._identity = -1, _NO_FILE

    def _fault(self) -> str:
        try:
            found = os.lstat(self._layout.lock)
        except FileNotFoundError:
            return "was removed"
        except OSError:
            return ""
        return "" if (found.st_dev, found.st_ino) == self._identity else "was replaced"

    def _look_at_access(self) -> None:
        what, do = access_fault(self._layout.lock, os.fstat(self._descriptor), self._access)
        if what:
            self._news.tell(self._layout.lock, ACCESS, what, do)
        else:
            self._news.withdraw(self._layout.lock, ACCESS)

    def _open(self) -> bool:
        """Make sure that the file at the path is locked by this broker; False when it is not."""
        path = self._layout.lock
        self.close()  # before the next is locked: it may be the same file
        try:
            try:
                descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, 0o640)
            except NoPlainFile:
                put_aside(self._layout, path)
                descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, 0o640)
        except OSError as error:
            self._news.tell(path, LOST, f"cannot be opened: {error.strerror}", "shmq doctor")
            return False
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._access = access_of(status)
        owner = lock_owner(descriptor)
        if owner not in (0, os.getppid()):
            self._stop(owner)
            return False
        if not owner:
            self._take(descriptor)
        self._news.withdraw(path, LOST)
        self._identity = status.st_dev, status.st_ino
        return True

    def _take(self, descriptor: int) -> None:
        """Lock a file that no other process holds; the supervisor's own, through what we inherited, is no hindrance."""
        for lock in (fcntl.flock, lambda of, how: fcntl.lockf(of, how, 1, 0)):
            with contextlib.suppress(OSError):
                lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _stop(self, owner: int) -> None:
        if owner > 0 and process_died(owner, 0):
            return  # the supervisor has ended since, and we are about to
        self._stop_sends()
        named = f"pid {owner}" if owner > 0 else "a process of another PID namespace"
        do = "stop one of the two brokers; then: shmq stop; shmq store verify; shmq serve"
        self._news.tell(self._layout.lock, LOST, f"was replaced, and {named} has locked the new one", do)
