"""Runs the real `shmq` command in a process of its own, as a shell would."""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from shmq.tools import start
from tests.deadline import eventually
from tests.tools.forked_commands import ForkedCommands
from tests.tools.json_schema import check

TIMEOUT = 240.0  # ends a command that hangs; on a host with forty busy threads two processors are slow
COMMAND = [sys.executable, "-m", "shmq"]
until = eventually


class Result(NamedTuple):
    """What a finished command left."""

    status: int
    out: bytes
    err: str


@functools.cache
def _commands() -> ForkedCommands:
    commands = ForkedCommands()
    atexit.register(commands.close)
    return commands


class Shell:
    """Commands against one broker; `environment` replaces every SHMQ_ variable of the caller's but the patience."""

    def __init__(self, url: str | None = None, **environment: str) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name == "SHMQ_TEST_PATIENCE" or not name.startswith("SHMQ_")
        }
        for name in ("NO_COLOR", "FORCE_COLOR"):
            kept.pop(name, None)
        kept["SHMQ_CONFIG_DIR"] = "/nonexistent"  # the contexts of the user who runs the tests must not count
        self.environment = {**kept, **({"SHMQ_URL": url} if url else {}), **environment}

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
        """Start a command; its streams are pipes unless told otherwise."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        return subprocess.Popen([*COMMAND, *words], env=self.environment, **pipes)

    def run(self, *words: str, stdin: bytes = b"") -> Result:
        """Run a command to its end."""
        status, out, err = _commands().run(words, stdin, environment=self.environment, timeout=TIMEOUT)
        return Result(status, out, err.decode())

    def ok(self, *words: str, stdin: bytes = b"") -> bytes:
        """Run a command that has to succeed; return its stdout."""
        result = self.run(*words, stdin=stdin)
        assert result.status == 0, result
        return result.out

    def json(self, schema: str, *words: str, stdin: bytes = b"", status: int = 0) -> Any:
        """Run a command with --json and return its document, which has to follow the schema."""
        result = self.run(*words, "--json", stdin=stdin)
        assert (result.status, result.err) == (status, ""), result
        document = json.loads(result.out)
        check(schema, document)
        return document

    def lines(self, schema: str, *words: str, stdin: bytes = b"") -> list[Any]:
        """Run a command with --jsonl and return its lines, each of which has to follow the schema."""
        documents = [json.loads(line) for line in self.ok(*words, "--jsonl", stdin=stdin).splitlines()]
        for document in documents:
            check(schema, document)
        return documents

    def fails(self, status: int, *words: str, stdin: bytes = b"") -> dict[str, Any]:
        """Run a command that has to end with this status; return the error it reports as JSON."""
        result = self.run(*words, "--json", stdin=stdin)
        assert result.status == status, result
        document: dict[str, Any] = json.loads(result.err)
        check("error", document)
        assert document["exit"] == status
        return document


class Inside(Shell):
    """Runs the command in this process: thirty interpreters less to start."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[bytes]) -> None:
        super().__init__(url)
        self._capture = capture

    def run(self, *words: str, stdin: bytes = b"") -> Result:
        """Run a command to its end."""
        self._capture.readouterr()
        status = start.main([*words, *(() if "-u" in words else ("-u", self.environment["SHMQ_URL"]))])
        said = self._capture.readouterr()
        return Result(status, said.out, said.err.decode())


def interrupt(process: subprocess.Popen[bytes]) -> Result:
    """Press Ctrl-C and wait for the end."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    return Result(process.returncode, out, err.decode())


def joined(lines: Iterable[bytes]) -> bytes:
    """Return lines as a stream."""
    return b"".join(line + b"\n" for line in lines)
