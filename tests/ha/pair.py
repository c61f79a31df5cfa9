"""Two brokers, a master and its slave, and what tests ask of them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import shmq
from shmq.addresses import parse_address
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.header import CommandDecoder, encode_command
from shmq.shm.addresses import read_addresses
from shmq.shm.liveness import STOPPED_STATES
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, eventually
from tests.shm.looking import looking


def slave_of(master: Broker, **settings: Any) -> Broker:
    ha = read_addresses(master.place.ha_path)["ha"]
    return Broker(name=master.name, tcp=True, role="slave", master=master.broker_address, master_ha=ha, **settings)


def log_end(broker: Broker) -> int:
    with looking(broker) as store:
        return store.log_end


def log_of(broker: Broker, end: int, *, begin: int = 0) -> bytes:
    """The bytes of the log up to `end`; its first file is that of `begin`."""
    files = sorted(path for path in Path(broker.store, "commitlog").iterdir() if path.name.isdecimal())
    return b"".join(path.read_bytes() for path in files if int(path.name) >= begin)[: end - begin]


def settled_end(master: Broker, slave: Broker) -> int:
    """Wait until the slave has what the master has."""

    def equal() -> int:
        with contextlib.suppress(shmq.SegmentError):  # the segments are made anew just now
            end = log_end(master)  # the master's own parts may append, too
            return end if log_end(slave) == end == log_end(master) else 0
        return 0

    return int(eventually(equal, lambda: slave.log[-2000:]))


def assert_equal(master: Broker, slave: Broker) -> None:
    end = settled_end(master, slave)
    ours, theirs = log_of(slave, end), log_of(master, end)
    assert ours == theirs, _difference(ours, theirs)


def _difference(ours: bytes, theirs: bytes) -> str:
    """Where two logs part, and what each of them has there."""
    if len(ours) != len(theirs):
        return f"{len(ours)} bytes at the slave, {len(theirs)} at the master"
    differs = [at for at in range(0, len(ours), 4096) if ours[at : at + 4096] != theirs[at : at + 4096]]
    first = next(at for at in range(differs[0], len(ours)) if ours[at] != theirs[at])
    last = max(at for at in range(differs[-1], min(differs[-1] + 4096, len(ours))) if ours[at] != theirs[at])
    begin = max(0, first - 128)
    return (
        f"{len(differs)} pages differ, from {first} to {last} of {len(ours)}\n"
        f"slave  {ours[begin : first + 256]!r}\nmaster {theirs[begin : first + 256]!r}"
    )


def send(broker: Broker, bodies: range, topic: str = "orders") -> None:
    with broker.connect(timeout=DEADLINE_SECONDS) as mq:
        producer = mq.producer()
        for number in bodies:
            producer.send(topic, b"%d" % number, key=f"k{number}")


def bodies_of(url: str, count: int, group: str) -> list[int]:
    """What a new group reads until it has so many messages, which are all that are stored."""
    return _read(url, group, lambda found: len(found) >= count)


def read_until_all(url: str, bodies: Set[int], group: str) -> list[int]:
    """What a new group reads until none of these is missing.

    What senders that were stopped got no answer for may be stored as well: the number of messages says nothing then.
    """
    return _read(url, group, lambda found: bodies <= set(found), lambda found: f"missing: {bodies - set(found)}")


def _read(
    url: str, group: str, is_enough: Callable[[list[int]], bool], what: Callable[[list[int]], object] = sorted
) -> list[int]:
    found: list[int] = []
    with shmq.connect(url) as mq, mq.subscribe("orders", group=group, start="earliest") as subscription:
        while not is_enough(found):
            messages = subscription.receive(32, 30.0)
            assert messages, what(found)
            for message in messages:
                found.append(int(bytes(message.body)))
                message.ack()
    return sorted(found)


def stop_threads(pid: int) -> None:
    """Stop a process and wait until each of its threads stands still: the signal alone leaves them some time to run."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path("/proc", str(pid), "task")

    def states() -> set[str]:
        found = set()
        for thread in threads.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                found.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
        return found

    eventually(lambda: states() <= STOPPED_STATES, pause=0.0005)


def ask(broker: Broker, code: int, body: bytes = b"", **ext: str) -> Command:
    """One request to a broker's TCP port, and its answer."""
    decoder = CommandDecoder()
    with socket.create_connection(parse_address(broker.broker_address), 30.0) as connection:
        connection.sendall(encode_command(Command(code, opaque=1, ext=ext, body=body)))
        while (reply := decoder.take()) is None:
            decoder.feed(connection.recv(65536))
    return reply


def pulled(broker: Broker, offset: int) -> Command:
    """The answer to a plain pull of eight messages."""
    fields = {
        "consumerGroup": "pullers",
        "topic": "orders",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "8",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "1",
        "expressionType": "TAG",
    }
    return ask(broker, Request.PULL_MESSAGE, **fields)


def offsets_of(group: str, broker: Broker) -> list[int]:
    """Where a group is in each queue of the orders."""
    with looking(broker) as store:
        number = store.group_find(group)
        if number < 0:
            return []
        places = store.topic(store.topic_find("orders"))["queues"]
        found = {entry.queue: entry.committed for entry in store.offsets() if entry.group == number}
        return [found.get(queue, -1) for queue in places]
