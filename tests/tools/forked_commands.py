"""Runs commands of `shmq` as processes that are forked from one that has imported them all.

A command with an interpreter of its own spends a quarter of a second on imports, and the tests run a thousand of them.
`ForkedCommands` keeps one process that has imported `shmq.tools`, and has it forked for each command:

    request     JSON (words, environment, directory) with three descriptors: stdin, stdout, stderr
    answers     the process id, then the status as `subprocess` counts it; four bytes each

Invariants: (1) each command is a process of its own, with the streams, environment, directory and exit of one that a
shell starts; (2) the process that is forked has one thread, no broker and no descriptor of a command; (3) it ends with
the process that started it. What a command imports and reads as it starts is the subject of `test_start.py` and
`test_entry.py`, which start interpreters.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import shmq.tools

_NUMBER = struct.Struct("i")
_REQUEST_BYTES_MAX = 1 << 20
_STARTS_THREADS = "shmq.tools.messages.topic_tables"
"""What `shmq query` imports: DuckDB and Arrow, which start threads, and a fork has none of them."""


class ForkedCommands:
    """The process that is forked, seen from the tests. `run` serves one command at a time.

    `module` has the command as its function `run`, which finds its words in `sys.argv` and returns a status.
    """

    def __init__(self, module: str = "shmq.tools.start") -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), module]
            # A stdout that is no terminal, as that of each command: Python decides once how it writes there.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        self.pid = self._process.pid

    def run(
        self, words: Sequence[str], stdin: bytes, *, environment: dict[str, str], timeout: float
    ) -> tuple[int, bytes, bytes]:
        """Run a command to its end and return its status, stdout and stderr.

        Raises:
            TimeoutError: the command was killed after `timeout` seconds.
        """
        request = json.dumps({"words": words, "environment": environment, "directory": os.getcwd()}).encode()
        (their_in, our_in), (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe(), os.pipe()
        with open(our_in, "wb") as given, open(our_out, "rb") as out, open(our_err, "rb") as err:
            socket.send_fds(self._socket, [request], [their_in, their_out, their_err])
            for descriptor in (their_in, their_out, their_err):
                os.close(descriptor)
            pid, status = self._number(None), None
            with ThreadPoolExecutor(3) as pool:
                pool.submit(_give, given, stdin)
                said = pool.submit(out.read), pool.submit(err.read)
                try:
                    status = self._number(timeout)
                finally:
                    if status is None:  # the time is over, of the command or of its test
                        os.kill(pid, signal.SIGKILL)
                        self._number(None)
                return status, said[0].result(), said[1].result()

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()

    def _number(self, timeout: float | None) -> int:
        self._socket.settimeout(timeout)
        data = self._socket.recv(_NUMBER.size)
        if len(data) != _NUMBER.size:
            raise RuntimeError(f"the process that is forked for commands ended: status {self._process.wait()}")
        return int(_NUMBER.unpack(data)[0])


def _give(file: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), file:  # a command need not read what it is given
        file.write(data)


def _command_of(requests: socket.socket) -> list[str] | None:
    """Serve requests; return the words in each process that is forked for one, None when there are no more."""
    while True:
        request, streams, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 3)
        if not request:
            return None
        pid = os.fork()
        if pid == 0:
            requests.close()
            return _become(json.loads(request), streams)
        for descriptor in streams:
            os.close(descriptor)
        requests.send(_NUMBER.pack(pid))
        requests.send(_NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def _become(request: dict[str, Any], streams: Sequence[int]) -> list[str]:
    """Make this process what a shell would have started; return the words of its command."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    words: list[str] = request["words"]
    return words


def main() -> None:
    """Import every command, serve, and be the command that this process was forked for.

    A command that returns a status ends without taking apart a thousand modules, which takes ten times as long as most
    commands. Every other end is left to the interpreter.
    """
    for found in pkgutil.walk_packages(shmq.tools.__path__, "shmq.tools."):
        if not found.name.endswith("__main__") and found.name != _STARTS_THREADS:
            importlib.import_module(found.name)
    module = importlib.import_module(sys.argv[2])
    gc.collect()
    gc.freeze()  # the collector touches no page that is shared with the process it was forked from
    words = _command_of(socket.socket(fileno=int(sys.argv[1])))
    if words is None:
        return
    sys.argv = ["shmq", *words]
    try:
        status = module.run()
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise
        status = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(status)
    os._exit(status)


if __name__ == "__main__":
    main()
