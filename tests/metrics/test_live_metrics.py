"""Every number of a live broker's metrics is what another source says, and totals outlive the processes that count."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shmq
from shmq.metrics.catalogue import FAMILIES
from shmq.metrics.report import MetricsReport
from shmq.shm.instance import read_instance
from shmq.testing import Broker
from tests.deadline import DEADLINE_SECONDS, eventually
from tests.metrics.scraping import Scrape
from tests.tools.shell import Shell


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


@pytest.fixture(scope="module")
def scrape(broker: Broker) -> Iterator[Callable[[], Scrape]]:
    report = MetricsReport(broker.place)
    yield lambda: Scrape(report.text())
    report.close()


@pytest.fixture(scope="module")
def worked(broker: Broker, scrape: Callable[[], Scrape]) -> Scrape:
    """A scrape after some work: 20 stored, 7 of them acknowledged by billing, 3 more sent over TCP."""
    with broker.connect() as mq, shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        for number in range(20):
            mq.send("orders", b"x" * number)
        for _ in range(3):
            remote.send("orders", b"from afar")
        consumer = mq.subscribe("orders", group="billing")
        for count, message in enumerate(consumer, 1):
            message.ack()
            if count == 7:
                break
        eventually(lambda: scrape()("rocketmq_messages_out_total", consumer_group="billing") == 7, "7 were read")
        return eventually(
            lambda: found if (found := scrape())("rocketmq_storage_flush_behind_bytes") == 0 else None, "it is flushed"
        )


def test_everything_that_is_said_is_in_the_catalogue_with_its_labels(worked: Scrape) -> None:
    assert worked.families.keys() <= FAMILIES.keys()
    for name, family in worked.families.items():
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == {"cluster", "node_type", "node_id", *FAMILIES[name].labels}, name
            assert sample.labels["node_type"] == "broker" and sample.labels["cluster"] == "DefaultCluster"


def test_a_topic_counts_what_the_command_shows(worked: Scrape, broker: Broker) -> None:
    shell = Shell(broker.url)
    [row] = [row for row in shell.json("topic-list", "topic", "list")["topics"] if row["topic"] == "orders"]
    assert worked("rocketmq_messages_in_total", topic="orders") == row["messages"] == 23
    assert worked("rocketmq_throughput_in_total", topic="orders") == row["size_bytes"]
    everything = shell.json("topic-list", "topic", "list", "--all")["topics"]
    assert worked("rocketmq_topic_number") == len(everything)
    assert worked("shmq_queues") == sum(row["queues"] for row in everything)


def test_a_group_lags_as_the_command_shows(worked: Scrape, broker: Broker) -> None:
    shown = Shell(broker.url).json("group-show", "group", "show", "billing")
    labels = {"consumer_group": "billing", "topic": "orders"}
    assert worked("rocketmq_consumer_lag_messages", **labels) == shown["lag"] == 16
    assert 0 < worked("rocketmq_consumer_lag_latency_milliseconds", **labels) < 600_000


def test_the_log_is_where_the_broker_tells_mqadmin(worked: Scrape, broker: Broker) -> None:
    with shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        [told] = remote.admin.status().values()
    assert worked("shmq_appended_messages_total") == int(told["putMessageTimesTotal"])
    assert worked("shmq_appended_bytes_total") == int(told["putMessageSizeTotal"])
    assert worked("shmq_log_end_bytes") == int(told["commitLogMaxOffset"])
    assert worked("shmq_log_begin_bytes") == int(told["commitLogMinOffset"])
    assert f"{worked('rocketmq_storage_flush_behind_bytes'):.0f} B" == told["remainHowManyDataToFlush"]


def test_processes_are_those_of_proc(worked: Scrape, broker: Broker) -> None:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    for role, mark in instance.processes.items():
        assert worked("shmq_process_up", role=role) == 1
        pages = int(Path(f"/proc/{mark.pid}/statm").read_text().split()[1])
        resident = worked("shmq_process_resident_memory_bytes", role=role)
        assert resident == pytest.approx(pages * os.sysconf("SC_PAGESIZE"), rel=0.2)
    assert worked("shmq_attached_processes") >= len(instance.processes)


def test_memory_and_disk_are_those_of_the_file_systems(worked: Scrape, broker: Broker) -> None:
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    for part, name in zip(("control", "units", "readers"), instance.segments, strict=True):
        status = os.stat(f"/dev/shm{name}")
        assert worked("shmq_segment_bytes", segment=part, state="size") == status.st_size
        assert worked("shmq_segment_bytes", segment=part, state="used") == status.st_blocks * 512
    room = os.statvfs(instance.store_path)
    assert worked("rocketmq_storage_size_bytes") == worked("shmq_disk_bytes", state="used")
    assert worked("shmq_disk_bytes", state="free") == pytest.approx(room.f_bavail * room.f_frsize, rel=0.1)


def test_requests_are_counted_once_each_on_both_transports(worked: Scrape) -> None:
    assert worked("rocketmq_rpc_latency_milliseconds_count", request_code="send_message_v2") == 3
    assert worked("shmq_request_latency_seconds_count", **{"class": "send"}) == 3
    assert worked("rocketmq_rpc_latency_milliseconds_count", request_code="attach", protocol_type="local") >= 1
    assert worked("shmq_flush_latency_seconds_count") >= 1 and worked("shmq_dispatch_latency_seconds_count") >= 1


def test_sizes_are_those_of_the_records_in_rocketmq_s_classes(broker: Broker, scrape: Callable[[], Scrape]) -> None:
    found: list[int] = []
    with broker.connect() as mq, mq.pull_consumer("sized") as consumer:
        for body in (10, 1000, 3000, 5000, 600_000, 1_500_000):
            mq.send("sized", b"x" * body)
        eventually(lambda: found.extend(each.record_bytes for each in consumer.poll(9)) or len(found) == 6, "all come")
    eventually(lambda: scrape()("rocketmq_message_size_count", topic="sized") == 6, "all units are in files")
    now = scrape()
    assert now("rocketmq_message_size_sum", topic="sized") == sum(found)
    assert now("rocketmq_message_size_sum", topic="sized") == now("rocketmq_throughput_in_total", topic="sized")
    for bound in (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20):
        below = sum(size <= bound for size in found)
        assert now("rocketmq_message_size_bucket", topic="sized", le=f"{bound:.1f}") == below, bound
    assert now("rocketmq_message_size_bucket", topic="sized", le="+Inf") == 6


def test_a_held_pull_is_shown_while_it_waits_and_counted_as_long_polling(
    broker: Broker, scrape: Callable[[], Scrape]
) -> None:
    def count() -> float:
        return scrape()("rocketmq_rpc_latency_milliseconds_count", is_long_polling="true")

    before = count()
    with shmq.connect(f"rocketmq://{broker.name_server}") as remote, broker.connect() as mq:
        mq.admin.create_topic("awaited", queues=1)
        received: list[bytes] = []
        reading = threading.Thread(
            target=lambda: received.append(next(iter(remote.subscribe("awaited", group="g"))).body)
        )
        reading.start()
        eventually(lambda: scrape()("shmq_held_pulls") >= 1, "the pull is held")
        assert scrape()("rocketmq_consumer_connections", consumer_group="g", protocol_type="remoting") == 1
        mq.send("awaited", b"now")
        reading.join(DEADLINE_SECONDS)
        assert received == [b"now"]
        eventually(lambda: count() > before, "the pull is counted: the bridge does so after it has answered")


def test_transactions_timers_and_dead_letters_are_counted(broker: Broker, scrape: Callable[[], Scrape]) -> None:
    shell = Shell(broker.url)
    with broker.connect() as mq:
        mq.send("late", b"later", delay=600)
        eventually(lambda: scrape()("rocketmq_timing_messages") == 1, "one waits")
        assert len(shell.json("timer-list", "timer", "list")["timers"]) == 1
        mq.send("deadly", b"poison")

        @mq.listener("deadly", group="dying")
        def on_poison(message: shmq.Message) -> None:
            raise shmq.Reject("poison")

        mq.start()
        eventually(lambda: scrape()("rocketmq_send_to_dlq_messages_total", consumer_group="dying") == 1, "buried")
        eventually(lambda: scrape()("shmq_redeliveries_total", consumer_group="dying") == 1, "and given back")
        [letters] = [row for row in shell.json("dlq-list", "dlq", "list")["groups"] if row["group"] == "dying"]
        assert letters["messages"] == 1


def test_totals_outlive_the_bridge_and_a_dead_bridge_is_said_to_be_down(
    worked: Scrape, broker: Broker, scrape: Callable[[], Scrape]
) -> None:
    before = scrape()
    instance = read_instance(broker.place.instance_path)
    assert instance is not None
    os.kill(instance.processes["bridge"].pid, signal.SIGKILL)

    def came_back() -> Scrape | None:
        now = read_instance(broker.place.instance_path)
        fresh = now is not None and now.processes.get("bridge") not in (None, instance.processes["bridge"])
        return scrape() if fresh and broker.place.socket_path.exists() else None

    after = eventually(came_back, "the bridge is started again")
    for name in (
        "rocketmq_messages_out_total",
        "shmq_request_latency_seconds_count",
        "shmq_flush_latency_seconds_count",
    ):
        assert after(name) >= before(name), name
    assert before("rocketmq_messages_out_total") > 0 and before("shmq_request_latency_seconds_count") > 0


def test_a_stopped_broker_has_no_metrics() -> None:
    with Broker() as short:
        report = MetricsReport(short.place)
        assert "shmq_process_up{" in report.text()
    with pytest.raises(shmq.errors.BrokerNotRunning):
        report.text()
    report.close()


def test_a_topic_that_is_deleted_takes_its_counters_along(broker: Broker, scrape: Callable[[], Scrape]) -> None:
    with broker.connect() as mq:
        mq.send("shortlived", b"x")
        assert scrape()("rocketmq_messages_in_total", topic="shortlived") == 1
        mq.admin.delete_topic("shortlived")
        assert not [
            each
            for family in scrape().families.values()
            for each in family.samples
            if each.labels.get("topic") == "shortlived"
        ]


def test_health_says_the_same_and_its_verdicts_as_one_text(broker: Broker, scrape: Callable[[], Scrape]) -> None:
    result = Shell(broker.url).run("health", "--format", "prometheus")
    said = Scrape(result.out.decode())
    assert said("shmq_health_status", check="all") == result.status
    assert said.families.keys() >= scrape().families.keys() - {"rocketmq_consumer_lag_latency_milliseconds"}
    assert said("rocketmq_topic_number") == scrape()("rocketmq_topic_number")
