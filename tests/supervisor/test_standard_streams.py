"""A process that writes to a full stdout or stderr never waits, in whatever way it writes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from tests.supervisor.unread_output import KINDS, unread_output

SAYS_IN_EVERY_WAY = """
import ctypes, faulthandler, logging, os, sys, threading, traceback, warnings
from shmq.daemon.standard_streams import never_wait

def fail():
    raise ValueError("x" * 5000)

class Unraisable:
    def __del__(self):
        fail()

never_wait()
print("x" * 100_000)
print("x" * 100_000, file=sys.stderr, flush=True)
warnings.warn("x" * 5000)
logging.getLogger("library").warning("x" * 5000)
faulthandler.dump_traceback()
thread = threading.Thread(target=fail); thread.start(); thread.join()
Unraisable()
library = ctypes.CDLL(None)
for _ in range(1000):
    library.perror(b"a library in C")
library.puts(b"x" * 5000)
library.fflush(None)
fail()
"""


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_said_and_the_end_does_not_wait(kind: str) -> None:
    with unread_output(kind) as (writing, _):
        done = subprocess.run(
            [sys.executable, "-c", SAYS_IN_EVERY_WAY],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1
        assert os.get_blocking(writing), "the open file belongs to others, too"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["stream", "datagram"])
def test_what_python_says_to_a_full_socket_does_not_wait(kind: socket.SocketKind) -> None:
    program = """
import sys
from shmq.daemon.standard_streams import never_wait
never_wait()
print("x" * 1000); print("x" * 1000, file=sys.stderr)
"""
    reading, writing = socket.socketpair(socket.AF_UNIX, kind)
    with reading, writing:
        with contextlib.suppress(BlockingIOError):
            while True:
                writing.send(b"x" * 512, socket.MSG_DONTWAIT)
        done = subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=writing, timeout=120, check=False)
    assert done.returncode == 0


def test_what_python_says_to_a_socket_arrives() -> None:
    program = "from shmq.daemon.standard_streams import never_wait; never_wait(); print('ready')"
    reading, writing = socket.socketpair()
    with reading, writing:
        subprocess.run([sys.executable, "-c", program], stdout=writing, stderr=writing, timeout=120, check=True)
        assert reading.recv(100) == b"ready\n"


def test_what_is_read_arrives_whole_and_once() -> None:
    program = """
import sys
from shmq.daemon.standard_streams import never_wait
never_wait(); never_wait()
print("ready"); print("a line", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("ready\n", "a line\n")


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)], ids=str)
def test_descriptors_that_are_closed_stay_so(closed: tuple[int, ...]) -> None:
    program = "from shmq.daemon.standard_streams import never_wait; never_wait(); raise SystemExit(3)"
    words = [f"{descriptor}>&-" for descriptor in closed]
    command = f'exec "$0" -c "$1" {" ".join(words)}'
    done = subprocess.run(["sh", "-c", command, sys.executable, program], timeout=120, check=False)
    assert done.returncode == 3
