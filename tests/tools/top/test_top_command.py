"""`shmq top` shows who takes part: as JSON, as text in a pipe, live on a terminal, whatever state the daemon is in."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shmq.shm.liveness import status_of
from shmq.testing import Broker
from shmq.waits import is_ready
from tests.figures import sources
from tests.tools.json_schema import check
from tests.tools.shell import COMMAND, TIMEOUT, Shell, until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker, broker.connect() as mq:
        for number in range(30):
            mq.send("orders", b"%d" % number)
        with mq.pull_consumer("orders", group="billing", start="begin") as consumer:
            consumer.poll(10)
            yield broker


@pytest.fixture
def shell(broker: Broker) -> Shell:
    return Shell(broker.url)


def test_one_picture_as_json_names_exactly_who_takes_part(shell: Shell, broker: Broker) -> None:
    document = shell.json("top", "top", "-n", "1", "--interval", "200ms", "--deep", "-a")
    expected = {mark.pid for mark in broker.processes.values()} | {os.getpid()}
    assert {row["pid"] for row in document["processes"]} == expected
    assert all(row["uss_bytes"] for row in document["processes"])
    [topic] = [row for row in document["topics"] if row["name"] == "orders"]
    assert (topic["messages"], topic["queues"]) == (30, 8)
    assert document["pid"] == broker.processes["supervisor"].pid and document["served"]
    assert 0.1 < document["seconds"] < TIMEOUT and document["faults"] == []


@pytest.mark.slow
def test_a_pipe_gets_plain_text_and_jsonl_a_line_a_picture(shell: Shell, broker: Broker) -> None:
    text = shell.ok("top", "--interval", "100ms").decode()
    assert "\x1b" not in text and text.startswith(f"shmq {broker.name}  pid ") and text.count("PID") == 1
    assert all(title in text for title in ("TOPIC", "GROUP", "orders", "supervisor", "keeper"))
    lines = shell.ok("top", "-n", "2", "--interval", "100ms", "--jsonl").splitlines()
    assert len(lines) == 2
    for line in lines:
        check("top", json.loads(line))
    assert shell.fails(64, "top", "--sort", "colour")["hint"].startswith("--sort takes cpu")
    assert shell.fails(64, "top", "--interval", "1ms")["exit"] == 64


def test_without_a_broker_it_says_so_and_does_not_fail_to_show(tmp_path: Any) -> None:
    shell = Shell(f"shmq://{tmp_path}/none")
    document = shell.json("top", "top", "--interval", "100ms")
    assert not document["served"] and document["processes"] == []
    assert [fault["what"] for fault in document["faults"]] == ["instance"]


@pytest.mark.slow
def test_it_works_while_the_daemon_is_stopped_and_when_it_is_dead() -> None:
    with Broker() as broker:
        shell, marks = Shell(broker.url), broker.processes
        shell.ok("produce", "orders", "x")
        for mark in marks.values():
            os.kill(mark.pid, signal.SIGSTOP)
        until(lambda: sources.stopped(marks), "all to stand still")
        document = shell.json("top", "top", "--interval", "100ms")
        assert {row["state"] for row in document["processes"] if row["role"] in marks} == {"stopped"}
        assert f"(pid {marks['bridge'].pid}) is stopped\n" in shell.ok("top", "--interval", "100ms").decode()
        for mark in marks.values():
            os.kill(mark.pid, signal.SIGKILL)
        until(lambda: all(status_of(mark.pid).get("State", "Z")[0] in "XZ" for mark in marks.values()), "their ends")
        document = shell.json("top", "top", "--interval", "100ms")
        assert not document["served"]
        assert {row["state"] for row in document["processes"] if row["role"] in marks} <= {"dead", "zombie"}
        assert [row["messages"] for row in document["topics"] if row["name"] == "orders"] == [1]


class Terminal:
    """`shmq top` on a terminal of its own."""

    def __init__(self, shell: Shell, *words: str, columns: int = 100, lines: int = 30) -> None:
        self.side, other = pty.openpty()
        self.before = termios.tcgetattr(other)
        self.size(columns, lines)
        environment = {**shell.environment, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*COMMAND, "top", *words], env=environment, stdin=other, stdout=other, stderr=other, start_new_session=True
        )
        self.other = other
        self.seen = ""

    def size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, text: str) -> str:
        """Read until a text has come; what came since the last call."""
        deadline = time.monotonic() + TIMEOUT
        while text not in self.seen:
            assert time.monotonic() < deadline and self.process.poll() is None, (text, self.seen[-3000:])
            if is_ready(self.side, 0.2):
                self.seen += os.read(self.side, 65536).decode(errors="replace")
        found, _, self.seen = self.seen.partition(text)
        return found

    def press(self, key: str) -> None:
        os.write(self.side, key.encode())

    def close(self) -> int:
        status = self.process.wait(TIMEOUT)
        assert termios.tcgetattr(self.other)[3] == self.before[3]
        os.close(self.side)
        os.close(self.other)
        return status


def test_a_terminal_shows_pages_and_heeds_keys_and_its_size(shell: Shell) -> None:
    terminal = Terminal(shell, "--interval", "200ms")
    try:
        terminal.until("\x1b[?1049h")  # the alternate screen
        terminal.until("[?] help")
        terminal.press("?")
        terminal.until("refresh more or less often")
        terminal.press("t")
        terminal.until("MESSAGES")
        terminal.press(" ")
        terminal.until("PAUSED")
        terminal.press(" ")
        terminal.size(70, 9)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.press("a")
        terminal.until("more")  # the tables do not fit any more
        terminal.press("q")
        terminal.until("\x1b[?1049l")
        assert terminal.close() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            terminal.process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_the_terminal_back(shell: Shell, number: signal.Signals) -> None:
    terminal = Terminal(shell)
    try:
        terminal.until("[?] help")
        terminal.process.send_signal(number)
        terminal.until("\x1b[?1049l")
        assert terminal.close() == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            terminal.process.kill()
