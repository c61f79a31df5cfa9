"""One group of local processes and stock clients over TCP: a share for each, nothing twice and nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

import shmq
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.java import LineClient

QUEUES = 4
GROUP = "mixed"


class LocalMember:
    """A member in this process, which keeps what it gets."""

    def __init__(self, broker: Broker) -> None:
        self.connection = broker.connect()
        self.subscription = self.connection.subscribe("orders", group=GROUP, start="first")
        self.bodies: list[str] = []
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while not self._is_stopping.is_set():
            for message in self.subscription.receive(32, wait=0.1):
                self.bodies.append(message.body.decode())
                message.ack()

    def close(self) -> None:
        self._is_stopping.set()
        self._thread.join(60)
        self.connection.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=QUEUES)
        yield broker


@pytest.fixture(params=["cpp", "java-4", "go"])
def client(request: pytest.FixtureRequest, client_of: Callable[[str], LineClient]) -> LineClient:
    return client_of(request.param)


def remote(client: LineClient, broker: Broker, name: str) -> Callable[[], set[str]]:
    """Start a push consumer; returns what shows its messages."""
    client.do("push", nameServer=broker.name_server, name=name, group=GROUP, topic="orders")
    return lambda: {each["body"] for each in client.received(name)}


def send_rounds(mq: shmq.Connection, prefix: str, rounds: int) -> set[str]:
    """One message for each queue, so many times."""
    bodies = [f"{prefix}-{turn}-{queue}" for turn in range(rounds) for queue in range(QUEUES)]
    for body in bodies:
        mq.send("orders", body.encode())
    return set(bodies)


def test_a_group_is_shared_by_local_and_remote_members(
    broker: Broker, client: LineClient, named: Callable[[str], str]
) -> None:
    name = named("remote")
    with broker.connect() as mq:
        local = LocalMember(broker)
        received = remote(client, broker, name)
        probes: set[str] = set()

        def has_joined() -> bool:
            probes.update(send_rounds(mq, f"probe{len(probes)}", 1))
            return bool(received()) and len(local.subscription.queues) == QUEUES // 2

        eventually(has_joined, "the queues are divided", timeout=60.0, pause=0.5)
        eventually(lambda: probes <= set(local.bodies) | received(), "all probes are read", timeout=60.0)
        wanted = send_rounds(mq, "shared", 5)
        eventually(lambda: wanted <= set(local.bodies) | received(), "the group has all", timeout=60.0)
        shares = set(local.bodies) & wanted, received() & wanted
        assert not shares[0] & shares[1]
        assert [len(share) for share in shares] == [len(wanted) // 2] * 2

        local.close()
        wanted = send_rounds(mq, "remote alone", 5)
        eventually(lambda: wanted <= received(), "the remote member has taken over", timeout=60.0)

        local = LocalMember(broker)
        client.do("push-close", name=name)
        wanted = send_rounds(mq, "local alone", 5)
        eventually(lambda: wanted <= set(local.bodies), "the local member has taken over", timeout=60.0)
        local.close()


def test_a_remote_member_goes_on_where_a_local_one_acknowledged(
    broker: Broker, client: LineClient, named: Callable[[str], str]
) -> None:
    name = named("later")
    with broker.connect() as mq:
        local = LocalMember(broker)
        first = send_rounds(mq, "first", 3)
        eventually(lambda: first <= set(local.bodies), "the local member reads", timeout=60.0)
        local.close()
        second = send_rounds(mq, "second", 3)
        received = remote(client, broker, name)
        eventually(lambda: second <= received(), "the remote member reads the rest", timeout=60.0)
        assert not first & received()
        client.do("push-close", name=name)


def test_a_local_member_that_reads_another_topic_takes_nothing_from_a_remote_one(
    broker: Broker, client: LineClient, named: Callable[[str], str]
) -> None:
    """RocketMQ's clients divide what they read among all that the broker names: those that read it, too."""
    name = named("remote")
    with broker.connect() as mq, broker.connect() as beside:
        mq.admin.create_topic("payments", queues=2)
        with beside.subscribe("payments", group=GROUP) as payments:
            client.do("push", nameServer=broker.name_server, name=name, group=GROUP, topic="orders", failFirst=1)
            wanted = send_rounds(mq, "order", 2)
            mq.send("payments", b"payment")
            (first,) = eventually(lambda: payments.receive(1, 0.5), "the local member reads", timeout=60.0)
            first.nack(after=1)

            def retried() -> set[str]:
                return {each["body"] for each in client.received(name) if each["reconsumeTimes"] == 1}

            eventually(lambda: retried() == wanted, "the retry of each order", timeout=90.0)
            (again,) = eventually(lambda: payments.receive(1, 0.5), "the local member's own retry", timeout=60.0)
            assert (again.body, again.attempt) == (b"payment", 2)
            again.ack()
            assert not payments.receive(1, 0.1)
        client.do("push-close", name=name)
