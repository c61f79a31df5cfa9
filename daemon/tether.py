"""Ties a child process of the broker to its supervisor: when to stop, and how to say that it is ready.

    alive pipe    the supervisor holds the writing end and never writes; end of file means that it is dead
    ready pipe    one line of JSON from the child: {"ready": …} or {"error": …, "hint": …, "exit": …}
    SIGTERM       stop in order; blocked from before the child begins until it can
    SIGINT, SIGHUP, SIGQUIT   ignored: the keys of the terminal, and its end, are the supervisor's to deal with

Rules: (1) an orphan leaves within a second and cleans nothing up, because clients and the next supervisor go on with
what is there; (2) a child that does not come back from its work is ended by its own thread.
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from shmq.daemon.event_log import EventLog
from shmq.daemon.exit_code import exit_code_of
from shmq.errors import ShmqError
from shmq.exit_code import ExitCode
from shmq.shm.signal_event import SignalEvent

_ORPHAN_SECONDS = 0.7


class Tether:
    """The child's end.

    Args:
        alive_descriptor: reading end of the alive pipe, -1 for a process without a supervisor.
        ready_descriptor: writing end of the ready pipe, -1 for none.

    Attributes:
        stopping: set when the child has to stop, for whatever reason.
    """

    def __init__(self, *, alive_descriptor: int = -1, ready_descriptor: int = -1) -> None:
        self._alive = alive_descriptor
        self._ready = ready_descriptor
        self._on_stop: list[Callable[[], None]] = []
        self._on_orphaned: list[Callable[[], None]] = []
        self._orphaned = False
        self.stopping: threading.Event = SignalEvent()

    @property
    def is_orphaned(self) -> bool:
        """Whether the supervisor is dead, so that everything has to be left as it is."""
        return self._orphaned

    def watch(self) -> None:
        """Take over the signals and begin to watch the supervisor; call it in the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        if self._alive >= 0:
            threading.Thread(target=self._watch_supervisor, name="tether", daemon=True).start()

    def call_on_stop(self, action: Callable[[], None]) -> None:
        """Have `action` called when the child has to stop; from a signal handler or another thread."""
        self._on_stop.append(action)
        if self.stopping.is_set():
            action()

    def call_on_orphaned(self, action: Callable[[], None]) -> None:
        """Have `action` called, from another thread, when the supervisor is dead."""
        self._on_orphaned.append(action)

    def ready(self, **values: Any) -> None:
        """Tell the supervisor that the child serves."""
        self._say({"ready": values})

    def failed(self, error: ShmqError, log: EventLog, event: str) -> ExitCode:
        """Say in the log, and to the supervisor, why the child cannot serve; return the exit status for that."""
        log(event, reason=str(error), hint=error.hint)
        status = exit_code_of(error)
        self._say({"error": str(error), "kind": type(error).__name__, "hint": error.hint, "exit": status})
        return status

    def _say(self, message: dict[str, Any]) -> None:
        if self._ready >= 0:
            with contextlib.suppress(OSError):  # a supervisor that died meanwhile
                os.write(self._ready, json.dumps(message).encode() + b"\n")
            os.close(self._ready)
            self._ready = -1

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self.stopping.set()
        for action in self._on_stop:
            action()

    def _watch_supervisor(self) -> None:
        with contextlib.suppress(OSError):
            while os.read(self._alive, 1):
                pass
        self._orphaned = True
        self._stop()
        for action in self._on_orphaned:
            action()
        threading.Event().wait(_ORPHAN_SECONDS)
        os._exit(0)
