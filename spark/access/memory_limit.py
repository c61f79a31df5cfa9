"""The error of a worker whose address space is too small for what it has to map.

`spark.executor.pyspark.memory` becomes a limit of address space (RLIMIT_AS) of every Python worker, and mapping counts
in full, although a mapped file is not the worker's memory: log files of 1 GiB need room for several of them. Batches
are bounded by options batchBytes and batchRows, so nothing else grows.

Rule: without such a limit nothing is changed or caught.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from typing import Any

from shmq.columns.memory_limit import is_out_of_room
from shmq.errors import SegmentError, ShmqError


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
