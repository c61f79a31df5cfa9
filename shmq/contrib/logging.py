"""A handler of Python's logging that stores records as messages of a topic.

    program's threads ──emit──▶ bounded queue ──one thread──▶ send()       connects, waits and tries again here

Invariants:
    1. `emit` never waits and never raises: it formats, as every handler does, and puts the record into the queue.
       What a record cannot be formatted with goes to `logging.Handler.handleError`, logging's own rule.
    2. Records are stored in the order in which they were emitted, each as one message. A broker that is away, or full,
       is waited for; meanwhile at most `queue_max` records wait. Later ones are lost and counted, and the first message
       behind them says how many.
    3. Records of logger "shmq" are left out: what sends them would make more of them.
    4. A forked child has a queue, a thread and a connection of its own; what waited in the parent is the parent's.
    5. `flush`, `close` and the end of the process wait for at most `timeout` seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import threading
import time
import weakref
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from shmq import Connection, connect
from shmq.errors import SendTimeout, ShmqError
from shmq.message import check_topic

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RETRY_SECONDS: Final = 0.5
_TRIES_MAX: Final = 2  # of a record that the broker refuses while others pass
_TAG: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


class Entry(NamedTuple):
    """A record as a message."""

    body: bytes
    tag: str
    properties: dict[str, str]


class ShmqHandler(logging.Handler):
    """Stores log records in a topic, in the background.

    A message's body is a JSON object: `time` (UTC), `level`, `logger`, `message`, `file`, `line`, `process`, `thread`,
    `exception` where there is one, and what was given as `extra=`. With a formatter (`setFormatter`) it is that text.
    Its tag is the level, so `shmq tail logs --tag ERROR` shows errors; `logger` and `level` are properties.

    Args:
        topic: where records go; made when the first is stored, if the broker makes topics.
        url: which broker, as for `shmq.connect`; looked for when the first record comes, and whenever it went away.
        level: records below it are left out.
        queue_max: records that wait while nothing can be stored; later ones are lost and counted in `lost`.
        timeout: seconds that `flush()`, `close()` and the end of the process may take, and one try to store.

    Raises:
        InvalidName: no topic can have this name. Nothing else is raised, here or later.

    Example:
        >>> import logging
        >>> from shmq.contrib.logging import ShmqHandler
        >>> logging.getLogger().addHandler(ShmqHandler("logs"))          # doctest: +SKIP
        >>> logging.warning("disk is %d %% full", 91)                    # doctest: +SKIP
    """

    def __init__(
        self,
        topic: str = "logs",
        url: str | None = None,
        *,
        level: int | str = logging.NOTSET,
        queue_max: int = 10_000,
        timeout: float = 2.0,
    ) -> None:
        super().__init__(level)
        self._worker = _Worker(check_topic(topic), url, queue_max=max(1, queue_max), timeout=timeout)
        # Connections of shmq say goodbye at the end of the process, before logging shuts down: this comes before both.
        atexit.register(_flushed, weakref.ref(self))

    @property
    def lost(self) -> int:
        """Records that were not stored, because too many waited or the broker refused them."""
        return self._worker.lost

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record into the queue; never waits."""
        if record.name == "shmq" or record.name.startswith("shmq."):
            return
        try:
            entry = self._entry(record)
        except Exception:  # logging's rule: a record that cannot be formatted is the handler's affair
            self.handleError(record)
            return
        self._worker.offer(entry)

    def flush(self) -> None:
        """Wait until what was emitted is stored, for at most `timeout` seconds."""
        self._worker.drain()

    def close(self) -> None:
        """Store what waits, for at most `timeout` seconds, and leave the broker."""
        self._worker.close()
        super().close()

    def _entry(self, record: logging.LogRecord) -> Entry:
        tag = record.levelname if _TAG.fullmatch(record.levelname) else f"LEVEL-{record.levelno}"
        properties = {"level": tag, "logger": record.name if record.name.isprintable() else repr(record.name)}
        text = self.format(record) if self.formatter is not None else json.dumps(_document(record), default=str)
        return Entry(text.encode("utf-8", "backslashreplace"), tag, properties)


