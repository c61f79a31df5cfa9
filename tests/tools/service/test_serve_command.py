"""`shmq serve` is the broker, `shmq stop` ends exactly it, and both say what happened."""

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmq.shm.liveness import ProcessMark, is_alive, mark_of
from shmq.tools.service import serve_command
from shmq.tools.service.stop_command import stop_process
from tests.tools.json_schema import check
from tests.tools.shell import TIMEOUT, Inside, Shell, until

SMALL = ("--file-size", "4m", "--no-tcp")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short private directory: the path of a socket has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="shmq-cli-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def shell(directory: Path) -> Iterator[Shell]:
    """A shell in which every broker is private; a broker that a failed test leaves behind is stopped."""
    shell = Shell(SHMQ_RUNTIME_DIR=str(directory), SHMQ_STORE=str(directory / "store"))
    yield shell
    for path in directory.glob("*/instance.json"):
        shell.run("stop", "-u", f"shmq://{path.parent}")


def test_in_the_foreground_it_says_where_it_is_and_stops_on_sigterm(shell: Shell, directory: Path) -> None:
    with shell.start("serve", *SMALL) as process:
        assert process.stdout is not None
        box = [process.stdout.readline().decode()]
        while "ready in" not in box[-1]:
            box.append(process.stdout.readline().decode())
        assert box[0].startswith("shmq ") and f'broker "default"  pid {process.pid}' in box[0]
        assert not any(line.startswith("  tcp ") for line in box)
        assert str(directory / "store") in "".join(box) and "shmq produce hello" in box[-1]
        shell.ok("produce", "hello", "hi")
        assert shell.ok("consume", "hello", "-e") == b"hi\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    assert shell.fails(69, "produce", "hello", "hi")["type"] == "BrokerNotRunning"


def test_it_says_where_rocketmqs_clients_reach_it(shell: Shell) -> None:
    ports = ("--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0")
    with shell.start("serve", *SMALL[:2], *ports) as process:
        assert process.stdout is not None
        box = [process.stdout.readline().decode()]
        while "ready in" not in box[-1]:
            assert process.poll() is None
            box.append(process.stdout.readline().decode())
        [line] = [line for line in box if line.startswith("  tcp ")]
        words = line.split()
        assert " ".join(words[2:5] + words[6:]) == "name service · broker · advertises the address clients reach"
        for address in (words[1], words[5]):
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), TIMEOUT).close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0


def test_ctrl_c_stops_it_in_order(shell: Shell) -> None:
    with shell.start("serve", *SMALL, stderr=None) as process:
        assert process.stdout is not None
        while b"ready in" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 0
    assert shell.run("stop").status == 1


def test_json_says_when_it_is_ready(shell: Shell, directory: Path) -> None:
    with shell.start("serve", *SMALL, "--json", "--name", "other") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] != b"}\n":
            lines.append(process.stdout.readline())
        document = json.loads(b"".join(lines))
        check("serve", document)
        assert document["pid"] == process.pid
        assert document["url"] == f"shmq://{directory / 'other'}"
        shell.ok("produce", "hello", "hi", "-u", document["url"])
        assert shell.json("stop", "stop", "-u", document["url"])["pid"] == process.pid
        assert process.wait(TIMEOUT) == 0
        assert process.stdout.read() == b""


def test_json_says_why_it_does_not_start(shell: Shell, directory: Path) -> None:
    shell.ok("serve", *SMALL, "--detach")
    for words in ((), ("--detach",)):
        with shell.start("serve", *SMALL, "--json", *words) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        lines = [line for line in err.decode().splitlines() if line.startswith("{")]
        assert (process.returncode, out, len(lines)) == (73, b"", 1)
        document = json.loads(lines[0])
        check("error", document)
        assert document["exit"] == 73 and document["type"] == "StoreLocked"
    result = shell.run("serve", *SMALL)
    assert result.status == 73 and "error: " in result.err


@pytest.mark.parametrize("words", [("serve",), ("serve", "--detach"), ("nameserver",)])
@pytest.mark.parametrize(("mode", "reason"), [(0o600, "Permission denied"), (None, "No such file or directory")])
def test_an_interpreter_that_cannot_be_executed_is_named(
    directory: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    mode: int | None,
    reason: str,
) -> None:
    interpreter = directory / "python3"
    if mode is not None:
        interpreter.touch(mode)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    result = Inside(f"shmq://{directory / 'run'}", capsysbinary).run(*words)
    assert result.status == (77 if mode is not None else 64)
    assert f"the interpreter {interpreter} cannot be executed: {reason}" in result.err and "noexec" in result.err


def test_detached_it_returns_when_it_is_ready_and_goes_on(shell: Shell, directory: Path) -> None:
    document = shell.json("serve", "serve", *SMALL, "--detach")
    mark = mark_of(document["pid"])
    assert mark is not None and os.getsid(mark.pid) == mark.pid
    assert "recovery.done" in (directory / "default/serve.log").read_text()
    shell.ok("produce", "hello", stdin=b"a\nb\n")
    result = shell.run("stop")
    assert result.status == 0 and f"(pid {mark.pid}) stopped" in result.err
    assert not is_alive(mark)
    again = shell.run("serve", *SMALL, "--detach", "--log-file", str(directory / "other.log"))
    assert again.status == 0 and "runs in the background" in again.err and "shmq stop" in again.err
    assert (directory / "other.log").exists()
    assert shell.ok("consume", "hello", "-e") == b"a\nb\n"


def test_a_runtime_directory_can_be_named(shell: Shell, directory: Path) -> None:
    place = directory / "elsewhere"
    shell.ok("serve", *SMALL, "--detach", "--runtime-dir", str(place), "--name", "elsewhere")
    shell.ok("produce", "hello", "hi", "-u", f"shmq://{place}")
    shell.ok("stop", "-u", f"shmq://{place}")


