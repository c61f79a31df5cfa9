"""A topic that is deleted on the master and made again: its slaves hold the queues of the new one, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import assert_equal, slave_of
from tests.shm.looking import looking


@pytest.fixture(scope="module")
def master() -> Iterator[Broker]:
    with Broker(tcp=True, ha_listen="127.0.0.1:0") as broker:
        yield broker


@pytest.fixture(scope="module")
def slave(master: Broker) -> Iterator[Broker]:
    with slave_of(master) as broker:
        yield broker


class Life:
    """A topic of two queues on the master, and what was sent to it in its present life."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self.topic = topic
        self.sent: dict[int, list[bytes]] = {0: [], 1: []}

    def make(self) -> None:
        with self._broker.connect() as mq:
            mq.admin.create_topic(self.topic, queues=2)

    def delete(self) -> None:
        with self._broker.connect() as mq:
            mq.admin.delete_topic(self.topic)
        self.sent = {0: [], 1: []}

    def make_again(self) -> None:
        self.delete()
        self.make()

    def send(self, *queue_ids: int) -> None:
        with self._broker.connect() as mq:
            for queue_id in queue_ids:
                body = b"%d %d" % (queue_id, len(self.sent[queue_id]))
                mq.send(self.topic, body, queue_id=queue_id)
                self.sent[queue_id].append(body)


def bodies_of(broker: Broker, topic: str) -> dict[int, list[bytes]]:
    """What each queue holds, from its first message on."""
    with looking(broker) as store:
        queues = store.topic(store.topic_find(topic))["queues"]
        bounds = [(store.queue(queue).offset_min, store.queue(queue).offset_max) for queue in queues]
    found: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(len(bounds))}
    count = sum(end - begin for begin, end in bounds)
    with broker.connect() as mq, mq.pull_consumer(topic, start="earliest") as consumer:

        def is_complete() -> bool:
            for message in consumer.poll(32, wait=1.0):
                found[message.queue_id].append(bytes(message.body))
            return sum(map(len, found.values())) >= count

        eventually(is_complete, lambda: f"{found} of {bounds}")
    return found


def assert_copied(master: Broker, slave: Broker, life: Life) -> None:
    assert_equal(master, slave)
    assert bodies_of(slave, life.topic) == bodies_of(master, life.topic) == life.sent


def test_a_topic_made_again_is_made_again_on_the_slave(master: Broker, slave: Broker) -> None:
    life = Life(master, "again")
    life.make()
    life.send(0, 1, 0, 0)
    assert_copied(master, slave, life)
    for queue_ids in ((0, 0, 1), (1, 1, 0), (1,), (0, 1, 0, 1)):
        life.make_again()
        life.send(*queue_ids)
        assert_copied(master, slave, life)
        life.send(0, 1)
        assert_copied(master, slave, life)


def test_a_queue_that_was_empty_before_gets_no_message_of_another_life(master: Broker, slave: Broker) -> None:
    life = Life(master, "one-queue-was-empty")
    life.make()
    life.send(0, 0)
    assert_copied(master, slave, life)
    life.make_again()
    life.send(1, 0, 1)  # its first record follows the old queue 1 as well as the new one
    assert_copied(master, slave, life)


def has_topic(broker: Broker, topic: str) -> bool:
    with looking(broker) as store:
        return store.topic_find(topic) >= 0


def test_a_topic_that_is_deleted_on_the_master_is_deleted_on_the_slave(master: Broker, slave: Broker) -> None:
    life = Life(master, "deleted")
    life.make()
    life.send(0, 1, 0)
    assert_copied(master, slave, life)
    life.delete()
    eventually(lambda: not has_topic(slave, life.topic), lambda: slave.log[-2000:])
    eventually(lambda: "ha.topic_deleted" in slave.log, lambda: slave.log[-2000:])  # it is said once that is done
    life.make()
    life.send(1)
    assert_copied(master, slave, life)


@pytest.mark.slow
def test_what_was_deleted_while_the_slave_was_dead_is_deleted_there(master: Broker) -> None:
    life, other = Life(master, "deleted-while-dead"), Life(master, "that-stays")
    with slave_of(master) as slave:
        for each in (life, other):
            each.make()
            each.send(0, 1)
            assert_copied(master, slave, each)
        slave.kill_daemon()
        life.send(0)
        life.delete()
        other.send(1)
        slave.restart()
        eventually(lambda: not has_topic(slave, life.topic), lambda: slave.log[-2000:])
        assert_copied(master, slave, other)


@pytest.mark.slow
def test_what_was_made_again_while_the_slave_was_dead_is_made_again_there(master: Broker) -> None:
    life = Life(master, "again-while-dead")
    with slave_of(master) as slave:
        life.make()
        life.send(0, 1, 0)
        assert_copied(master, slave, life)
        slave.kill_daemon()
        life.send(0)
        life.make_again()
        life.send(1, 1)
        life.make_again()  # the slave never hears of the life before
        life.send(1, 0, 0)
        slave.restart()
        assert_copied(master, slave, life)
        slave.restart()
        assert_copied(master, slave, life)
        life.make_again()
        life.send(1, 0)
        assert_copied(master, slave, life)
        slave.kill_daemon()
        slave.restart()
        assert_copied(master, slave, life)


def test_a_new_slave_that_reads_several_lives_keeps_the_last(master: Broker) -> None:
    life = Life(master, "read-from-the-beginning")
    life.make()
    life.send(1, 0, 0)
    for queue_ids in ((1, 0, 1), (0, 0, 0), (1, 0)):
        life.make_again()
        life.send(*queue_ids)
    with slave_of(master) as slave:
        assert_copied(master, slave, life)
