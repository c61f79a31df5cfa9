"""Descriptors 1 and 2 of a daemon process: whatever writes there, in Python or in C, never waits for a reader.

A pipe that is full because its reader hangs, or a terminal under Ctrl-S, would hold the process that writes: the bridge
with all its connections, the keeper with the disk, the supervisor with its signals.

    pipe, terminal      opened once more, without waiting; what does not fit is dropped with EAGAIN
    file, /dev/null     left as it is: it takes what comes
    socket              as a service manager's journal is; asked, at each write of Python's, not to wait
    what may not be opened again (another user's)   left; `event_log.py` asks before each line, as it does of a socket

Rules: (1) O_NONBLOCK belongs to an open file, which the user's shell and other programs share, so it is set on one of
our own only; our children inherit that one;
(2) sys.stdout and sys.stderr keep nothing back: what they could not write would be written, or fail, at the end;
(3) a terminal that stops background processes that write (`stty tostop`) stops no process of a broker.
"""

import contextlib
import io
import os
import signal
import socket
import stat
import sys
from typing import Any

_NAMES = {1: "stdout", 2: "stderr"}


class _Socket(io.FileIO):
    """A socket that is written to without waiting; it cannot be opened again, as a pipe can."""

    def write(self, data: Any, /) -> int:
        try:
            with socket.socket(fileno=os.dup(self.fileno())) as own:
                return own.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return len(data)  # dropped


def never_wait() -> None:
    """Make it so; for the first moment of a process that is nothing but a daemon."""
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    for descriptor, name in _NAMES.items():
        with contextlib.suppress(OSError):  # closed: there is nothing to wait for
            open_again(descriptor)
            is_socket = stat.S_ISSOCK(os.fstat(descriptor).st_mode)
            raw = (_Socket if is_socket else io.FileIO)(descriptor, "w", closefd=False)
            stream = io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", write_through=True)
            setattr(sys, name, stream)


def open_again(descriptor: int) -> None:
    """Put an open file of our own in the place of a pipe or terminal, one that does not wait.

    Raises:
        OSError: the descriptor is closed.
    """
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(kind) or os.isatty(descriptor)) or not os.get_blocking(descriptor):
        return
    with contextlib.suppress(OSError):  # no reader is left, or the file is not ours to open
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.dup2(own, descriptor)
        os.close(own)
