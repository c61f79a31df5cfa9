"""Outputs that take nothing more: a full pipe that is not read, a terminal under Ctrl-S. And a broker that has one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from shmq.testing import Broker

KINDS = ("pipe", "terminal")


@contextmanager
def unread_output(kind: str) -> Iterator[tuple[int, int]]:
    """Yield where a program writes, and where it could be read; the first is one that waits, as a shell's is."""
    if kind == "terminal":
        reading, writing = os.openpty()
        termios.tcflow(writing, termios.TCOOFF)
    else:
        reading, writing = os.pipe()
        fill(writing)
    try:
        yield writing, reading
    finally:
        for descriptor in (reading, writing):
            os.close(descriptor)


def fill(writing: int) -> None:
    """Leave no room in a pipe."""
    os.set_blocking(writing, False)
    for size in (65536, 1):
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, b"." * size):
                pass
    os.set_blocking(writing, True)


class UnreadBroker(Broker):
    """A broker whose stdout and stderr are one of these."""

    def __init__(self, output: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._output = output

    def start(self) -> Self:
        ready, child_end = os.pipe()
        places = {"broker_name": self.name, "runtime_dir": str(self.place.runtime_dir), "store": str(self.store)}
        command = [sys.executable, "-P", "-m", "shmq.daemon", "serve", "--ready-fd", str(child_end)]
        try:
            self._process = subprocess.Popen(
                [*command, "--options", json.dumps({**self._settings, **places})],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(child_end,),
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},
            )
            os.close(child_end)
            self._wait_ready(ready)
        finally:
            os.close(ready)
        return self

    def ended(self) -> int:
        """End it with SIGTERM; its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(60.0)
