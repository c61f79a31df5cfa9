"""Acknowledged messages of every late kind arrive, each once, with a whole broker whose syncs take up to 800 ms."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shmq
from shmq.client.connection import Connection
from shmq.testing import Broker
from tests.deadline import eventually

pytestmark = pytest.mark.slow

COUNT = 24
SHIM = Path(__file__).with_name("slow_disk.c")


@pytest.fixture
def disk_ms() -> int:
    return 800


@pytest.fixture
def broker(disk_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    library = tmp_path / "slow_disk.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", str(SHIM), "-o", str(library), "-ldl"], check=True)
    delay_ms = tmp_path / "slow_disk_ms"
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("SLOW_DISK", str(delay_ms))
    broker = Broker(tcp=True, flush="sync")
    try:
        broker.start()
        monkeypatch.delenv("LD_PRELOAD")
        delay_ms.write_text(str(disk_ms))
        yield broker
    finally:
        delay_ms.unlink(missing_ok=True)
        broker.stop()


def expected() -> list[bytes]:
    return [b"%d" % number for number in range(COUNT)]


def arriving(consumer: shmq.PullConsumer) -> list[bytes]:
    """Everything that comes, until there is as much as was sent, and then what comes once more."""
    found: list[bytes] = []
    eventually(lambda: found.extend(map(body, consumer.poll(64, 0.5))) or len(found) >= COUNT, lambda: f"{len(found)}")
    found += map(body, consumer.poll(64, 1.0))
    return sorted(found, key=int)


def body(message: shmq.Message) -> bytes:
    return bytes(message.body)


def remote(broker: Broker) -> Connection:
    return shmq.connect(f"rocketmq://{broker.name_server}")


def send_all(connections: tuple[Connection, ...], **arguments: Any) -> None:
    """Send in turn over the connections, and return when every message is acknowledged; they share the syncs."""
    with ThreadPoolExecutor(COUNT) as threads:
        turns = zip(itertools.cycle(connections), expected(), strict=False)
        list(threads.map(lambda turn: turn[0].send("orders", turn[1], timeout=60, **arguments), turns))


@pytest.mark.parametrize("disk_ms", [0, 800])
@pytest.mark.parametrize("delay", [0.002, 0.3])
def test_timed_messages_arrive(broker: Broker, delay: float) -> None:
    with broker.connect() as mq, remote(broker) as tcp:
        send_all((mq, tcp), delay=delay)
        with mq.pull_consumer("orders") as consumer:
            assert arriving(consumer) == expected()


@pytest.mark.parametrize("disk_ms", [0, 800])
def test_messages_given_back_over_tcp_arrive_again(broker: Broker) -> None:
    with remote(broker) as tcp:
        send_all((tcp,))
        with tcp.simple_consumer("orders", group="workers", hidden_by="process") as consumer:
            first: set[bytes] = set()
            again: list[bytes] = []

            def look() -> bool:
                for message in consumer.receive(32, wait=0.5):
                    text = bytes(message.body)
                    if message.attempt > 1:
                        again.append(text)
                        message.ack()
                    else:
                        first.add(text)
                        message.nack(after=1.1)  # what is due within a second stays in this process
                return len(again) >= COUNT

            eventually(look, lambda: f"{len(first)} came, {len(again)} came again")
            assert sorted(set(again), key=int) == expected()


@pytest.mark.parametrize("disk_ms", [60_000])
def test_a_send_whose_broker_went_away_says_that_it_may_be_stored(broker: Broker) -> None:
    with remote(broker) as tcp, ThreadPoolExecutor(1) as threads:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=1)
            sent = threads.submit(tcp.send, "orders", b"perhaps", timeout=60)
            eventually(lambda: mq.admin.topics["orders"].messages >= 1, "it is stored, and waits for the disk")
        broker.kill_daemon()
        with pytest.raises(shmq.ShmqError) as caught:
            sent.result(60)
        assert caught.value.maybe_stored and "is not known" in str(caught.value)
        with pytest.raises(shmq.ShmqError) as caught:
            tcp.send("orders", b"surely not")
        assert not caught.value.maybe_stored and "is not known" not in str(caught.value)
