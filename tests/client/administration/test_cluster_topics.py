"""A topic that exists is made on a broker that joined the cluster later, and on no other anew."""

import json
from collections.abc import Iterator

import pytest

import shmq
from shmq.testing import Broker
from tests.deadline import eventually
from tests.nameserver.live_nameserver import name_server
from tests.tools.shell import Shell


@pytest.fixture(scope="module")
def cluster() -> Iterator[shmq.Connection]:
    """Two brokers, of which the later one lacks the topics "orders" and "paid"."""
    with (
        name_server() as names,
        Broker(tcp=True, nameservers=names.address),
        shmq.connect(f"rocketmq://{names.address}") as mq,
    ):
        mq.admin.create_topic("orders", queues=2, kind="fifo")
        mq.admin.create_topic("paid", queues=3)
        with Broker(tcp=True, nameservers=names.address):
            eventually(lambda: len(mq.admin.status()) == 2, "both brokers to be registered")
            yield mq


@pytest.mark.slow
def test_create_topic_makes_it_where_it_lacks(cluster: shmq.Connection) -> None:
    with pytest.raises(shmq.TopicExists):
        cluster.admin.create_topic("orders", queues=1)
    assert len(cluster.admin.topics["orders"].queues) == 2
    for words in ({}, {"queues": 2}):
        info = cluster.admin.create_topic("orders", **words)
        assert (info.kind, info.write_queues, len(info.queues)) == ("fifo", 4, 4)


@pytest.mark.slow
def test_so_does_the_command(cluster: shmq.Connection) -> None:
    shell = Shell(cluster.url)
    steps = (("--dry-run",), False, 3), ((), True, 6), ((), False, 6), (("--queues", "3"), False, 6)
    for words, changed, queues in steps:
        result = shell.run("topic", "create", "paid", *words, "--json")
        assert (result.status, json.loads(result.out)["changed"]) == (0, changed), result
        assert len(cluster.admin.topics["paid"].queues) == queues
