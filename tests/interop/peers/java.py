"""Owns the official Java client as a long-lived process: commands in, answers and received messages out.

It does not know what a command means; `java/*.java` does.
"""

from __future__ import annotations

import itertools
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

from tests.deadline import eventually
from tests.interop.peers.cache import program
from tests.interop.peers.process import Child
from tests.interop.peers.registry import DEFAULT_JDK, java_program
from tests.interop.peers.stock import SMALL_HEAP, make_home, opened

ANSWER_TIMEOUT = 60.0
REBALANCE = "rocketmq.client.rebalance.waitInterval"  # 20 s by default, spent whenever a client asks a moment too early


class ClientError(Exception):
    """What the client threw; `code` is the broker's response code, or -1."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class LineClient:
    """A client program that takes a JSON command a line and prints answers and events.

    Attributes:
        events: what consumers of this process received, oldest first.
    """

    def __init__(self, command: list[str], **environment: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="shmq-client-"))
        self.events: list[dict[str, Any]] = []
        self._serial = itertools.count(1)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        make_home(self.directory)
        self._child = Child(
            command,
            self.directory / "client.log",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.directory,
            env={"HOME": str(self.directory), "ROCKETMQ_HOME": str(self.directory), **environment},
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether it still takes commands."""
        return self._child.process.poll() is None

    def do(self, verb: str, *, timeout: float = ANSWER_TIMEOUT, **arguments: Any) -> Any:
        """Send a command and return the result in its answer.

        Raises:
            ClientError: the client threw.
            AssertionError: the process ended or did not answer in time.
        """
        serial = next(self._serial)
        pipe = self._child.process.stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps({"id": serial, "do": verb, **arguments}).encode() + b"\n")
            pipe.flush()
            answer = self._answers.get(timeout=timeout)
            while answer["id"] is not None and answer["id"] < serial:  # one that came too late for its own command
                answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no answer to {verb} within {timeout:g} s: {self._child.log}") from None
        except BrokenPipeError:
            raise AssertionError(f"the client ended before {verb}: {self._child.log}") from None
        assert answer.get("id") == serial, f"{verb}: {answer}, {self._child.log}"
        if "error" in answer:
            raise ClientError(answer["error"], answer.get("code", -1))
        return answer.get("result")

    def received(self, consumer: str) -> list[dict[str, Any]]:
        """Return what a consumer of this process got so far."""
        return [event for event in list(self.events) if event.get("consumer") == consumer]

    def expect(self, consumer: str, count: int, timeout: float = 40.0) -> list[dict[str, Any]]:
        """Wait until a consumer has got at least `count` messages, and return all it has got."""

        def enough() -> list[dict[str, Any]]:
            found = self.received(consumer)
            return found if len(found) >= count else []

        try:
            return list(eventually(enough, f"{count} messages for {consumer}", timeout))
        except AssertionError as error:
            bodies = [event["body"][:40] for event in self.received(consumer)]
            raise AssertionError(f"{error}; it has {len(bodies)}: {bodies[:40]}\n{self._child.log}") from None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self._child.kill()

    def close(self) -> None:
        """End it and remove its directory."""
        self._child.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        pipe = self._child.process.stdout
        assert pipe is not None
        for line in pipe:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # a library printed something of its own
            if "event" in said:
                self.events.append(said)
            else:
                self._answers.put(said)
        self._answers.put({"error": "the client ended", "id": None})


class JavaClient(LineClient):
    """The client and mqadmin of one line, "4" or "5"."""

    def __init__(self, version: str, *options: str) -> None:
        self.version = version
        command = [program("java", DEFAULT_JDK), *SMALL_HEAP, *opened(), *options]
        command += ["-Dfile.encoding=UTF-8", "-Drocketmq.client.logLevel=WARN", f"-D{REBALANCE}=4000"]
        super().__init__([*command, "-Duser.home=.", "-cp", java_program(version), "Main"])

    def mqadmin(self, *words: str) -> str:
        """Return what `mqadmin words…` prints."""
        return str(self.do("mqadmin", words=list(words)))
