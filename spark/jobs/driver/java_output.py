"""Filters what Spark's Java process writes to stderr: its greetings are dropped, the rest is passed on.

    Java ──stderr──▶ pipe ─▶ thread ─▶ `heard`, a line at a time

The process inherits file descriptor 2 when it is started and keeps it, so the descriptor is another one for that moment
alone. With SHMQ_SPARK_LOG_LEVEL set, every line is shown as it comes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

LEVEL_VARIABLE: Final = "SHMQ_SPARK_LOG_LEVEL"
_GREETINGS: Final = (
    "WARNING: Using incubator modules",
    "Using Spark's default log4j profile",
    "Setting default log level to",
    "To adjust logging level use",
    "WARN NativeCodeLoader:",
    "WARN Utils: Your hostname",
    "WARN Utils: Set SPARK_LOCAL_IP",
)


@contextlib.contextmanager
def listened(heard: Callable[[str], None]) -> Iterator[None]:
    """Let processes that are started within talk to `heard`, for as long as they live."""
    if os.environ.get(LEVEL_VARIABLE):
        yield
        return
    reading, writing = os.pipe()
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_listen, args=(reading, heard), name="java-talk", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _listen(reading: int, heard: Callable[[str], None]) -> None:
    with open(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not any(words in line for words in _GREETINGS):
                with contextlib.suppress(Exception):  # a failing `heard` must not block Java
                    heard(line.rstrip("\n"))
