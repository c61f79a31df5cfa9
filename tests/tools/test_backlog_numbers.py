"""Every tool gives the same number for a group's lag, in every state of `backlog_states`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import shmq
from shmq.metrics.report import MetricsReport
from shmq.testing import Broker
from tests.metrics.scraping import Scrape
from tests.tools.backlog_states import States
from tests.tools.shell import Inside, until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


@pytest.fixture(scope="module")
def states(broker: Broker) -> Iterator[States]:
    made = States(broker)
    yield made
    made.close()


@pytest.fixture
def wanted(states: States) -> dict[str, int]:
    return {state.group: state.lag for state in states.all}


@pytest.fixture
def shell(broker: Broker, capfdbinary: pytest.CaptureFixture[bytes]) -> Inside:
    return Inside(broker.url, capfdbinary)


def test_the_commands_agree(shell: Inside, broker: Broker, wanted: dict[str, int]) -> None:
    remote = f"rocketmq://{broker.name_server}"
    listed = shell.json("group-list", "group", "list")["groups"]
    elsewhere = shell.json("group-list", "group", "list", "-u", remote)["groups"]
    health = shell.json("health", "health", status=shell.run("health", "--json").status)["groups"]
    top = shell.json("top", "top", "-n", "1", "-a")["groups"]
    shown = {name: shell.json("group-show", "group", "show", name) for name in wanted}
    topics = {name: shell.json("topic-show", "topic", "show", name)["groups"] for name in wanted}
    offsets = {name: shell.json("offset-show", "offset", "show", name)["queues"] for name in wanted}
    assert {row["group"]: row["lag"] for row in listed if row["group"] in wanted} == wanted
    assert {row["group"]: row["lag"] for row in elsewhere if row["group"] in wanted} == wanted
    assert {row["name"]: row["lag"] for row in health if row["name"] in wanted} == wanted
    assert {row["name"]: row["lag"] for row in top if row["name"] in wanted} == wanted
    assert {name: document["lag"] for name, document in shown.items()} == wanted
    assert {name: sum(row["lag"] for row in document["queues"]) for name, document in shown.items()} == wanted
    assert {name: sum(row["lag"] for row in rows) for name, rows in topics.items()} == wanted
    assert {name: sum(row["lag"] for row in rows) for name, rows in offsets.items()} == wanted


def test_the_library_agrees_on_both_ways(broker: Broker, states: States, wanted: dict[str, int]) -> None:
    in_flight = {state.group: state.popped for state in states.all}
    for url in (broker.url, f"rocketmq://{broker.name_server}"):
        with shmq.connect(url) as mq:
            found = {name: mq.admin.groups[name].lag for name in wanted}
        assert {name: lag.total for name, lag in found.items()} == wanted, url
        assert {name: sum(row.in_flight for row in lag.offsets) for name, lag in found.items()} == in_flight, url


def test_lag_is_what_is_ready_and_what_is_in_flight(broker: Broker, states: States, wanted: dict[str, int]) -> None:
    report = MetricsReport(broker.place)

    def figures() -> dict[str, tuple[float, ...]]:
        scrape, names = Scrape(report.text()), ("lag", "inflight", "ready")
        return {
            group: tuple(scrape(f"rocketmq_consumer_{name}_messages", consumer_group=group) for name in names)
            for group in wanted
        }

    said = {state.group: (state.lag, state.popped, state.waiting) for state in states.all}
    until(lambda: figures()["popped"] == said["popped"], "the acknowledgements to be counted")
    assert figures() == said
    report.close()


@pytest.mark.peer
def test_spark_agrees(broker: Broker, states: States, wanted: dict[str, int]) -> None:
    pytest.importorskip("pyspark")
    from tests.spark.access.test_access import batches

    def lags(**options: str) -> dict[str, int]:
        found = dict.fromkeys(wanted, 0)
        for row in batches({"store": broker.url, "view": "groups", **options}).to_pylist():
            if row["consumer_group"] in found:
                found[row["consumer_group"]] += row["lag"]
        return found

    assert lags(access="shm") == wanted
    for state in states.all:
        if not state.popped and state.group != "never":  # over TCP Spark gets a group's offsets only
            rows = lags(access="remote", group=state.group, topic=state.group)
            assert rows[state.group] == state.lag, state
