"""What a group's members have in hand, and what waits for them, is what they themselves were given, on every way."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import shmq
from shmq.metrics.report import MetricsReport
from shmq.testing import Broker
from tests.deadline import eventually
from tests.metrics.scraping import Scrape

LAG, INFLIGHT, READY = (f"rocketmq_consumer_{name}_messages" for name in ("lag", "inflight", "ready"))
AGE, READY_AGE = (f"rocketmq_consumer_{name}_latency_milliseconds" for name in ("lag", "queueing"))
TAKER = """
import sys, shmq
with shmq.connect(sys.argv[1]) as mq:
    messages = iter(mq.subscribe(sys.argv[2], group=sys.argv[3]))
    held = [next(messages) for _ in range(5)]
    held[0].ack()
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as running:
        yield running


@pytest.fixture(scope="module")
def scrape(broker: Broker) -> Iterator[Callable[[], Scrape]]:
    report = MetricsReport(broker.place)
    yield lambda: Scrape(report.text())
    report.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    """A topic of one queue with twenty messages."""
    name = "".join(character if character.isalnum() else "-" for character in request.node.name)[-80:]
    with broker.connect() as mq:
        mq.admin.create_topic(name, queues=1)
        for number in range(20):
            mq.send(name, b"%d" % number, tag="even" if number % 2 == 0 else "odd")
    return name


def figures(scrape: Callable[[], Scrape], topic: str, group: str) -> tuple[float, float, float]:
    """Lag, in flight and ready."""
    now = scrape()
    return tuple(now(name, topic=topic, consumer_group=group) for name in (LAG, INFLIGHT, READY))  # type: ignore[return-value]


def test_a_local_member_shows_what_it_holds_while_it_holds_it(
    broker: Broker, scrape: Callable[[], Scrape], topic: str
) -> None:
    with broker.connect() as mq:
        consumer = mq.subscribe(topic, group="local")
        messages = iter(consumer)
        held = [next(messages) for _ in range(10)]
        for message in held[:7]:
            message.ack()
        assert figures(scrape, topic, "local") == (13, 3, 10)
        held[8].ack()  # behind one that is not acknowledged: committed stays
        assert figures(scrape, topic, "local") == (13, 3, 10)
        held[7].ack()
        assert figures(scrape, topic, "local") == (11, 1, 10)
        assert 0 <= scrape()(READY_AGE, topic=topic) <= scrape()(AGE, topic=topic) < 600_000
        batch = consumer.receive(max=100)
        assert figures(scrape, topic, "local") == (11, 11, 0)
        assert scrape()(READY_AGE, topic=topic) == 0
        for message in (held[9], *batch):
            message.ack()
        assert figures(scrape, topic, "local") == (0, 0, 0)


def test_what_a_filter_passed_over_is_in_flight_as_long_as_what_came_behind_it(
    broker: Broker, scrape: Callable[[], Scrape], topic: str
) -> None:
    with broker.connect() as mq:
        messages = iter(mq.subscribe(topic, group="filtering", tags="odd"))
        first = next(messages)
        assert (first.offset, figures(scrape, topic, "filtering")) == (1, (20, 2, 18))
        first.ack()
        assert figures(scrape, topic, "filtering") == (18, 0, 18)


def test_a_member_that_was_killed_or_left_holds_nothing(
    broker: Broker, scrape: Callable[[], Scrape], topic: str
) -> None:
    command = [sys.executable, "-c", TAKER, broker.url, topic, "killed"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"holds\n"
        assert figures(scrape, topic, "killed") == (19, 4, 15)
        process.send_signal(signal.SIGKILL)
    eventually(lambda: figures(scrape, topic, "killed") == (19, 0, 19), "what it held waits")
    with shmq.connect(f"rocketmq://{broker.name_server}") as remote:  # a member elsewhere goes on for it
        assert next(iter(remote.subscribe(topic, group="killed"))).offset == 1
        eventually(lambda: figures(scrape, topic, "killed")[1] > 0, "and that is shown")


@pytest.mark.slow
def test_a_member_over_tcp_holds_what_it_pulled_until_it_commits_or_leaves(
    broker: Broker, scrape: Callable[[], Scrape], topic: str
) -> None:
    with shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        consumer = remote.subscribe(topic, group="far")
        messages = iter(consumer)
        held = [next(messages) for _ in range(10)]
        for message in held[:7]:
            message.ack()
        # Its window took all twenty; what is acknowledged is committed within five seconds.
        eventually(lambda: figures(scrape, topic, "far") == (13, 13, 0), "it holds what it has not committed")
    eventually(lambda: figures(scrape, topic, "far") == (13, 0, 13), "and nothing when it has left")


def test_what_is_popped_is_in_flight_until_it_is_settled(
    broker: Broker, scrape: Callable[[], Scrape], topic: str
) -> None:
    with shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        consumer = remote.simple_consumer(topic, group="popping", invisible=600)
        held = eventually(lambda: consumer.receive(max=8, wait=1.0), "some come")
        waiting = 20 - len(held)
        eventually(lambda: figures(scrape, topic, "popping") == (20, len(held), waiting), "they are out")
        for message in held[1:]:
            message.ack()
        eventually(lambda: figures(scrape, topic, "popping") == (waiting + 1, 1, waiting), "one is out still")
        held[0].ack()
        eventually(lambda: figures(scrape, topic, "popping") == (waiting, 0, waiting), "all are settled")
