"""Owns a child process of the tests: its log, its deadline, its certain end.

It does not know what runs in it.

(1) The child dies with the process that started it, however that ends (PR_SET_PDEATHSIG): nothing survives a test run.
(2) It is ended by pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.deadline import eventually

STOP_TIMEOUT = 30.0  # a stock broker that stops in order waits for its own threads for seconds
PR_SET_PDEATHSIG = 1
LOG_TAIL = 4000
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """End this process when the one that started it ends, however that happens."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def accepts(address: str) -> bool:
    """Whether a process listens at "host:port"."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0


class Child:
    """One process with its output in a file, unless streams say otherwise."""

    def __init__(self, command: Sequence[str | Path], log: Path, **arguments: Any) -> None:
        self.log_path = log
        environment: Mapping[str, str] = arguments.pop("env", {})
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHMQ_", "ROCKETMQ_"))}
        with open(log, "ab") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, **arguments}
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [str(word) for word in command],
                env={**kept, **environment},
                preexec_fn=die_with_parent,
                **streams,
            )

    @property
    def log(self) -> str:
        """The end of what it wrote."""
        return self.log_path.read_text(errors="replace")[-LOG_TAIL:]

    def wait_for(self, condition: Callable[[], Any], what: str, timeout: float) -> Any:
        """Wait for a condition as long as the process lives.

        Raises:
            AssertionError: it ended, or the condition was not true in time; the log is in the text.
        """

        def checked() -> Any:
            status = self.process.poll()
            assert status is None, f"{what}: the process ended with {status}: {self.log}"
            return condition()

        try:
            return eventually(checked, what, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log}") from None

    def stop(self) -> None:
        """End it: politely, then not. Twice is harmless."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT)
        self.kill()

    def kill(self) -> None:
        """End it at once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
