"""A program that was started without descriptors 0 to 2 and is a client of every kind; lines of JSON say how it went.

    python -m tests.client.without_descriptors URL NAMESERVER FD DIRECTORY

For each set of the three that can be missing it forks a child that has the others, is each client in turn, and prints
in between as a library in C does: to the numbers, whatever is behind them. The last one goes on while its broker is
started again: it says so on the socket FD, and waits for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import shmq
import shmq.aio
from shmq.errors import BrokerNotRunning
from shmq.shm.descriptors import above_standard
from shmq.spark.access.broker import Range, Reading
from shmq.spark.access.way import open_access
from shmq.spark.options import parse_options
from shmq.spark.scan.frames import read_files, sealed_files
from shmq.spark.scan.messages import read_ranges
from shmq.testing import Broker
from tests.deadline import eventually

SETS: Final = tuple(each for size in (1, 2, 3) for each in combinations(range(3), size))
COUNT: Final = 40
BODY: Final = bytes(16 << 10)  # with COUNT of them the log goes through several of its files


def prints() -> None:
    """Write to 1 and 2 and read from 0, as code does that does not know that they are missing."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            os.write(number, b"a line that a library prints\n" * 40)
    with contextlib.suppress(OSError):
        os.read(0, 1 << 16)


def sends_and_consumes(url: str, topic: str) -> None:
    """One connection of each kind of client; every message comes as it was sent."""
    sent, got = [], []
    with shmq.connect(url) as mq:
        prints()
        for number in range(COUNT):
            sent.append(b"%d " % number + BODY)
            mq.send(topic, sent[-1])
            prints()
        with mq.subscribe(topic, group=f"{topic}-g", start="earliest") as subscription:
            while len(got) < COUNT:
                for message in subscription.receive(COUNT, 1.0):
                    got.append(bytes(message.body))
                    message.ack()
                prints()
        with mq.subscribe(topic, group=f"{topic}-b", model="broadcasting", start="earliest") as subscription:
            subscription.receive(1, 1.0)
            prints()
    assert sorted(got) == sorted(sent), (len(got), len(sent))


async def awaits(url: str, topic: str) -> None:
    """The same with asyncio."""
    async with shmq.aio.connect(url) as mq:
        await mq.send(topic, b"from asyncio")
        prints()
        async with mq.subscribe(topic, group=f"{topic}-g", start="earliest") as subscription:
            [message] = await subscription.receive(1, 30.0)
            prints()
            assert bytes(message.body) == b"from asyncio"


def in_a_loop(url: str, topic: str) -> None:
    with above_standard, asyncio.Runner() as runner:  # the loop is the program's own
        runner.get_loop()
        runner.run(awaits(url, topic))


def reads_as_an_executor(url: str, topic: str) -> None:
    """What a task of Spark does with its share of a load: queues, and whole files of the log."""
    options = parse_options({"store": url, "topic": topic})
    access: Any = open_access(options)
    reading, rows = Reading(options, ("body",)), 0
    for queue in access.queues(topic):
        start, end = access.bounds(queue)
        for batch in read_ranges(reading, [Range(topic, queue.queue_id, queue.born_position, start, end)]):
            rows += batch.num_rows
            prints()
    assert rows == COUNT
    if url.startswith("shmq:"):
        files = sealed_files(access)
        batches = read_files(Reading(options, ("queue_offset",)), files)
        assert files and next(batches) is not None
        prints()
        batches.close()  # type: ignore[attr-defined]


def uses(url: str, remote: str, number: int) -> Iterator[tuple[str, Callable[[], object]]]:
    for wire, place in (("shm", url), ("tcp", remote)):
        topic = f"without-{wire}-{number}"
        yield f"{wire} client", lambda place=place, topic=topic: sends_and_consumes(place, topic)
        yield f"{wire} Spark", lambda place=place, topic=topic: reads_as_an_executor(place, topic)
        yield f"{wire} asyncio", lambda place=place, topic=topic: in_a_loop(place, f"{topic}-aio")


def missing(numbers: tuple[int, ...]) -> None:
    """Be a program that was started without these."""
    nothing = fcntl.fcntl(os.open(os.devnull, os.O_RDWR), fcntl.F_DUPFD, 3)
    for number in range(3):
        if number not in numbers:
            os.dup2(nothing, number)
        else:
            with contextlib.suppress(OSError):
                os.close(number)
    os.close(nothing)


def taken(numbers: tuple[int, ...]) -> list[str]:
    """What is there where nothing was."""
    return [os.readlink(f"/proc/self/fd/{number}") for number in numbers if os.path.lexists(f"/proc/self/fd/{number}")]


def program(numbers: tuple[int, ...], url: str, remote: str, number: int) -> list[str]:
    """Be each client in turn; return what went wrong."""
    wrong = []
    missing(numbers)
    for name, use in uses(url, remote, number):
        try:
            use()
        except Exception:
            wrong.append(f"{name}: {traceback.format_exc()}")
        if found := taken(numbers):
            wrong.append(f"{name}: {found}")
    return wrong


def outlives(url: str, remote: str, parent: socket.socket) -> list[str]:
    """Close them when all is open; then the broker is started again, and a child is forked. Return what went wrong."""
    missing(())
    wrong = []
    try:
        with shmq.connect(url) as near, shmq.connect(remote) as far:
            missing((0, 1, 2))
            for mq in (near, far):
                mq.send("again", b"before")
            tell(parent, {"ready": True})
            parent.recv(1)
            for mq in (near, far):
                eventually(lambda mq=mq: sent_again(mq), "the client is attached again")
                prints()
            if os.fork() == 0:
                found: list[str] = []
                with contextlib.suppress(Exception):
                    near.send("again", b"child", timeout=60.0)
                    found = taken((0, 1, 2))
                os._exit(len(found))
            assert os.wait()[1] == 0
    except Exception:
        wrong.append(traceback.format_exc())
    return wrong + taken((0, 1, 2))


def embeds() -> list[str]:
    """Have a broker of one's own, as tests have it; return what went wrong."""
    missing((0, 1, 2))
    try:
        with Broker(default_queues=1) as broker, broker.connect() as mq:
            mq.send("orders", b"embedded")
            prints()
            broker.restart()
            prints()
            assert [bytes(each.body) for each in broker.expect("orders")] == [b"embedded"]
    except Exception:
        return [traceback.format_exc()]
    return taken((0, 1, 2))


def sent_again(mq: shmq.Connection) -> bool:
    """Print, and send; False as long as the client has not found that the broker was started again."""
    prints()
    with contextlib.suppress(BrokerNotRunning):
        mq.send("again", b"after", timeout=60.0)
        return True
    return False


def tell(parent: socket.socket, what: dict[str, Any]) -> None:
    parent.sendall(json.dumps(what).encode() + b"\n")


def main(url: str, remote: str, descriptor: int, directory: Path) -> None:
    parent = socket.socket(fileno=descriptor)
    for number, numbers in enumerate((*SETS, "embedded", "again")):
        if os.fork() == 0:
            log = directory / f"low.{number}"
            os.environ["SHMQ_LOW_LOG"] = str(log)
            if numbers == "again":
                wrong = outlives(url, remote, parent)
            elif isinstance(numbers, str):
                wrong = embeds()
            else:
                wrong = program(numbers, url, remote, number)
            low = log.read_text().splitlines() if log.exists() else []
            tell(parent, {"missing": numbers, "wrong": wrong, "low": low})
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
