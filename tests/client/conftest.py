"""What the tests of the client share: stand-ins, waiting for a condition, members in processes of their own."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deadline import eventually

MEMBER = Path(__file__).with_name("member.py")


@dataclass(eq=False)
class StandIn:
    """A message without a store: the attributes that scheduling looks at."""

    queue_id: int = 0
    offset: int = 0
    attempt: int = 1
    settled: bool = False
    message_id: str = "id"
    record_bytes: int = 100
    log_position: int = 0

    def ack(self) -> None:
        self.settled = True


@pytest.fixture
def message() -> Callable[..., Any]:
    """Make stand-ins for messages."""
    return StandIn


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Any]:
    """Wait until a condition is true, and return its value; fail when it is not in time."""
    return eventually


class Member:
    """A group member in a process of its own; `seen` holds (queue, offset, body, attempt) of what it got."""

    def __init__(self, url: str, topic: str, group: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(MEMBER), url, topic, group, *arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        self.seen: list[tuple[int, int, str, int]] = []
        self.queues: list[int] | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *rest = line.split()
            if word == "queues":
                self.queues = [int(queue) for queue in rest]
            else:
                self.seen.append((int(rest[0]), int(rest[1]), rest[2], int(rest[3])))

    def leave(self) -> None:
        """End it in order."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.wait(60)
        self._thread.join(60)

    def kill(self) -> None:
        """End it as a crash does."""
        self.process.kill()
        self.process.wait(60)
        self._thread.join(60)


@pytest.fixture
def member() -> Iterator[Callable[..., Member]]:
    """Start group members in processes of their own."""
    members: list[Member] = []

    def start(url: str, topic: str, group: str, *arguments: str) -> Member:
        members.append(Member(url, topic, group, *arguments))
        return members[-1]

    yield start
    for each in members:
        each.kill()
        for stream in (each.process.stdin, each.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