def test_options_reach_the_daemon(shell: Shell) -> None:
    words = (
        "--flush",
        "sync",
        "--segments",
        "sysv",
        "--no-auto-create",
        "--default-queues",
        "3",
        "--log-format",
        "json",
    )
    document = shell.json("serve", "serve", *SMALL, "--detach", *words)
    assert document["segments"] == "sysv"
    shell.fails(1, "produce", "orders", "x")
    shell.ok("topic", "create", "orders")
    shell.ok("produce", "orders", "x")
    assert shell.json("topic-show", "topic", "show", "orders")["queues"] == 3


@pytest.mark.parametrize(
    "words",
    [
        ("--file-size", "1000"),
        ("--file-size", "1000001"),
        ("--default-queues", "0"),
        ("--name", "../x"),
        ("--flush", "maybe"),
        ("--log-file", "x"),
    ],
    ids=" ".join,
)
def test_options_that_cannot_be_are_refused_before_anything_starts(
    shell: Shell, directory: Path, words: tuple[str, ...]
) -> None:
    assert shell.fails(64, "serve", *words)["hint"]
    assert list(directory.iterdir()) == []


def test_stopping_nothing_is_a_no(shell: Shell) -> None:
    result = shell.run("stop")
    assert result.status == 1 and "runs on this host" in result.err
    assert shell.json("stop", "stop", status=1) == {"stopped": False, "broker": None, "pid": None, "seconds": None}


def test_what_a_dead_broker_left_is_not_taken_for_a_living_one(shell: Shell, directory: Path) -> None:
    document = shell.json("serve", "serve", *SMALL, "--detach")
    mark = mark_of(document["pid"])
    os.kill(document["pid"], signal.SIGKILL)
    until(lambda: not is_alive(mark), "the supervisor to be dead")
    result = shell.run("stop")
    assert result.status == 1 and "is old" in result.err
    shell.ok("serve", *SMALL, "--detach")
    shell.ok("stop")


def test_a_process_that_got_the_pid_later_is_never_signalled() -> None:
    stranger = mark_of(os.getpid())
    assert stranger is not None
    assert stop_process(ProcessMark(stranger.pid, stranger.start + 1), 1.0) is None
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    try:
        assert stop_process(ProcessMark(thread.native_id, 1), 1.0) is None, "a thread has the number now"
    finally:
        end.set()
        thread.join()


def test_a_daemon_that_says_nothing_is_not_waited_for_forever() -> None:
    reading, writing = os.pipe()
    try:
        assert serve_command.read_announcement(reading, 0.0) is None
        os.write(writing, b'{"ready": true')
        assert serve_command.read_announcement(reading, 0.0) is None
        os.write(writing, b', "pid": 1}\n')
    finally:
        os.close(writing)
        os.close(reading)


def test_a_daemon_that_ends_without_a_word_is_no_slow_one() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    try:
        assert serve_command.read_announcement(reading, TIMEOUT) == {}
    finally:
        os.close(reading)


def test_detached_a_broker_that_ended_is_not_said_to_go_on(shell: Shell, directory: Path) -> None:
    said = shell.fails(69, "serve", *SMALL, "--detach", "--accept-loss", "5-4")
    assert said["type"] == "BrokerNotRunning" and "ended with status 78" in said["error"]
    assert "accept_loss is '5-4'" in (directory / "default/serve.log").read_text()


@pytest.mark.parametrize("kind", ["CorruptionError", "StoreLocked", "NoSuchKind", "annotations"])
def test_whatever_the_daemon_says_about_its_end_becomes_an_error_of_ours(kind: str) -> None:
    error = serve_command._error_of({"error": "what", "kind": kind, "hint": "do"})
    assert str(error) == "what" and error.hint == "do"


def test_a_file_says_what_the_command_line_does_not(shell: Shell, directory: Path) -> None:
    config = directory / "broker.toml"
    config.write_text(
        'file-size = "4m"\nno-tcp = true\nretention-hours = 5\nwhen-full = "refuse"\nstore = "elsewhere"\n'
        'delete-hour = "4;16"\ndisk-warn-percent = 98\ndisk-force-percent = 99\ndisk-refuse-percent = 100\n'
    )
    said = json.loads(shell.ok("serve", "--config", str(config), "--retention-hours", "7", "--detach", "--json"))
    assert said["store"] == str(directory / "elsewhere")
    process = next(
        process for process in json.loads(shell.ok("health", "--json"))["processes"] if process["role"] == "keeper"
    )
    options = Path(f"/proc/{process['pid']}/cmdline").read_bytes().split(b"\0")
    given = json.loads(options[options.index(b"--options") + 1])
    assert (given["retention_hours"], given["when_full"], given["delete_hour"]) == (7, "refuse", "4;16")
    assert [given[f"disk_{mark}_percent"] for mark in ("warn", "force", "refuse")] == [98, 99, 100]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retention_hours = 5", "did you mean retention-hours?"),
        ("detach = true", "detach is no option"),
        ("no-tcp = 1", "true or false is needed"),
        ("flush = true", "a text or a whole number is needed"),
        ("flush = [", "is no TOML"),
        ('flush = "sometimes"', "sometimes"),
        ("retention-hours = 0", "retention-hours"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(shell: Shell, directory: Path, text: str, said: str) -> None:
    config = directory / "broker.toml"
    config.write_text(text + "\n")
    error = shell.fails(64, "serve", "--config", str(config))
    assert said in json.dumps(error)


def test_a_file_that_is_not_there_is_named(shell: Shell, directory: Path) -> None:
    assert "nowhere.toml" in json.dumps(shell.fails(64, "serve", "--config", str(directory / "nowhere.toml")))
