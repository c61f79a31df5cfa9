"""Topics come and go while others send and read, on this host and over TCP: what is gone leaves no trace."""

import threading
from collections.abc import Iterator

import pytest

import shmq
from shmq.shm.core import StoreFigures
from shmq.testing import Broker
from tests.deadline import eventually

CYCLES = 200
QUEUES = 1024
LARGE = "large"
SMALL = "small"  # of which clients over TCP can hold a pull for each queue
STAYS = "stays"


class Reader:
    """Reads a topic in a thread of its own, as long as it is there, and remembers what was in it."""

    def __init__(self, connection: shmq.Connection, topic: str, group: str) -> None:
        self.bodies: list[bytes] = []
        self.topics: set[str] = set()
        self.errors: list[BaseException] = []
        self._consumer = connection.subscribe(topic, group=group)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self._consumer:
                self.topics.add(message.topic)
                self.bodies.append(bytes(message.body))
                message.ack()
        except shmq.ShmqError as error:
            self.errors.append(error)

    def close(self) -> None:
        self._consumer.close()
        self._thread.join()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


def used(connection: shmq.Connection) -> int:
    return StoreFigures(connection._live().wire.store).stats()["queues_used"]  # type: ignore[attr-defined]


def created_large(connection: shmq.Connection) -> bool:
    """All lives together have twelve times the table's entries; a keeper that is slow just now is waited for."""
    try:
        connection.admin.create_topic(LARGE, queues=QUEUES)
    except shmq.SegmentFull as error:
        assert "by topics that were deleted" in str(error)
        return False
    return True


@pytest.mark.slow
def test_two_hundred_lives_of_a_large_topic_leave_the_table_as_it_was(broker: Broker) -> None:
    with broker.connect() as mq, shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        mq.admin.create_topic(STAYS, queues=4)
        before = used(mq)
        readers = [Reader(mq, STAYS, "local"), Reader(remote, STAYS, "remote")]
        guests = []
        sent: list[bytes] = []
        for cycle in range(CYCLES):
            eventually(lambda: created_large(mq), "the keeper frees entries while others are made")
            mq.admin.create_topic(SMALL, queues=2)
            if not guests:
                guests = [Reader(mq, LARGE, "guest"), Reader(mq, SMALL, "guest"), Reader(remote, SMALL, "far-guest")]
            for number, sender in enumerate((mq, remote)):
                sender.send(LARGE, b"%d of large %d" % (number, cycle))
                sender.send(SMALL, b"%d of small %d" % (number, cycle))
                sent.append(b"%d stays %d" % (number, cycle))
                sender.send(STAYS, sent[-1])
            mq.admin.delete_topic(LARGE)
            mq.admin.delete_topic(SMALL)
        eventually(lambda: all(len(reader.bodies) >= len(sent) for reader in readers), "all that stays was read")
        eventually(lambda: used(mq) - before < QUEUES, "the last life's entries are free")
        for reader in (*readers, *guests):
            reader.close()
        for reader in readers:
            assert sorted(reader.bodies) == sorted(sent) and reader.topics == {STAYS} and not reader.errors
        for guest, topic in zip(guests, (LARGE, SMALL, SMALL), strict=True):
            assert guest.topics <= {topic} and all(b" of %s " % topic.encode() in body for body in guest.bodies)
        assert guests[1].bodies, "a reader lives through the topic's lives"


def test_what_the_broker_keeps_for_itself_may_lie_where_others_lay(broker: Broker) -> None:
    """The topics of transactions, delayed and popped messages are made when they are first needed."""
    with broker.connect() as mq, shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        before = used(mq)
        mq.admin.create_topic(LARGE, queues=QUEUES)
        mq.admin.delete_topic(LARGE)
        eventually(lambda: used(mq) <= before, "its entries are free")
        mq.admin.create_topic(STAYS, queues=1)
        ways = {b"local": mq, b"remote": remote}
        for name, connection in ways.items():
            with connection.producer(group="shop") as producer:
                for ending in ("commit", "rollback"):
                    with producer.transaction(STAYS, name + b" " + ending.encode()) as half:
                        getattr(half, ending)()
            connection.send(STAYS, name + b" later", delay=0.01)
            connection.send(STAYS, name + b" at a level", delay_level=1)
        wanted = sorted(name + how for name in ways for how in (b" commit", b" later", b" at a level"))
        for name, connection in ways.items():
            with connection.simple_consumer(STAYS, group=name.decode()) as consumer:
                received: list[bytes] = []
                while len(received) < len(wanted):
                    for message in consumer.receive(16, wait=30):
                        received.append(bytes(message.body))
                        message.ack()
            assert sorted(received) == wanted
