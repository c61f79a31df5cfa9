"""The terminal of `shmq top`: pages on the alternate screen, single keys, resizing, suspending.

Rules: (1) the terminal is given back as it was found, also after an error, SIGTERM or Ctrl-Z; (2) nothing polls:
between two refreshes the process sleeps until a key, a signal or the time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from types import FrameType

from rich.console import Console, RenderableType
from rich.live import Live

_ESCAPES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b": "escape",
}


class Screen:
    """The alternate screen of the terminal on stdin and stdout, for the length of a with block."""

    def __init__(self, *, colored: bool = True) -> None:
        self._console = Console(color_system="auto" if colored else None, no_color=not colored, highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
        self._stdin = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._stdin)
        self._wake_read, self._wake_write = os.pipe()
        self._typed = b""

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines as they are now."""
        return self._console.size.width, self._console.size.height

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Take the terminal over."""
        os.set_blocking(self._wake_write, False)
        wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        handlers = {signal.SIGWINCH: _ignore, signal.SIGTSTP: self._suspend, signal.SIGTERM: _interrupt}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._take()
        try:
            yield
        finally:
            self._give_back()
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake_read)
            os.close(self._wake_write)

    def show(self, make: Callable[[int, int], RenderableType]) -> None:
        """Show what `make` returns for the size of now."""
        self._live.update(make(*self.size), refresh=True)

    def key(self, until: float) -> str | None:
        """Return a key that was pressed, "resize" after a resize, or None when the monotonic time has come."""
        poll = select.poll()
        poll.register(self._stdin, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            if self._typed:
                return self._next_typed()
            ready = {descriptor for descriptor, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
            if self._stdin in ready:
                self._typed = os.read(self._stdin, 64)
                if not self._typed:
                    raise EOFError
            elif self._wake_read in ready:
                numbers = os.read(self._wake_read, 64)
                if signal.SIGWINCH in numbers or signal.SIGTSTP in numbers:
                    return "resize"
            elif time.monotonic() >= until:
                return None

    def _next_typed(self) -> str:
        """Take one key off what was typed since the last look; keys may come faster than pages."""
        for sequence, name in _ESCAPES.items():
            if self._typed.startswith(sequence):
                self._typed = self._typed[len(sequence) :]
                return name
        key, self._typed = self._typed[:1].decode("latin-1"), self._typed[1:]
        return key

    def _take(self) -> None:
        tty.setcbreak(self._stdin)
        self._live.start()

    def _give_back(self) -> None:
        self._live.stop()
        termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Nothing: the wake-up descriptor reports it."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
