"""Timers, transactions, processes, the broker itself and traces: shown as the commands know them, ended by a form."""

from __future__ import annotations

import re

import pytest

import shmq
from shmq.protocol.system_topics.trace import PUB, SUB_AFTER, SUB_BEFORE, Trace
from shmq.testing import Broker, SharedBroker
from shmq.tools.console.pages.traces import WIDTH, bars_of
from tests.deadline import eventually
from tests.tools.console.conftest import Site


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker) -> str:
    return shmq_shared_broker.named("orders")


def test_a_timer_is_shown_and_taken_back(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    with shmq_shared_broker.connect() as mq:
        mq.send(topic, b"later", delay=7200.5, key="k-1")
    eventually(lambda: topic in site.words("/timers"), "the broker knows of it")
    row = site.page("/timers").partition(f'href="/topics/{topic}"')[2]
    assert "k-1" in row
    path = re.findall(r'href="(/timers/[^"]+/cancel)"', row)[0]
    assert f"It is for {topic}" in site.words(path)
    assert topic in site.words("/timers")  # looking takes nothing back
    assert "The message was taken back." in site.submit(path)
    eventually(lambda: topic not in site.words("/timers"), "it is gone")
    assert "is called" in site.submit(path, 404)


@pytest.mark.parametrize(("end", "said", "count"), [("commit", "committed", 1), ("rollback", "rolled back", 0)])
def test_a_transaction_is_ended_once(
    site: Site, shmq_shared_broker: SharedBroker, topic: str, end: str, said: str, count: int
) -> None:
    with shmq_shared_broker.connect() as mq:
        left = mq.producer(group=shmq_shared_broker.named("shop")).transaction(topic, b"42 apples", key="o-42").id
    row = site.page("/transactions").partition(f">{topic}<")[0]
    path = re.findall(r'href="(/transactions/\w+)"', row)[-1]
    words = site.words(path)
    assert left in words and "o-42" in words and "An open transaction with 1 message" in words
    assert "no member of producer group" in site.submit(path, 409, end="check")
    assert "ends no transaction" in site.submit(path, 400, end="explode")
    assert f"The transaction was {said}." in site.submit(path, end=end)
    with shmq_shared_broker.connect() as mq:
        assert len(mq.browse(topic)) == count
    assert "no open transaction" in site.submit(path, 409, end=end)


def test_processes_are_those_of_the_broker_and_its_clients(
    site: Site, broker: Broker, shmq_shared_broker: SharedBroker, topic: str
) -> None:
    group = shmq_shared_broker.named("billing")
    with shmq_shared_broker.connect(name="tester") as mq, mq.subscribe(topic, group=group):
        mq.send(topic, b"x")
        eventually(lambda: group in site.words("/processes"), "the roster names the group")
        words = site.words("/processes")
        for role, mark in broker.processes.items():
            assert re.search(rf"\b{mark.pid} {role}\b", words), (role, words)
        assert "tester" in words
        assert "keeper" in site.words("/processes", q="keeper", sort="-memory")


def test_the_broker_page_says_what_it_is_made_of(site: Site, broker: Broker) -> None:
    words = site.words("/broker")
    snapshot = site.source.look().snapshot
    assert broker.url in words and str(broker.store) in words and "This broker is a master." in words
    assert snapshot.broker.generation in words
    for segment in snapshot.segments:
        if segment.state == "own":
            assert segment.name in words
    for mark in broker.processes.values():
        assert str(mark.pid) in words


def test_a_trace_is_a_table_and_a_picture(site: Site, shmq_shared_broker: SharedBroker, topic: str) -> None:
    group = shmq_shared_broker.named("billing")
    with shmq.connect(shmq_shared_broker.url, trace=True) as mq:
        receipt = mq.send(topic, b"watched", tag="traced")
        with mq.subscribe(topic, group=group) as subscription:
            for message in subscription.receive(1, wait=60):
                message.ack()
    eventually(lambda: "SubAfter" in site.words("/trace", id=receipt.message_id), "the trace to be stored and indexed")
    page = site.page("/trace", id=receipt.message_id)
    assert page.count('<rect class="good"') == 2 and "Pub" in page and group in page
    assert "No client has traced this message." in site.words("/trace", id="never-traced")
    assert "Clients that trace" in site.words("/trace")


def test_bars_lie_inside_the_picture_whatever_clocks_said() -> None:
    traces = [
        Trace(PUB, "m", time_ms=1000, group="shop", cost_ms=3),
        Trace(SUB_BEFORE, "m", time_ms=500, group="a", request_id="r1"),
        Trace(SUB_AFTER, "m", group="a", request_id="r1", cost_ms=10**9, succeeded=False),
        Trace(SUB_BEFORE, "m", time_ms=1000 + 10**12, group="b", request_id="r2"),
    ]
    bars = bars_of(traces)
    assert [(bar.lane, bar.what, bar.succeeded) for bar in bars] == [
        ("shop", "sent", True),
        ("a", "consumed", False),
        ("b", "received", True),
    ]
    assert all(bar.x > 0 and bar.x + bar.width <= WIDTH for bar in bars)
    assert bars_of([]) == [] and bars_of([Trace(SUB_AFTER, "m", request_id="r")]) == []
