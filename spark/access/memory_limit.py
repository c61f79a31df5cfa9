"""The error of a worker whose address space is too small for what it has to map.

`spark.executor.pyspark.memory` becomes a limit of address space (RLIMIT_AS) of every Python worker, and mapping counts
in full, although a mapped file is not the worker's memory: log files of 1 GiB need room for several of them. Batches
are bounded by options batchBytes and batchRows, so nothing else grows.

Rule: without such a limit nothing is changed or caught.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from typing import Any, Final

from shmq.errors import SegmentError, ShmqError

_NO_MEMORY: Final = os.strerror(errno.ENOMEM)


class OutOfRoom(SegmentError):
    """A log file does not fit into what this worker may map; `offset` is the first that was not read."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def is_out_of_room(error: BaseException) -> bool:
    """Say whether something failed because this process may use so much address space and no more."""
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return is_limited and (isinstance(error, MemoryError) or _NO_MEMORY in str(error))


@contextlib.contextmanager
def memory_explained() -> Iterator[None]:
    """Let an error of a limited worker say which setting limits it.

    Raises:
        SegmentError: there was no room; the text names the limit and the cure.
    """
    try:
        yield
    except (MemoryError, OSError, ShmqError) as error:
        if not is_out_of_room(error):
            raise
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        hint = (
            "unset spark.executor.pyspark.memory, raise it by the size of some log files (1 GiB each), or set option "
            "access=remote"
        )
        raise SegmentError(
            f"{error}: this worker may use {limit >> 20} MiB of address space (spark.executor.pyspark.memory), "
            f"and log files are mapped whole; {hint}",
            hint=hint,
        ) from error


def explained(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the same batches; what fails for want of memory says why."""
    with memory_explained():
        yield from batches
