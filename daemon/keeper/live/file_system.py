"""Notices that the file system of the store takes no more writes.

After an error of its disk the kernel may refuse every write to a file system (ext4: `errors=remount-ro`) and tell
nothing to processes that write only into mapped memory: messages would be acknowledged that never reach the disk.

Rule: it is final. What was changed in memory since the last flush may be lost even where the file system is made
writable again, so the store is recovered from the disk: the broker is restarted.
"""

import time
from collections.abc import Callable

from shmq.daemon.event_log import EventLog
from shmq.shm.core import READ_ONLY_FLUSH_FAILED, KeeperStore
from shmq.store.mounts import Mount

_COST_FACTOR = 100.0  # a host of many containers has thousands of mounts


class FileSystemWatch:
    """The keeper's part for the file system.

    Args:
        mounted: the file system of the store as it is now; None where the kernel does not say.
    """

    def __init__(self, keeper_store: KeeperStore, mounted: Callable[[], Mount | None], log: EventLog) -> None:
        self._keeper_store = keeper_store
        self._mounted = mounted
        self._log = log
        self._look_at = 0.0
        self._told = False

    def round(self, now: float) -> None:
        """Look at it if that is due; `now` is monotonic seconds."""
        if self._told or now < self._look_at:
            return
        began = time.monotonic()
        mount = self._mounted()
        self._look_at = now + _COST_FACTOR * (time.monotonic() - began)
        if mount is None or not mount.is_read_only:
            return
        self._told = True
        self._keeper_store.set_read_only(READ_ONLY_FLUSH_FAILED)
        self._log(
            "disk.read_only",
            mount=mount.path,
            file_system=mount.kind,
            options=",".join(mount.options),
            consequence="the store is read-only until it is restarted",
        )
