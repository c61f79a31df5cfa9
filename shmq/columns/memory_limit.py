"""Explains a log that does not fit into this process's address space (RLIMIT_AS): its files are mapped whole.

Mapping counts in full, although a mapped file is not the process' memory: log files of 1 GiB need room for several of
them. Batches are bounded, so nothing else grows.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

from shmq.errors import SegmentError

_NO_MEMORY: Final = os.strerror(errno.ENOMEM)


class OutOfRoom(SegmentError):
    """A log file does not fit into what this process may map; `offset` is the first that was not read."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def is_out_of_room(error: BaseException) -> bool:
    """Say whether something failed because this process may use so much address space and no more."""
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return is_limited and (isinstance(error, MemoryError) or _NO_MEMORY in str(error))
