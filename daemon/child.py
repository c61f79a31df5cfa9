"""One child process of the supervisor: starts it, reads what it reports, ends it.

The supervisor decides when any of this is due.

Rules: (1) a child gets these descriptors and no other: the alive pipe, its ready pipe, a spare's pipe with the word
to begin, and those of the store lock, so that the lock is free only when the last process that works on the store is
gone;
(2) it leads a process group of its own, so that a Ctrl-C in the terminal reaches the supervisor alone;
(3) a spare ends with the supervisor, whose end closes that pipe;
(4) whatever it prints goes to stderr: stdout belongs to the announcement;
(5) SIGTERM waits until the child takes it (`tether.py`): a keeper that has just begun saves what is in memory, too.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from shmq.errors import UsageError
from shmq.options.broker import Options
from shmq.shm.liveness import ProcessMark, mark_of

_MESSAGE_BYTES_MAX = 1 << 20


class Child:
    """A running keeper or bridge; its role is `keeper`, `bridge`, or `bridge-N` for the N-th beside that one.

    Attributes:
        ready_descriptor: readable when the child said something or closed its ready pipe.
        exit_descriptor: readable when the child has ended.
        message: what it said, {} before or when it said nothing usable.
        is_heard: whether the message is final.
        generation: of the segments that there were when it was started, 0 before the first.
    """

    def __init__(
        self,
        role: str,
        options: Options,
        *,
        alive_descriptor: int,
        lock_descriptors: tuple[int, ...],
        waits: bool = False,
    ) -> None:
        """
        Args:
            waits: it begins its work with `go`, and ends without that.
        """
        self.role = role
        self.message: dict[str, Any] = {}
        read_end, write_end = os.pipe()
        kind, _, number = role.partition("-")
        command = [sys.executable, "-P", "-m", "shmq.daemon", kind, "--options", options.to_json()]
        command += ["--number", number] if number else []
        command += ["--lock-fds", *map(str, lock_descriptors)] if kind == "keeper" else []
        go_end, self._go = os.pipe() if waits else (-1, -1)
        command += ["--go-fd", str(go_end)] if waits else []
        own = (alive_descriptor, write_end, *((go_end,) if waits else ()))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            self._process = subprocess.Popen(
                [*command, "--alive-fd", str(alive_descriptor), "--ready-fd", str(write_end)],
                pass_fds=(*own, *lock_descriptors),
                stdin=subprocess.DEVNULL,
                stdout=2,
                process_group=0,
            )
        except OSError as error:
            os.close(read_end)
            self._close_go()
            what = f"the interpreter {sys.executable} cannot be executed for the {role}: {error.strerror}"
            raise UsageError(what, hint=f"ls -l {sys.executable}; is its file system mounted noexec?") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(write_end)
            if waits:
                os.close(go_end)
        os.set_blocking(read_end, False)
        self.ready_descriptor = read_end
        self.exit_descriptor = os.pidfd_open(self._process.pid)
        self.mark: ProcessMark | None = mark_of(self._process.pid)
        self._began = time.monotonic()
        self._heard = b""
        self.is_heard = False
        self.generation = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def age_seconds(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def go(self) -> None:
        """Let one that waits begin."""
        os.write(self._go, b"!")
        self._close_go()
        self._began = time.monotonic()

    def _close_go(self) -> None:
        if self._go >= 0:
            os.close(self._go)
            self._go = -1

    def hear(self) -> bool:
        """Read from the ready pipe; True when nothing more will come and `message` is final."""
        try:
            part = os.read(self.ready_descriptor, 65536)
        except BlockingIOError:
            return False
        self._heard += part
        if part and b"\n" not in self._heard and len(self._heard) < _MESSAGE_BYTES_MAX:
            return False
        with contextlib.suppress(ValueError):
            message = json.loads(self._heard.partition(b"\n")[0])
            self.message = message if isinstance(message, dict) else {}
        self.is_heard = True
        return True

    def wait(self, timeout: float) -> int | None:
        """Return the exit status (negative: the signal that killed it), None when it still runs after `timeout` s."""
        if timeout > 0 and self._process.poll() is None:  # its pidfd wakes at once, where Popen.wait looks now and then
            poll = select.poll()
            poll.register(self.exit_descriptor, select.POLLIN)
            poll.poll(timeout * 1000)
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close our descriptors of it."""
        self._close_go()
        os.close(self.ready_descriptor)
        os.close(self.exit_descriptor)
