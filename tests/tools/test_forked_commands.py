"""A command that was forked ends as one that a shell starts, and the process that it was forked from keeps nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.testing import SharedBroker
from tests.tools.forked_commands import ForkedCommands
from tests.tools.shell import TIMEOUT, Shell

ENDS = {
    "returns": "print('done'); return 0",
    "returns another status": "print('said', file=sys.stderr); return 69",
    "exits": "sys.exit(3)",
    "exits without a status": "sys.exit()",
    "exits with a text": "sys.exit('no such thing')",
    "raises": "print('begun'); raise ValueError('broken')",
    "is interrupted": "signal.raise_signal(signal.SIGINT)",
    "is terminated": "print('lost'); signal.raise_signal(signal.SIGTERM)",
    "is killed": "print('said', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "ends at once": "print('lost'); os._exit(5)",
    "leaves a thread": "threading.Thread(target=lambda: print(sys.stdin.read())).start(); return 1",
    "leaves work for its end": "atexit.register(print, 'at the end'); return 0",
    "has no reader left": "print('lost'); os.close(1); return 0",
    "is in another time zone": "print(time.localtime(0).tm_hour); return 0",
}
PROGRAM = "import atexit, os, signal, sys, threading, time\n\ndef run():\n" + "".join(
    f"    if sys.argv[1] == {name!r}: {statement}\n" for name, statement in ENDS.items()
)
HANGS = "    if sys.argv[1] == 'hangs': print('begun', flush=True); signal.pause()\n"


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    """Commands that end in each way."""
    folder = tmp_path_factory.mktemp("ends")
    (folder / "ends_of_a_command.py").write_text(PROGRAM + HANGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        commands = ForkedCommands("ends_of_a_command")
        yield commands
        commands.close()


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_command_ends_as_one_that_has_its_own_interpreter(ends: ForkedCommands, end: str) -> None:
    environment = {**os.environ, "TZ": "XST-5"}
    program = "import sys; from ends_of_a_command import run; sys.exit(run())"
    alone = subprocess.run(
        [sys.executable, "-c", program, end], input=b"read", env=environment, capture_output=True, check=False
    )
    status, out, err = ends.run([end], b"read", environment=environment, timeout=TIMEOUT)
    assert (status, out, _told(err)) == (alone.returncode, alone.stdout, _told(alone.stderr))


def _told(err: bytes) -> bytes:
    """What a command says, without the calls of a traceback, which begin elsewhere."""
    return re.sub(rb"(?m)^  .*\n", b"", err)


def test_a_command_that_hangs_is_killed_and_the_next_one_runs(ends: ForkedCommands) -> None:
    environment = dict(os.environ)
    with pytest.raises(TimeoutError):
        ends.run(["hangs"], b"", environment=environment, timeout=0.05)
    assert ends.run(["returns"], b"", environment=environment, timeout=TIMEOUT) == (0, b"done\n", b"")


def test_what_is_forked_keeps_one_thread_no_memory_of_a_broker_and_no_file(shmq_shared_broker: SharedBroker) -> None:
    commands = ForkedCommands()
    try:
        environment = Shell(shmq_shared_broker.url).environment
        assert commands.run(["topic", "list"], b"", environment=environment, timeout=TIMEOUT)[0] == 0
        process = Path(f"/proc/{commands.pid}")
        assert "\nThreads:\t1\n" in (process / "status").read_text()
        assert not re.findall(r".*(?:/dev/shm|/SYSV|commitlog).*", (process / "maps").read_text())
        assert len(os.listdir(process / "fd")) == 4  # the streams, and the socket of the requests
    finally:
        commands.close()
    assert not process.exists()
