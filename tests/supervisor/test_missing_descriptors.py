"""Every program of shmq works without descriptors 0 to 2, and has nothing there that a line could be printed into.

Managers of daemons, cron and `2>&-` start programs so. What is missing is /dev/null, in every process of the program.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Final

import psutil
import pytest

import shmq
from shmq.errors import ShmqError
from shmq.shm.addresses import read_addresses
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, eventually
from tests.ha.pair import log_end
from tests.ports import free_ports

Missing = tuple[int, ...]
SETS: Final = tuple(each for size in (1, 2, 3) for each in combinations(range(3), size))
SMALL: Final = ("--file-size", "256K", "--queue-max", "8192", "--frame-max", "4096")
ANY_DISK: Final = [word for name in ("warn", "force", "refuse") for word in (f"--disk-{name}-percent", "100")]
BODY: Final = bytes(8 << 10)  # a hundred of them fill three log files


def label(missing: Missing) -> str:
    return "without-" + "-".join(map(str, missing))


every_set = pytest.mark.parametrize("missing", SETS, ids=label)


class Running:
    """A program without some of the three; the others are /dev/null and two files."""

    def __init__(self, missing: Missing, directory: Path, *words: str) -> None:
        self.streams = [Path(os.devnull), directory / "out", directory / "err"]
        shell = 'exec "$@" ' + " ".join(f"{number}{'<>'[number > 0]}&-" for number in missing)
        with open(self.streams[1], "wb") as out, open(self.streams[2], "wb") as err:
            self.process = subprocess.Popen(
                ["sh", "-c", shell, "sh", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=directory
            )
        self.missing = missing

    def text(self) -> str:
        """What it said."""
        return "\n".join(path.read_text() for path in self.streams[1:])

    def check(self) -> None:
        """Fail where one of its processes has something else there than /dev/null and its own streams."""
        allowed = {os.devnull, *map(str, self.streams)}
        program = psutil.Process(self.process.pid)
        for each in (program, *program.children(recursive=True)):
            found = [os.readlink(f"/proc/{each.pid}/fd/{number}") for number in range(3)]
            assert set(found) <= allowed, (each.cmdline(), found)
            assert all(found[number] == os.devnull for number in self.missing if each is program), found


@contextmanager
def running(missing: Missing, directory: Path, *words: str) -> Iterator[Running]:
    """Run a program until the end of the block; it ends in order on SIGTERM."""
    program = Running(missing, directory, sys.executable, "-P", "-m", "shmq", *words)
    try:
        yield program
        program.check()
        program.process.terminate()
        assert program.process.wait(DEADLINE_SECONDS) == 0, program.text()
    finally:
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGKILL)
            program.process.wait()


def serve_words(directory: Path, *words: str, name: str = "missing") -> list[str]:
    places = ("--name", name, "--runtime-dir", str(directory / "run"), "--store", str(directory / "store"))
    return ["serve", *places, *SMALL, *ANY_DISK, *words]


def attached(program: Running, url: str) -> shmq.Connection | None:
    assert program.process.poll() is None, program.text()
    with suppress(ShmqError):
        return shmq.connect(url)
    return None


@every_set
def test_a_broker_keeps_every_message(missing: Missing, tmp_path: Path) -> None:
    with running(missing, tmp_path, *serve_words(tmp_path, "--no-tcp", "--default-queues", "1")) as program:
        url = f"shmq://{tmp_path / 'run'}"
        with eventually(lambda: attached(program, url), program.text) as mq:
            program.check()
            sent = [b"%d " % number + BODY for number in range(100)]
            for body in sent:
                mq.send("orders", body)
            assert [bytes(each.body) for each in mq.browse("orders")] == sent
    assert ("ready in" in program.text()) is (1 not in missing)
    assert ("broker.stopped" in program.text()) is (2 not in missing)


@every_set
def test_a_name_server_answers(missing: Missing, tmp_path: Path) -> None:
    port = free_ports()
    with running(missing, tmp_path, "nameserver", "--listen", f"127.0.0.1:{port}") as program:

        def answers() -> bool:
            assert program.process.poll() is None, program.text()
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 5.0).close()
                return True
            return False

        eventually(answers, program.text)


@pytest.fixture(scope="module")
def master() -> Iterator[Broker]:
    with Broker(tcp=True, ha_listen="127.0.0.1:0", file_bytes=256 << 10) as broker:
        with broker.connect() as mq:
            for number in range(100):
                mq.send("orders", b"%d " % number + BODY)
        yield broker


def log_in(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").glob("0*")))


@every_set
def test_a_slave_copies_every_record(missing: Missing, master: Broker, tmp_path: Path) -> None:
    follows = ("--role", "slave", "--master", master.broker_address)
    ha = read_addresses(master.place.ha_path)["ha"]
    listens = ("--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0")
    words = serve_words(tmp_path, *follows, "--master-ha", ha, *listens, name=master.name)
    with running(missing, tmp_path, *words) as program:

        def copied() -> bool:
            assert program.process.poll() is None, program.text()
            return log_in(tmp_path / "store")[: log_end(master)] == log_in(master.store)[: log_end(master)]

        eventually(copied, program.text)


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (0, "version"),
        (0, "--help"),
        (0, "topic list"),
        (0, "produce orders one-more"),
        (0, "-q demo --seconds 0.1"),
        (64, "serve --file-size 1"),
    ],
)
def test_a_command_ends_as_ever(status: int, line: str, master: Broker, tmp_path: Path) -> None:
    command = ("env", f"SHMQ_URL={master.url}", sys.executable, "-P", "-m", "shmq", *line.split())
    program = Running((0, 1, 2), tmp_path, *command)
    assert program.process.wait(DEADLINE_SECONDS) == status


@pytest.mark.parametrize("module", ["shmq.daemon", "shmq.tools", "shmq.tools.service.demo_role", "shmq.tools.release"])
def test_a_program_without_the_command_has_them_too(module: str, tmp_path: Path) -> None:
    """Whatever it says of its line, Python would not complain of a stream that is None."""
    expected = subprocess.run([sys.executable, "-P", "-m", module, "--nonsense"], capture_output=True, check=False)
    program = Running((0, 1, 2), tmp_path, sys.executable, "-P", "-m", module, "--nonsense")
    assert program.process.wait(DEADLINE_SECONDS) == expected.returncode
