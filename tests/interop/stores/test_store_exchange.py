"""A store directory changes hands: what we wrote a stock broker opens, what it wrote we open, after a stop or a crash.

Message sets, offsets, keys and delayed messages that still wait have to be the same on the other side.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.java import ClientError, LineClient
from tests.interop.peers.stock import StockBroker

FILE_BYTES = 16 << 20
QUEUES = 4
Named = Callable[[str], str]


class Written(NamedTuple):
    """What was sent, and what was answered about it."""

    topic: str
    group: str
    bodies: dict[int, list[str]]  # queue -> bodies in order
    unique: dict[str, str]  # body -> msgId
    committed: int  # of the group on queue 1
    delayed: list[str]


@pytest.fixture
def stock() -> Iterator[Callable[[Path | None], StockBroker]]:
    """Starts a stock broker, on a copy of a store directory if one is given."""
    running: list[StockBroker] = []

    def start(store: Path | None) -> StockBroker:
        try:
            broker = StockBroker("4")
        except PeerMissing as reason:
            pytest.skip(str(reason))
        running.append(broker)
        if store is not None:
            shutil.copytree(store, broker.store, ignore=shutil.ignore_patterns("lock"))
        return broker.start()

    yield start
    for broker in running:
        broker.stop()


def write(client: LineClient, name_server: str, broker: str, stem: str) -> Written:
    """Fill a broker: several queues, keys, tags, an offset, and messages that wait for ten seconds."""
    topic, group = f"{stem}_topic", f"{stem}_group"
    client.do("producer", name=stem, group=stem, nameServer=name_server)
    bodies: dict[int, list[str]] = {queue: [] for queue in range(QUEUES)}
    unique: dict[str, str] = {}
    for number in range(60):
        body = f"m{number:03d} " + "x" * (number * 97 % 3000)
        queue = number % 3
        (sent,) = client.do(
            "send", name=stem, topic=topic, broker=broker, queue=queue, bodies=[body], key=f"key{number % 7}", tag="red"
        )
        assert sent["offset"] == len(bodies[queue])
        bodies[queue].append(body)
        unique[body] = sent["msgId"]
    delayed = ["later 0", "later 1"]
    client.do("send", name=stem, topic=topic, bodies=delayed, delayLevel=3)
    client.do("pull", name=group, group=group, nameServer=name_server)
    client.do("pull-commit", name=group, topic=topic, broker=broker, queue=1, offset=7)
    client.do("pull-close", name=group)
    client.do("producer-close", name=stem)
    return Written(topic, group, bodies, unique, 7, delayed)


def is_saved(store: Path, written: Written) -> bool:
    """Whether the committed offset is on disk; both brokers write it every five seconds."""
    path = store / "config" / "consumerOffset.json"
    return path.exists() and f"{written.topic}@{written.group}" in path.read_text()


def check(
    client: LineClient, name_server: str, broker: str, written: Written, reader: str, *, is_first: bool = True
) -> None:
    """Everything that was written is there, in its place, found by its keys; what waited is delivered, by the first
    owner once, by a later one again if the first did not save how far it was."""
    client.do("pull", name=reader, group=written.group, nameServer=name_server)
    client.do("admin", name=reader, nameServer=name_server)

    def pulled(queue: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            where = {"topic": written.topic, "broker": broker, "queue": queue}
            some = client.do("pull-once", name=reader, offset=len(found), **where)
            if not some["messages"]:
                return found
            found += some["messages"]

    for queue, bodies in written.bodies.items():
        found = [each for each in pulled(queue) if not each["body"].startswith("later")]
        assert [each["body"] for each in found] == bodies
        assert [each["msgId"] for each in found] == [written.unique[body] for body in bodies]
        assert [each["offset"] for each in found] == sorted(each["offset"] for each in found)
    where = {"topic": written.topic, "broker": broker, "queue": 1}
    assert client.do("pull-offsets", name=reader, timestamp=0, **where)["committed"] == written.committed

    def by_key(key: str) -> set[str]:
        try:
            return {each["body"] for each in client.do("query", name=reader, topic=written.topic, key=key)}
        except ClientError:
            return set()

    for number in range(7):
        wanted = {body for bodies in written.bodies.values() for body in bodies if int(body[1:4]) % 7 == number}
        eventually(lambda wanted=wanted, key=f"key{number}": by_key(key) == wanted, f"all of key{number}")
    body, unique = next(iter(written.unique.items()))
    assert client.do("view", name=reader, topic=written.topic, msgId=unique)["body"] == body

    def later() -> list[str]:
        return sorted(each["body"] for queue in range(QUEUES) for each in pulled(queue) if each["body"][0] == "l")

    def delivered() -> bool:
        found = later()
        return found == written.delayed if is_first else set(found) == set(written.delayed)

    eventually(delivered, "the delayed messages", timeout=60.0)
    client.do("pull-close", name=reader)
    client.do("admin-close", name=reader)


def send_more(client: LineClient, name_server: str, broker: str, written: Written, stem: str) -> None:
    """The new owner goes on where the old one stopped."""
    client.do("producer", name=stem, group=stem, nameServer=name_server)
    where = {"topic": written.topic, "broker": broker, "queue": 3}
    (sent,) = client.do("send", name=stem, bodies=["more"], key="more", **where)
    assert sent["status"] == "SEND_OK"
    client.do("admin", name=stem, nameServer=name_server)

    def found() -> bool:
        try:
            return [each["body"] for each in client.do("query", name=stem, topic=written.topic, key="more")] == ["more"]
        except ClientError:
            return False

    eventually(found, "the index goes on")
    client.do("admin-close", name=stem)
    client.do("producer-close", name=stem)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_stock_broker_opens_what_we_wrote(
    client_of: Callable[[str], LineClient],
    stock: Callable[[Path | None], StockBroker],
    named: Named,
    tmp_path: Path,
    end: str,
) -> None:
    client = client_of("java-4")
    copy = tmp_path / "store"
    with Broker(tcp=True, file_bytes=FILE_BYTES, default_queues=QUEUES) as ours:
        written = write(client, ours.name_server, ours.name, named("ours"))
        eventually(lambda: is_saved(ours.store, written), "the offset is saved")
        if end == "killed":
            ours.kill_daemon()
        else:
            assert ours._process is not None
            ours._process.terminate()
            ours._process.wait(30)
        shutil.copytree(ours.store, copy)
    assert (copy / "abort").exists() == (end == "killed")
    broker = stock(copy)
    check(client, broker.name_server, broker.broker_name, written, named("reader"))
    send_more(client, broker.name_server, broker.broker_name, written, named("more"))


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_we_open_what_a_stock_broker_wrote(
    client_of: Callable[[str], LineClient], stock: Callable[[Path | None], StockBroker], named: Named, end: str
) -> None:
    client = client_of("java-4")
    broker = stock(None)
    written = write(client, broker.name_server, broker.broker_name, named("stock"))
    eventually(lambda: is_saved(broker.store, written), "the offset is saved")
    for child in reversed(broker._children):
        child.stop() if end == "stopped" else child.kill()
    ours = Broker(tcp=True, file_bytes=FILE_BYTES)
    shutil.copytree(broker.store, ours.store, ignore=shutil.ignore_patterns("lock"))
    with ours:
        # A stock broker that delivered in time may not have written how far it was.
        check(client, ours.name_server, ours.name, written, named("reader"), is_first=False)
        send_more(client, ours.name_server, ours.name, written, named("more"))


def test_a_store_goes_there_and_back(
    client_of: Callable[[str], LineClient], stock: Callable[[Path | None], StockBroker], named: Named, tmp_path: Path
) -> None:
    client = client_of("java-4")
    copy = tmp_path / "store"
    with Broker(tcp=True, file_bytes=FILE_BYTES, default_queues=QUEUES) as ours:
        written = write(client, ours.name_server, ours.name, named("ours"))
        eventually(lambda: is_saved(ours.store, written), "the offset is saved")
        ours.kill_daemon()
        shutil.copytree(ours.store, copy)
    broker = stock(copy)
    check(client, broker.name_server, broker.broker_name, written, named("reader"))
    broker._children[-1].stop()
    again = Broker(tcp=True, file_bytes=FILE_BYTES)
    shutil.copytree(broker.store, again.store, ignore=shutil.ignore_patterns("lock"))
    with again:
        check(client, again.name_server, again.name, written, named("reader"), is_first=False)
        send_more(client, again.name_server, again.name, written, named("more"))
