"""Replay and re-drive while their processes and the broker are killed: each message once, and each queue in its order.

SHMQ_CRASH_LONG=1 kills for minutes, SHMQ_SINK_KILLS=n so often, SHMQ_TEST_SEED=n repeats a run's choices.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import Reject, ShmqError
from tests.seed import SEED
from tests.spark.jobs.killing import LONG, SMALL, Job, eventually

KILLS = int(os.environ.get("SHMQ_SINK_KILLS", "16" if LONG else "1"))
VICTIMS = ("driver", "worker", "broker", "jvm")
STAGE = 300  # messages for one kill
QUEUES = 2
LETTERS = 60


@pytest.fixture
def kill_broker() -> Iterator[Any]:
    """A broker of its own, because it is killed."""
    from shmq.testing import Broker

    with Broker(file_bytes=1 << 20, default_queues=QUEUES) as running:
        yield running


def count(mq: Any, topic: str) -> int:
    with contextlib.suppress(KeyError, ShmqError):
        return int(mq.admin.topics[topic].messages)
    return 0


def killed_until_done(job: Job, broker: Any, sent: Any, kills: int, step: int, choose: random.Random) -> int:
    """Kill it again and again while it sends, then let it come to its end; return how often it was hit."""
    hits = 0
    for number in range(kills):
        goal = sent() + choose.randrange(1, step)
        eventually(lambda: sent() >= goal or job.process.poll() == 0 or job.revive(), job.text)  # noqa: B023
        if job.process.poll() == 0:
            break
        victim = VICTIMS[number % len(VICTIMS)]
        if victim == "broker":
            broker.kill_daemon()
            broker.restart()
            hits += 1
        else:
            hits += job.kill(victim, choose)
    eventually(lambda: job.process.poll() == 0 or job.revive(), job.text)
    return hits


@pytest.mark.timeout(0 if LONG else 420)
def test_a_replay_that_is_killed_sends_each_message_once_in_order(kill_broker: Any, tmp_path: Path) -> None:
    choose = random.Random(f"{SEED} replay")
    print(f"{KILLS} kills, SHMQ_TEST_SEED={SEED}")
    with kill_broker.connect() as mq:
        for topic in ("origin", "again"):
            mq.admin.create_topic(topic, queues=QUEUES)
        bodies: list[list[bytes]] = [[] for _ in range(QUEUES)]
        for number in range(STAGE * (KILLS + 1)):
            bodies[number % QUEUES].append(b"%d" % number)
            mq.send("origin", b"%d" % number, queue_id=number % QUEUES)
        arguments = ("--topic", "origin", "--to", "again", "--run", "killed", "--rate", "400", "--yes")
        job = Job("replay", kill_broker.url, *arguments, *SMALL, log=tmp_path / "job.log")
        try:
            hits = killed_until_done(job, kill_broker, lambda: count(mq, "again"), KILLS, STAGE, choose)
        finally:
            job.end()
        found: list[list[bytes]] = [[] for _ in range(QUEUES)]
        for message in sorted(mq.browse("again", limit=10_000), key=lambda each: each.offset):
            found[message.queue_id].append(bytes(message.body))
    print(f"{hits} hits")
    assert hits and found == bodies


@pytest.mark.skipif(not LONG, reason="the same sender as replay's: SHMQ_CRASH_LONG=1")
@pytest.mark.timeout(0)
def test_a_re_drive_that_is_killed_sends_each_letter_once(kill_broker: Any, tmp_path: Path) -> None:
    choose = random.Random(f"{SEED} redrive")
    kills = max(1, KILLS // 2)
    letters = LETTERS * (kills + 1)
    with kill_broker.connect() as mq:
        mq.admin.create_topic("orders", queues=QUEUES)
        for number in range(letters):
            mq.send("orders", b"%d" % number)
        with kill_broker.connect() as other:
            listener = other.listener("orders", group="grump", attempts_max=1)

            @listener
            def refuse(message: Any) -> None:
                raise Reject("no order")

            other.start()
            eventually(lambda: len(mq.admin.dlq("grump")) >= letters, lambda: "letters")
        arguments = ("--group", "grump", "--redrive", "--rate", "60", "--yes")
        job = Job("dlq", kill_broker.url, *arguments, *SMALL, log=tmp_path / "job.log")
        try:
            hits = killed_until_done(job, kill_broker, lambda: count(mq, "orders") - letters, kills, LETTERS, choose)
        finally:
            job.end()
        times = Counter(bytes(message.body) for message in mq.browse("orders", limit=10_000))
    print(f"{hits} hits")
    assert hits and times == {b"%d" % number: 2 for number in range(letters)}
