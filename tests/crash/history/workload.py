"""A process of clients that send to one broker, and the history of the answers they got.

    with Workload(broker.url, history, seed=1) as workload:
        history.wait_acks(100)

What they send stands in `writers.py`. They are a process of their own because a local writer works on the broker's
files: with `around=disk.around` it syncs the log on that disk when it takes over a flush that is late, and it can be
killed like all others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

from tests.crash.history.history import History
from tests.crash.history.writers import KINDS

WRITERS = 3
_ROOT = Path(__file__).resolve().parents[3]
# Behind everything else: the root has folders that are called like what is installed.
_PROGRAM = "import sys; sys.path.append(sys.argv.pop(1)); from tests.crash.history.writers import main; main()"
_STOP_SECONDS = 120.0


class Workload:
    """Writers on one broker.

    Args:
        first_writer: the writers' numbers begin with it; names of messages hold them.
        around: what the process is started in.
    """

    def __init__(
        self,
        url: str,
        history: History,
        *,
        seed: int,
        writers: int = WRITERS,
        kinds: Sequence[str] = KINDS,
        first_writer: int = 0,
        pause_seconds: float = 0.0,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._settings = {
            "url": url,
            "seed": seed,
            "writers": writers,
            "kinds": list(kinds),
            "first_writer": first_writer,
            "pause_seconds": pause_seconds,
        }
        self._history = history
        self._around = around
        self._faults: list[str] = []
        self._was_killed = False
        self._process: subprocess.Popen[str]
        self._listener: threading.Thread

    def __enter__(self) -> Self:
        command = [sys.executable, "-P", "-c", _PROGRAM, str(_ROOT), json.dumps(self._settings)]
        with self._around():
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Let every writer finish its send. Raises what a writer did not expect. Twice is harmless."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("a writer hangs") from None
        self._listener.join()
        assert self._was_killed or status == 0, f"the writers ended with status {status}"
        assert not self._faults, self._faults

    def kill(self) -> None:
        """Kill the writers (SIGKILL): what they had in hand may be stored or not."""
        self._was_killed = True
        self._process.kill()
        self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, name, *place = line.rstrip("\n").split(" ")
            match word:
                case "attempt":
                    self._history.attempt(name)
                case "ack":
                    topic, queue_id, offset = place or (None, 0, 0)
                    self._history.ack(name, None if topic is None else (topic, int(queue_id), int(offset)))
                case "loss":
                    self._history.loss(name)
                case _:
                    self._faults.append(line)
