"""One line on stderr for each event of a daemon process.

It does not know what the events mean.

    text   2026-11-20T08:41:07.113Z keeper log.rolled files=3 allocated_end=3221225472
    json   {"time": "2026-11-20T08:41:07.113Z", "process": "keeper", "event": "log.rolled", "files": 3, …}

Rules: (1) a line is written with one system call, so the processes of a broker can share a stderr;
(2) a line that cannot be written is dropped: a full pipe must not stop a broker.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

_LINE_BYTES_MAX = 8192


class EventLog:
    """Writes events of one process.

    Args:
        process: what the process is: supervisor, keeper, bridge.
        log_format: "text" or "json".
        descriptor: where to; stderr by default.
    """

    def __init__(self, process: str, log_format: str = "text", *, descriptor: int = 2) -> None:
        self._process = process
        self._json = log_format == "json"
        self._descriptor = descriptor

    def __call__(self, event: str, **values: Any) -> None:
        """Write one event; values are numbers, strings, or lists of them."""
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        if self._json:
            line = json.dumps({"time": moment, "process": self._process, "event": event, **values}, default=str)
        else:
            line = " ".join(
                (moment, self._process, event, *(f"{name}={_text(value)}" for name, value in values.items()))
            )
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line.encode(errors="backslashreplace")[:_LINE_BYTES_MAX] + b"\n")


def _text(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(character in text for character in ' "=\n\r\t') else text
