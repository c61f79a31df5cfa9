"""One line on stderr for each event of a daemon process; nothing else of the daemon writes there once it runs.

A line has a name and fields, as text or as JSON.

    text   2026-11-20T08:41:07.113Z keeper log.rolled files=3 allocated_end=3221225472
    json   {"time": "2026-11-20T08:41:07.113Z", "process": "keeper", "event": "log.rolled", "files": 3, …}

    one cause     the event's name, and `about` where several peers cause the same
    10 lines      of a cause in 10 s; the next line of it says suppressed=N, or when none comes, log.suppressed does

Rules: (1) a line is written with one system call, so the processes of a broker can share a stderr;
(2) a line that cannot be written is dropped: a full pipe must not stop a broker;
(3) what is left out is counted, and the count is said;
(4) no message bodies: values are names, numbers and reasons, and a line is cut at 8 KiB;
(5) an exception nobody caught, and what libraries log, are events as well.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_LINE_BYTES_MAX = 8192
_LINES_PER_CAUSE = 10
_WINDOW_SECONDS = 10.0
_CAUSES_MAX = 256
_CAUSE_CHARACTERS = 24
_SUPPRESSED = "log.suppressed"


@dataclass(slots=True)
class _Cause:
    """The lines of one cause in the present window."""

    until: float
    lines: int = 0
    suppressed: int = 0


class EventLog:
    """Writes events of one process; any thread may.

    Args:
        process: what the process is: supervisor, keeper, bridge.
        log_format: "text" or "json".
        descriptor: where to; stderr by default.
        now: seconds on a clock that never goes back.
    """

    def __init__(
        self,
        process: str,
        log_format: str = "text",
        *,
        descriptor: int = 2,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._json = log_format == "json"
        self._descriptor = descriptor
        self._now = now
        self._causes: dict[tuple[str, str], _Cause] = {}
        self._lock = threading.Lock()

    def __call__(self, event: str, *, about: str = "", **values: Any) -> None:
        """Write one event.

        Args:
            about: the peer that caused it; peers are limited apart from each other.
            values: numbers, strings, or lists of them.
        """
        with self._lock:
            self._tell_ended()
            # A line with a text of its own has as many causes as beginnings.
            suppressed = self._admit((event, about or str(values.get("text", ""))[:_CAUSE_CHARACTERS]))
        if suppressed is not None:
            self._write(event, {**values, "suppressed": suppressed} if suppressed else values)

    def tick(self) -> None:
        """Say what was left out since; called now and then, so that it is said when no line follows."""
        with self._lock:
            self._tell_ended()

    def own_everything(self) -> None:
        """Make events of exceptions that nobody catches and of what libraries log; for the process' start."""
        sys.excepthook = self._uncaught
        threading.excepthook = lambda hook: self._uncaught(
            hook.exc_type, hook.exc_value or hook.exc_type(), hook.exc_traceback
        )
        logging.getLogger().addHandler(_Handler(self))

    # -- limits

    def _admit(self, key: tuple[str, str]) -> int | None:
        """Count a line; return how many were left out before it, None when it is left out itself."""
        now = self._now()
        cause = self._causes.get(key)
        if cause is None or now >= cause.until:
            suppressed = cause.suppressed if cause is not None else 0
            self._causes.pop(key, None)  # the oldest window comes first
            if len(self._causes) >= _CAUSES_MAX:
                key = ("", "")  # so many causes are one
                cause = self._causes.setdefault(key, _Cause(now + _WINDOW_SECONDS))
            else:
                self._causes[key] = _Cause(now + _WINDOW_SECONDS, 1)
                return suppressed
        if cause.lines >= _LINES_PER_CAUSE:
            cause.suppressed += 1
            return None
        cause.lines += 1
        return 0

    def _tell_ended(self) -> None:
        now = self._now()
        while self._causes:
            key, cause = next(iter(self._causes.items()))
            if now < cause.until:
                return
            del self._causes[key]
            if cause.suppressed:
                event, about = key
                of_peer = {"about": about} if about else {}
                self._write(_SUPPRESSED, {"cause": event or "many", **of_peer, "suppressed": cause.suppressed})

    # -- writing

    def _uncaught(self, kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
            text = "".join(traceback.format_exception(kind, error, trace, limit=-8))
            self("process.fault", reason=f"{kind.__name__}: {error}", trace=text)

    def _write(self, event: str, values: dict[str, Any]) -> None:
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        if self._json:
            line = _json_line({"time": moment, "process": self._process, "event": event, **values})
        else:
            line = " ".join(
                (moment, self._process, event, *(f"{name}={_text(value)}" for name, value in values.items()))
            ).encode(errors="backslashreplace")[:_LINE_BYTES_MAX]
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line + b"\n")


class _Handler(logging.Handler):
    """Makes events of what libraries log."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._log("library.message", source=record.name, level=record.levelname, text=record.getMessage())


def _json_line(values: dict[str, Any]) -> bytes:
    """One object, also when it would be too long: then its longest texts are cut, and it says so."""
    line = json.dumps(values, default=str).encode()
    if len(line) > _LINE_BYTES_MAX:
        short = {name: value if isinstance(value, int | float) else str(value)[:512] for name, value in values.items()}
        line = json.dumps({**short, "cut": True}, default=str).encode()
    return line


def _text(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(character in text for character in ' "=\n\r\t') else text
