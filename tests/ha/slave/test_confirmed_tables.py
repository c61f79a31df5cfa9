"""A synchronous master answers a change of topics or groups when its slave has it, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import shmq
from shmq.protocol.body import SubscriptionGroupConfig, encode_body
from shmq.protocol.codes import Request
from shmq.shm.core import Store
from shmq.store.group_settings import decode_settings
from shmq.testing import Broker
from tests.deadline import eventually
from tests.ha.pair import ask, slave_of, stop_threads
from tests.ha.test_synchronous import FILE_BYTES, LONG, replication_pid, sync_master, until_in_sync
from tests.shm.looking import looking

Connect = Callable[[Broker], shmq.Connection]
CONNECTS: dict[str, Connect] = {
    "local": lambda broker: broker.connect(timeout=LONG),
    "tcp": lambda broker: shmq.connect(f"rocketmq://{broker.name_server}", timeout=LONG),
}


@pytest.fixture
def master() -> Iterator[Broker]:
    with sync_master() as broker:
        yield broker


@pytest.fixture
def slave(master: Broker) -> Iterator[Broker]:
    with slave_of(master, file_bytes=FILE_BYTES) as broker:
        until_in_sync(master)
        yield broker


def queues_of(copy: Store, topic: str) -> int:
    """How many queues a topic has to write, 0 where there is none of this name."""
    index = copy.topic_find(topic)
    return int(copy.topic(index)["write_queues"]) if index >= 0 else 0


@pytest.mark.parametrize("connect", CONNECTS.values(), ids=CONNECTS)
def test_a_topic_is_on_both_hosts_when_the_call_that_changes_it_returns(
    master: Broker, slave: Broker, connect: Connect
) -> None:
    with connect(master) as mq, looking(slave) as copy:
        for number in range(20):
            name = f"topic-{number}"
            mq.admin.create_topic(name, queues=2)
            assert queues_of(copy, name) == 2
            mq.admin.update_topic(name, queues=4, flush="async")
            assert (queues_of(copy, name), copy.topic(copy.topic_find(name))["flush"]) == (4, 1)
            mq.admin.delete_topic(name)
            assert queues_of(copy, name) == 0


@pytest.mark.parametrize("connect", CONNECTS.values(), ids=CONNECTS)
def test_a_topic_that_a_first_send_makes_is_on_both_hosts_when_it_returns(
    master: Broker, slave: Broker, connect: Connect
) -> None:
    with connect(master) as mq, looking(slave) as copy, looking(master) as store:
        for number in range(5):
            mq.send(f"new-{number}", b"0", timeout=LONG)
            assert queues_of(copy, f"new-{number}") == queues_of(store, f"new-{number}") > 0


def test_a_group_is_on_both_hosts_when_the_answer_is_there(master: Broker, slave: Broker) -> None:
    with looking(slave) as copy:
        for number in range(10):
            name = f"group-{number}"
            for most in (3, 5):
                config = SubscriptionGroupConfig(name, retryMaxTimes=most)
                ask(master, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(config))
                group = copy.group_find(name)
                assert decode_settings(copy.group_settings(group))["retryMaxTimes"] == most
            ask(master, Request.DELETE_SUBSCRIPTIONGROUP, groupName=name)
            assert copy.group_find(name) < 0


@pytest.mark.slow
def test_a_topic_whose_slave_is_stopped_is_made_when_that_has_left(master: Broker, slave: Broker) -> None:
    stopped = replication_pid(slave)
    with master.connect(timeout=LONG) as mq, ThreadPoolExecutor(1) as threads, looking(slave) as copy:
        stop_threads(stopped)
        try:
            making = threads.submit(mq.admin.create_topic, "late", queues=3)
            making.result(LONG)
            eventually(lambda: "ha.out_of_sync" in master.log)
            assert queues_of(copy, "late") == 0
        finally:
            os.kill(stopped, signal.SIGCONT)
        until_in_sync(master)
        assert queues_of(copy, "late") == 3
