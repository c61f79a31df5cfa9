"""A lock for ordered reading outlives the bridges: no killed one gives it away, and no local member takes it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import shmq
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.header import encode_command
from shmq.testing import Broker
from tests.bridge.cluster import Cluster
from tests.bridge.live_bridge import RawPeer, wait_until
from tests.deadline import eventually

ROLES = ("bridge", "bridge-1")
QUEUES = 4


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True, bridges=2) as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=QUEUES)
        yield broker


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    cluster = Cluster(broker)
    yield cluster
    cluster.close()


def ask(peer: RawPeer, code: int, client: str, group: str, *queue_ids: int) -> list[int]:
    """Lock or unlock; returns the queues that are locked."""
    queues = [{"brokerName": "b", "queueId": queue, "topic": "orders"} for queue in queue_ids]
    body = json.dumps({"clientId": client, "consumerGroup": group, "mqSet": queues}).encode()
    peer.send(encode_command(Command(code=code, opaque=66, body=body)))
    while (reply := peer.take()) is not None and reply.opaque != 66:
        pass
    assert reply is not None and reply.code == 0
    return [queue["queueId"] for queue in json.loads(reply.body)["lockOKMQSet"]] if reply.body else []


def found(cluster: Cluster, role: str) -> RawPeer:
    """A connection to a bridge that was started just now."""

    def connected() -> RawPeer | None:
        with contextlib.suppress(OSError, AssertionError):
            return cluster.peer(role)
        return None

    peer: RawPeer = wait_until(connected, f"{role} accepts")
    return peer


def make_group(broker: Broker, group: str) -> None:
    with broker.connect() as mq, mq.pull_consumer("orders") as consumer:
        consumer.commit(group=group)


@pytest.mark.slow
@pytest.mark.parametrize("killed", ROLES)
def test_a_lock_outlives_every_bridge(broker: Broker, cluster: Cluster, killed: str) -> None:
    group = f"ordered-{killed}"
    make_group(broker, group)
    assert ask(cluster.peer("bridge-1"), Request.LOCK_BATCH_MQ, "a", group, 0, 1) == [0, 1]
    cluster.kill(killed)
    other, holder = found(cluster, "bridge"), found(cluster, "bridge-1")
    assert ask(other, Request.LOCK_BATCH_MQ, "b", group, 0, 1, 2) == [2], "what a works on is not given to b"
    assert ask(holder, Request.LOCK_BATCH_MQ, "a", group, 0, 1) == [0, 1], "a renews it"
    ask(holder, Request.UNLOCK_BATCH_MQ, "a", group, 0)
    assert ask(other, Request.LOCK_BATCH_MQ, "b", group, 0, 1) == [0]


def test_a_local_member_waits_for_the_lock_of_a_remote_one(broker: Broker, cluster: Cluster) -> None:
    make_group(broker, "mixed")
    peer = cluster.peer("bridge")
    assert ask(peer, Request.LOCK_BATCH_MQ, "a", "mixed", 1) == [1]
    with broker.connect() as mq, mq.subscribe("orders", group="mixed") as local:
        wait_until(lambda: len(local.queues) == QUEUES - 1, "the others are taken")
        assert 1 not in local.queues
        assert ask(peer, Request.LOCK_BATCH_MQ, "a", "mixed", 0, 1) == [1], "0 is the local member's"
        ask(peer, Request.UNLOCK_BATCH_MQ, "a", "mixed", 1)
        wait_until(lambda: 1 in local.queues, "the last one is taken")


class Witness:
    """What ordered listeners handle, and whether two ever handle one queue at the same time."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = {}
        self.overlaps: list[tuple[int, int]] = []
        self._running: dict[int, int] = {}
        self._lock = threading.Lock()

    def handler(self, member: int, seconds: float) -> Callable[[shmq.Message], None]:
        def handle(message: shmq.Message) -> None:
            queue = message.queue_id
            with self._lock:
                if self._running.setdefault(queue, member) != member:
                    self.overlaps.append((queue, message.offset))
                self.seen.setdefault(queue, []).append(message.offset)
            time.sleep(seconds)  # not a wait: the work
            with self._lock:
                if self._running.get(queue) == member:
                    del self._running[queue]

        return handle

    def first_times(self, queue: int) -> list[int]:
        return list(dict.fromkeys(self.seen.get(queue, ())))


@pytest.mark.slow
@pytest.mark.parametrize("second", ["remote", "local"])
def test_order_holds_while_members_come_and_bridges_are_killed(broker: Broker, cluster: Cluster, second: str) -> None:
    """Two ordered listeners, the second of which comes when the first is at work; the primary is killed twice."""
    topic, group, count = f"lines-{second}", f"ordered-{second}", 150
    witness = Witness()
    with ExitStack() as stack, broker.connect() as mq:
        mq.admin.create_topic(topic, queues=QUEUES)
        url = f"rocketmq://{broker.name_server}"
        members = [stack.enter_context(shmq.connect(each)) for each in (url, url if second == "remote" else broker.url)]
        for queue in range(QUEUES):
            mq.send_batch(topic, [b"%d" % number for number in range(count)], queue_id=queue)
        for number, member in enumerate(members):
            member.listener(topic, group=group, ordered=True)(witness.handler(number, 0.02))
        members[0].start()
        eventually(lambda: len(witness.seen) == QUEUES, "the first is at work")
        members[1].start()
        for _ in range(2):
            cluster.kill("bridge")
        eventually(lambda: all(len(witness.first_times(queue)) == count for queue in range(QUEUES)), "all is done")
        for member in members:
            member.stop()
    assert not witness.overlaps, "one queue was handled by both at once"
    assert all(witness.first_times(queue) == list(range(count)) for queue in range(QUEUES))
