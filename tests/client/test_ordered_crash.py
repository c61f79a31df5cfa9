"""Order with real processes that come, leave and are killed: a queue has one reader, and nothing is skipped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmq.testing import Broker
from tests.bridge.test_delays_survive import is_served
from tests.seed import SEED

pytestmark = pytest.mark.slow  # kills at random, for seconds

MEMBER = Path(__file__).with_name("ordering.py")
SECONDS = float(os.environ.get("SHMQ_CRASH_SECONDS", "4"))
LONG_SECONDS = 30.0  # from here on TCP members are killed as well: their locks hold for a minute
PER_SECOND = 60  # messages of each queue for each second of disturbance
QUEUES = 4
MEMBERS = 3
PATIENCE = 100.0
Eventually = Callable[..., Any]


class Member(NamedTuple):
    """A running one."""

    process: subprocess.Popen[bytes]
    is_local: bool


class Event(NamedTuple):
    """What a member wrote down."""

    ns: int
    what: str
    queue: int
    offset: int
    pid: int


class Storm:
    """Members of one group over both transports that come and go, and bridges that are killed."""

    def __init__(self, broker: Broker, file: Path, dice: random.Random) -> None:
        self.broker, self.file, self.dice = broker, file, dice
        self.members: list[Member] = []
        self.killed_ns: dict[int, int] = {}
        self.counts = Counter[str]()

    def join(self) -> None:
        is_local = bool(self.dice.randrange(2))
        url = self.broker.url if is_local else f"rocketmq://{self.broker.name_server}"
        command = [sys.executable, "-P", str(MEMBER), url, "g", "lines", str(self.file)]
        self.members.append(Member(subprocess.Popen(command, stderr=subprocess.DEVNULL), is_local))
        self.counts["joined"] += 1

    def leave(self, member: Member) -> None:
        self.counts["left"] += 1
        self.members.remove(member)
        member.process.terminate()
        member.process.wait(PATIENCE)

    def kill(self, member: Member) -> None:
        self.counts["killed"] += 1
        self.members.remove(member)
        self.killed_ns[member.process.pid] = time.monotonic_ns()
        member.process.kill()
        member.process.wait()

    def step(self, eventually: Eventually) -> None:
        """One of the things that happen to a group."""
        what = self.dice.choice(("member", "member", "bridge", "bridge-1"))
        if what == "member":
            member = self.dice.choice(self.members)
            may_kill = member.is_local or SECONDS >= LONG_SECONDS
            (self.kill if may_kill and self.dice.randrange(2) else self.leave)(member)
            eventually(lambda: is_served(self.broker))
            self.join()
        elif (mark := self.broker.processes.get(what)) is not None:
            self.counts[what] += 1
            os.kill(mark.pid, signal.SIGKILL)

    def end(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.wait()

    def events(self) -> list[Event]:
        lines = [line.split() for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return sorted(Event(int(ns), what, int(queue), int(offset), int(pid)) for what, queue, offset, pid, ns in lines)

    def first_times(self) -> dict[int, list[int]]:
        """Offsets of each queue in the order in which they were handled first."""
        seen: dict[int, dict[int, None]] = {queue: {} for queue in range(QUEUES)}
        for event in self.events():
            seen[event.queue].setdefault(event.offset)
        return {queue: list(offsets) for queue, offsets in seen.items()}

    def overlaps(self) -> list[tuple[Event, Event]]:
        """Messages that a member began while another member that lived was at work on the same queue."""
        found: list[tuple[Event, Event]] = []
        working: dict[int, Event] = {}
        for event in self.events():
            other = working.get(event.queue)
            if event.what == "E":
                if other is not None and other.pid == event.pid:
                    del working[event.queue]
                continue
            if other is not None and other.pid != event.pid and self.killed_ns.get(other.pid, event.ns) >= event.ns:
                found.append((other, event))
            working[event.queue] = event
        return found


def test_a_queue_has_one_reader_at_a_time_while_members_come_leave_and_are_killed(
    tmp_path: Path, eventually: Eventually
) -> None:
    count = int(SECONDS * PER_SECOND)
    with Broker(tcp=True, bridges=2) as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("lines", queues=QUEUES)
            for queue in range(QUEUES):
                mq.send_batch("lines", [b"%d" % number for number in range(count)], queue_id=queue)
        storm = Storm(broker, tmp_path / "events", random.Random(SEED))
        try:
            for _ in range(MEMBERS):
                storm.join()
            eventually(storm.events)
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                time.sleep(storm.dice.uniform(0.2, 0.7))  # not a wait: the moment of the kill
                storm.step(eventually)
            eventually(
                lambda: sum(map(len, storm.first_times().values())) == QUEUES * count, timeout=PATIENCE + SECONDS
            )
        finally:
            storm.end()
    print(dict(storm.counts))
    assert storm.overlaps() == []
    assert storm.first_times() == {queue: list(range(count)) for queue in range(QUEUES)}
