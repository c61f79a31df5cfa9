"""What the metrics say is what mqadmin says of the same traffic; names, labels and numbers are a stock exporter's."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import shmq
from shmq.metrics.family import COUNTER
from shmq.metrics.report import MetricsReport
from shmq.metrics.rocketmq_families import ROCKETMQ
from shmq.testing import Broker
from tests.deadline import eventually
from tests.interop.peers.cache import PeerMissing
from tests.interop.peers.stock import StockBroker
from tests.interop.target import missing
from tests.ports import free_ports

Mqadmin = Callable[..., str]

GROUP = "billing"
SENT, ACKNOWLEDGED = 20, 7
PROGRESS = tuple(f"rocketmq_consumer_{name}_messages" for name in ("lag", "inflight", "ready"))
# What a stock broker exports only while there are timed messages, dead letters or several disks.
NOT_SEEN = {"rocketmq_timing_messages", "rocketmq_timer_dequeue", "rocketmq_send_to_dlq_messages"}
# Labels that differ: a transaction's topic is not known to who only counts its end; of what was read we say more.
OTHER_LABELS = {
    "rocketmq_half_messages": {"topic"},
    "rocketmq_commit_messages": {"topic"},
    "rocketmq_rollback_messages": {"topic"},
    "rocketmq_messages_out": {"is_retry"},
    "rocketmq_throughput_out": {"is_retry"},
}
_SAMPLE = re.compile(r"^([a-z_]+)\{(.*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'([a-z_]+)="([^"]*)"')


class Sample(NamedTuple):
    """One line of a scrape."""

    name: str
    labels: dict[str, str]
    value: float


class Metrics(list[Sample]):
    """One scrape; a stock broker's text is not strict enough for the official parser."""

    def __init__(self, text: str) -> None:
        super().__init__(
            Sample(name, dict(_LABEL.findall(labels)), float(n)) for name, labels, n in _SAMPLE.findall(text)
        )

    def value(self, name: str, **labels: str) -> float:
        return sum(each.value for each in self if each.name == name and labels.items() <= each.labels.items())

    def labels(self, name: str) -> set[str]:
        return {label for each in self if each.name == name for label in each.labels}


def work(name_server: str) -> tuple[shmq.Connection, Iterator[shmq.Message]]:
    """Store twenty messages, take all, acknowledge seven, and end two transactions; the member stays."""
    mq = shmq.connect(f"rocketmq://{name_server}", timeout=60)
    mq.admin.create_topic("orders", queues=1)
    mq.admin.create_topic("paid", queues=1)
    for number in range(SENT):
        mq.send("orders", b"x" * (number + 1))
    messages = iter(mq.subscribe("orders", group=GROUP))
    for _, message in zip(range(ACKNOWLEDGED), messages, strict=False):
        message.ack()
    with mq.producer(group="shop") as producer:
        producer.transaction("paid", b"yes").commit()
        producer.transaction("paid", b"no").rollback()
    return mq, messages


@pytest.fixture(scope="module")
def stock() -> Iterator[Metrics]:
    """What a stock broker of 5.3.3 exports after that work."""
    port = free_ports()
    prom = {"metricsExporterType": "PROM", "metricsPromExporterHost": "127.0.0.1", "metricsPromExporterPort": port}
    try:
        broker = StockBroker("5", settings=prom)
    except PeerMissing as reason:
        missing(reason)
    with broker:
        mq, messages = work(broker.name_server)
        with mq:
            yield eventually(lambda: _settled(_scraped(port)), "the stock broker's figures settle")
            del messages


def _scraped(port: int) -> Metrics:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return Metrics(answer.read().decode())


def _settled(now: Metrics) -> Metrics | None:
    """The scrape, once the member's window is full and its offset was committed."""
    left = SENT - ACKNOWLEDGED
    is_done = [now.value(name, consumer_group=GROUP, topic="orders") for name in PROGRESS] == [left, left, 0]
    return now if is_done and now.value("rocketmq_rollback_messages_total") else None


def test_names_kinds_and_labels_are_those_of_a_stock_exporter(stock: Metrics) -> None:
    exported = {each.name for each in stock}
    unseen = set()
    for family in ROCKETMQ:
        name = f"{family.name}_count" if family.kind == "histogram" else family.sample
        if name not in exported:
            unseen.add(family.name)
            continue
        theirs = stock.labels(name) - {"otel_scope_name", "cluster", "node_type", "node_id"}
        assert theirs ^ set(family.labels) == OTHER_LABELS.get(family.name, set()), family.name
    assert unseen <= NOT_SEEN
    sizes = next(family for family in ROCKETMQ if family.name == "rocketmq_message_size")
    theirs = {each.labels["le"] for each in stock if each.name == "rocketmq_message_size_bucket"}
    assert theirs == {f"{bound:.1f}" for bound in sizes.bounds} | {"+Inf"}
    assert {"cluster", "node_type", "node_id"} <= stock.labels("rocketmq_topic_number")
    assert all(name.endswith("_total") for name in exported if name.removesuffix("_total") in _counters())