def _document(record: logging.LogRecord) -> dict[str, Any]:
    """A record as the JSON object that is stored."""
    document: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name,
        "message": record.getMessage(),
        "file": record.pathname,
        "line": record.lineno,
        "process": record.process,
        "thread": record.threadName,
    }
    if record.exc_info or record.exc_text:
        document["exception"] = record.exc_text or logging.Formatter().formatException(
            record.exc_info or (None, None, None)
        )
    return document | {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _Worker:
    """The queue of one handler and the thread behind it."""

    def __init__(self, topic: str, url: str | None, *, queue_max: int, timeout: float) -> None:
        self.lost = 0
        self._topic = topic
        self._url = url
        self._queue_max = queue_max
        self._timeout = timeout
        self._start_over()
        _workers.add(self)

    def _start_over(self) -> None:
        """Begin with nothing; a forked child does so."""
        self._changed = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._told = self.lost  # of the lost, how many a message has reported
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._closing = False

    def offer(self, entry: Entry) -> None:
        """Queue an entry, or count it as lost."""
        with self._changed:
            if self._closing or len(self._waiting) >= self._queue_max:
                self.lost += 1
                return
            self._waiting.append(entry)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="shmq-logging", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending: no thread begins any more
                    self._waiting.pop()
                    self.lost += 1
                    return
                self._thread = thread
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until nothing waits, for at most the timeout."""
        deadline = time.monotonic() + self._timeout
        with self._changed:
            while self._waiting and self._thread is not None and self._changed.wait(deadline - time.monotonic()):
                pass

    def close(self) -> None:
        """Store what waits, for at most the timeout; the rest is lost."""
        self.drain()
        with self._changed:
            self._closing = True
            self.lost += len(self._waiting)
            self._waiting.clear()
            connection, self._connection = self._connection, None
            self._changed.notify_all()
        if connection is not None:
            connection.close(self._timeout)

    def _run(self) -> None:
        tries = 0
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    connection, self._connection = self._connection, None
                    break
                entry = self._waiting[0]  # it stays until it is stored: drain() waits for it
            error = self._store(entry)
            tries += 1
            with self._changed:
                if error is not None and (error.retryable or tries < _TRIES_MAX):
                    self._changed.wait_for(lambda: self._closing, _RETRY_SECONDS)
                    continue
                if self._waiting and self._waiting[0] is entry:
                    self._waiting.popleft()
                    self.lost += error is not None
                tries = 0
                self._changed.notify_all()
        if connection is not None:  # made while `close()` looked for one
            connection.close(0.0)

    def _store(self, entry: Entry) -> ShmqError | None:
        """Send an entry, and before it how many were lost; return why it failed."""
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = connect(self._url, timeout=self._timeout, name="logging")
            if self.lost > self._told:
                lost = self.lost
                with contextlib.suppress(SendTimeout):  # it is stored; no need to wait for the disk
                    connection.send(self._topic, _loss(lost - self._told), tag="WARNING")
                self._told = lost
            with contextlib.suppress(SendTimeout):
                connection.send(self._topic, entry.body, tag=entry.tag, properties=entry.properties)
        except ShmqError as error:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(ShmqError):
                    connection.close(0.0)
            return error
        return None


def _loss(count: int) -> bytes:
    """The body of a message that tells of lost records."""
    text = f"{count} log records were lost here"
    return json.dumps(_document(logging.makeLogRecord({"name": "shmq", "levelname": "WARNING", "msg": text}))).encode()


def _flushed(handler: weakref.ref[ShmqHandler]) -> None:
    if (alive := handler()) is not None:
        alive.flush()


def _forked() -> None:
    for worker in list(_workers):
        worker._start_over()


os.register_at_fork(after_in_child=_forked)
