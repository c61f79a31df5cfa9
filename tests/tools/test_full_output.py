"""An output that takes no more is an error of its own: no defect of shmq, no traceback, no status of Python's."""

from __future__ import annotations

import os
import select
import subprocess
import sys

from shmq.testing import SharedBroker
from tests.tables.rows import every_row

COMMANDS = [
    ["topic", "list"],
    ["topic", "list", "--json"],
    ["topic", "list", "-a"],
    ["group", "list", "--jsonl"],
    ["health"],
    ["health", "--fast"],
    ["health", "--fast", "--json"],
    ["health", "--format", "nagios"],
    ["top", "--count", "1", "--json"],
    ["doctor"],
    ["systemd"],
    ["version"],
    ["--help"],
    ["produce", "--help"],
    ["completion", "show", "bash"],
]


def run(broker: SharedBroker, words: list[str], redirection: str, *kept: int) -> subprocess.CompletedProcess[str]:
    command = f'exec "$0" -m shmq "$@" {redirection}'
    environment = {**os.environ, "SHMQ_URL": broker.url}
    return subprocess.run(
        ["bash", "-c", command, sys.executable, *words],
        pass_fds=kept,
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )


@every_row("words", COMMANDS, ids=" ".join)
def test_a_full_stdout_is_reported_with_its_reason_and_a_status_of_its_own(
    shmq_shared_broker: SharedBroker, words: list[str]
) -> None:
    with shmq_shared_broker.connect() as mq:
        mq.send(shmq_shared_broker.named("orders"), b"x")  # there is a topic to list
    done = run(shmq_shared_broker, words, ">/dev/full")
    assert "stdout takes no more: No space left on device" in done.stderr
    assert done.returncode == 73, done.stderr
    for word in ("internal error", "Traceback", "Exception ignored"):
        assert word not in done.stderr


# Two runs are compared, so nothing here tells an age.
@every_row(
    "words, status",
    [
        (["config", "show"], 0),
        (["config", "check"], 0),
        (["topic", "list", "--wrong"], 64),
        (["topic", "show", "-x"], 64),
    ],
)
def test_a_full_stderr_loses_what_is_said_and_changes_nothing_else(
    shmq_shared_broker: SharedBroker, words: list[str], status: int
) -> None:
    usual, full = (run(shmq_shared_broker, words, redirection) for redirection in ("", "2>/dev/full"))
    assert (full.returncode, full.stdout) == (status, usual.stdout)
    reading, writing = os.pipe()
    os.close(reading)
    unread = run(shmq_shared_broker, words, f"2>&{writing}", writing)
    os.close(writing)
    assert (unread.returncode, unread.stdout) == (status, usual.stdout)


def test_a_message_that_could_not_be_printed_comes_again(shmq_shared_broker: SharedBroker) -> None:
    topic = shmq_shared_broker.named("orders")
    with shmq_shared_broker.connect() as mq:
        mq.send(topic, b"for people")
    words = ["consume", topic, "-g", topic, "-o", "begin", "-n", "1"]
    assert run(shmq_shared_broker, words, ">/dev/full").returncode == 73
    again = run(shmq_shared_broker, words, "2>/dev/full")
    assert (again.returncode, again.stdout) == (0, "for people\n")


@every_row("words", [["produce", "orders", "-"], ["request", "orders"], ["query", "-"]], ids=" ".join)
def test_a_stdin_that_cannot_be_read_is_an_error_of_its_callers(
    shmq_shared_broker: SharedBroker, words: list[str]
) -> None:
    with select.epoll() as unreadable:
        os.set_inheritable(unreadable.fileno(), True)
        done = subprocess.run(
            [sys.executable, "-m", "shmq", *words],
            stdin=unreadable.fileno(),
            capture_output=True,
            text=True,
            env={**os.environ, "SHMQ_URL": shmq_shared_broker.url},
            timeout=300,
            check=False,
        )
    assert done.returncode == 64 and "standard input cannot be read: Invalid argument" in done.stderr, done.stderr


def test_a_query_that_is_no_text_is_refused(shmq_shared_broker: SharedBroker) -> None:
    done = run(shmq_shared_broker, ["query", "-"], "< <(printf 'select \\377')")
    assert done.returncode == 64 and "standard input is no UTF-8" in done.stderr, done.stderr