def _counters() -> set[str]:
    return {family.name for family in ROCKETMQ if family.kind == COUNTER}


def test_the_same_work_has_the_same_numbers_as_on_a_stock_broker(stock: Metrics) -> None:
    with Broker(tcp=True) as broker:
        report = MetricsReport(broker.place)
        mq, messages = work(broker.name_server)
        with mq:
            ours = eventually(lambda: _settled(Metrics(report.text())), "our figures settle")
            eventually(
                lambda: Metrics(report.text()).value("rocketmq_message_size_count", topic="orders") == SENT,
                "the keeper has counted the sizes",
            )
            ours = Metrics(report.text())
            del messages
        report.close()
    orders = {"topic": "orders"}
    for name in (
        "rocketmq_messages_in_total",
        "rocketmq_message_size_count",
        *PROGRESS,
        "rocketmq_consumer_queueing_latency_milliseconds",
    ):
        assert ours.value(name, **orders) == stock.value(name, **orders), name
    assert ours.value("rocketmq_messages_in_total", **orders) == SENT
    for name in ("rocketmq_commit_messages_total", "rocketmq_rollback_messages_total", "rocketmq_half_messages"):
        assert ours.value(name) == stock.value(name), name
    assert ours.value("rocketmq_consumer_connections", consumer_group=GROUP) == 1
    # A record says more of itself here, so sizes differ; each is the sum of what was stored.
    for each in (ours, stock):
        stored = each.value("rocketmq_message_size_sum", **orders)
        assert stored == each.value("rocketmq_throughput_in_total", **orders) > 0


def table(text: str) -> list[list[str]]:
    """The table mqadmin prints, without headings."""
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("version", ["4", "5"])
def test_the_metrics_are_what_mqadmin_says(mqadmin: Mqadmin, version: str) -> None:
    with Broker(tcp=True) as broker, broker.connect() as mq:
        report = MetricsReport(broker.place)
        mq.admin.create_topic("orders", queues=4)
        mq.admin.create_topic("paid", queues=1)
        with mq.producer() as producer:
            for number in range(12):
                producer.send("orders", b"x" * 100, queue_id=number % 4)
        messages = mq.subscribe("orders", group=GROUP)
        for _, message in zip(range(5), messages, strict=False):
            message.ack()

        def settled() -> Metrics | None:
            now = Metrics(report.text())
            is_read = now.value("rocketmq_messages_out_total", consumer_group=GROUP) == 5
            return now if is_read and now.value("rocketmq_storage_flush_behind_bytes") == 0 else None

        now = eventually(settled, "the work is counted and flushed")

        def asked(*words: str) -> str:
            return mqadmin(version, *words, "-n", broker.name_server)

        status = {row[0]: row[2] for row in table(asked("brokerStatus", "-b", broker.broker_address)) if len(row) > 2}
        assert now.value("shmq_appended_messages_total") == int(status["putMessageTimesTotal"])
        assert now.value("shmq_appended_bytes_total") == int(status["putMessageSizeTotal"])
        assert now.value("shmq_log_end_bytes") == int(status["commitLogMaxOffset"])
        assert now.value("shmq_log_begin_bytes") == int(status["commitLogMinOffset"])
        assert status["remainHowManyDataToFlush"] == "0"

        queues = [row for row in table(asked("topicStatus", "-t", "orders")) if row[0] != "Topic"]
        stored = sum(int(row[3]) - int(row[2]) for row in queues)
        assert now.value("rocketmq_messages_in_total", topic="orders") == stored == 12

        [total] = re.findall(r"Diff Total: (\d+)", asked("consumerProgress", "-g", GROUP))
        lag, in_flight, ready = (now.value(name, topic="orders", consumer_group=GROUP) for name in PROGRESS)
        assert lag == int(total) == in_flight + ready == 7

        def traffic() -> list[str] | None:
            """mqadmin's row of the group, once its sums, taken each ten seconds, say twelve stored and five read."""
            rows = [row for row in table(asked("statsAll", "-t", "orders")) if row[:2] == ["orders", GROUP]]
            return rows[0] if rows and rows[0][-2:] == ["12", "5"] else None

        assert int(eventually(traffic, "statsAll says what was stored and read", pause=0.5)[2]) == lag
        assert now.value("rocketmq_messages_out_total", topic="orders", consumer_group=GROUP) == 5
        report.close()
