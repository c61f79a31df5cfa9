"""Consumers that are far behind read from a slave where both brokers allow it; their offsets stay the master's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shmq
from shmq.metrics.report import MetricsReport
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, eventually
from tests.ha.pair import assert_equal, pulled, slave_of
from tests.nameserver.live_nameserver import LiveNameServer, name_server

COUNT, BODY = 4000, bytes(1000)
HANDLED = 1500  # a client holds a thousand more
FAR_BYTES = 50_000

Pair = tuple[Broker, Broker, LiveNameServer]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    where = {"slave_reads_bytes": FAR_BYTES}
    with (
        name_server() as names,
        Broker(tcp=True, ha_listen="127.0.0.1:0", default_queues=1, nameservers=names.address, **where) as master,
        slave_of(master, nameservers=names.address, **where) as slave,
    ):
        with master.connect() as mq:
            producer = mq.producer()
            for _ in range(COUNT // 100):
                producer.send_batch("orders", [BODY] * 100)
        assert_equal(master, slave)
        both = {master.name: {"0": master.broker_address, "1": slave.broker_address}}
        eventually(lambda: names.brokers_of("orders") == both, lambda: str(names.brokers_of("orders")))
        yield master, slave, names


def test_master_and_slave_send_who_is_far_behind_to_the_slave_and_back(pair: Pair) -> None:
    for broker in pair[:2]:
        asked = {offset: pulled(broker, offset) for offset in (0, COUNT // 2, COUNT - 8)}
        assert {offset: answer.ext["suggestWhichBrokerId"] for offset, answer in asked.items()} == {
            0: "1",
            COUNT // 2: "1",
            COUNT - 8: "0",
        }
        assert all(answer.body for answer in asked.values())


def test_what_a_group_reads_from_the_slave_it_commits_at_the_master(pair: Pair) -> None:
    master, slave, names = pair
    before = served(slave)
    with (
        shmq.connect(f"rocketmq://{names.address}", timeout=DEADLINE_SECONDS) as mq,
        mq.subscribe("orders", group="late", start="earliest") as subscription,
    ):
        read = 0
        while read < HANDLED:
            for message in subscription.receive(HANDLED - read, 30.0):
                message.ack()
                read += 1
        assert served(slave) > before, "nothing was read from the slave"
        with master.connect() as there:  # the rest is being read from the slave meanwhile

            def offsets() -> list[int]:
                return [lag.committed for lag in there.admin.groups["late"].offsets if lag.topic == "orders"]

            eventually(lambda: offsets() == [HANDLED], lambda: str(offsets()))


def served(broker: Broker) -> int:
    """How many pulls a broker has answered."""
    report = MetricsReport(broker.place)
    try:
        words = report.samples().histograms["shmq_request_latency_seconds"]
        return sum(sum(counts[:-1]) for labels, counts in words.items() if "pull" in labels)
    finally:
        report.close()
