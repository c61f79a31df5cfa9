"""Consumers when their broker makes its segments anew: each goes on where it was, whatever became of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
from shmq.client.wire_shm.wire import ShmQueues
from shmq.errors import (
    BrokerNotRunning,
    ConsumeError,
    PermissionDenied,
    RemoteError,
    RequestTimeout,
    ShmqError,
    SubscriptionConflict,
)
from shmq.testing import Broker
from tests.interruption import by_another_thread

Eventually = Callable[..., Any]


@pytest.fixture(scope="module", params=[False, True], ids=["no-auto-create", "auto-create"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker(default_queues=1, auto_create=request.param) as made:
        yield made


@pytest.fixture
def mq(broker: Broker) -> Iterator[shmq.Connection]:
    with broker.connect() as connection:
        yield connection
        for topic in ("gone", "orders"):
            if topic in connection.admin.topics:
                connection.admin.delete_topic(topic)


def renew(mq: shmq.Connection) -> None:
    """Let every consumer open anew, as for the next generation of segments."""
    mq._membership.reattach(is_new=True)


def bodies(messages: list[shmq.Message]) -> list[bytes]:
    return [bytes(message.body) for message in messages]


def test_a_consumer_whose_topic_is_gone_holds_up_none_that_joined_after_it(
    broker: Broker, mq: shmq.Connection, eventually: Eventually
) -> None:
    for topic in ("gone", "orders"):
        mq.admin.create_topic(topic, queues=1)
    first, *others = [mq.subscribe(topic, group=topic) for topic in ("gone", "orders")]
    others.append(mq.subscribe("gone", model="broadcasting", start="first"))
    others.append(mq.subscribe("orders", model="broadcasting", start="first"))
    mq.admin.delete_topic("gone")
    before = [consumer._reader for consumer in (first, *others)]
    broker.restart()
    eventually(lambda: all(each._reader not in (None, *before) for each in (first, *others)))
    assert "gone" not in mq.admin.topics, "opening anew makes no topic"
    eventually(lambda: others[0].queues and others[2].queues)
    mq.send("orders", b"after it")
    assert [bodies(others[index].receive(4, wait=60)) for index in (0, 2)] == [[b"after it"]] * 2
    mq.admin.create_topic("gone", queues=1)
    mq._membership.rebalance(None)
    eventually(lambda: first.queues and others[1].queues)
    mq.send("gone", b"made again")
    assert [bodies(each.receive(4, wait=60)) for each in (first, others[1])] == [[b"made again"]] * 2


@pytest.mark.parametrize("refusal", [SubscriptionConflict("it has other tags"), PermissionDenied("not for you")])
def test_a_refused_registration_holds_up_no_consumer_and_is_made_again(
    mq: shmq.Connection,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    refusal: ShmqError,
) -> None:
    mq.admin.create_topic("orders", queues=1)
    consumer = mq.subscribe("orders", group="billing")
    before, members = consumer._reader, mq._live().members

    def refused(*_: object) -> None:
        raise refusal

    with monkeypatch.context() as patched:
        patched.setattr(members, "register", refused)
        renew(mq)
        eventually(lambda: consumer._reader not in (None, before) and consumer.queues)
        shared: list[object] = []
        patched.setattr(consumer, "_rebalance", lambda: shared.append(consumer))
        mq._membership.rebalance(None, register=True)
        assert shared and f"refuse the groups of this connection, and are asked again: {refusal}" in caplog.text
    asked = []
    monkeypatch.setattr(members, "register", lambda *given: asked.append(given))
    mq._membership._run_periodic()
    assert asked, "it is asked for again"


@pytest.mark.parametrize(
    "refusal", [ConsumeError("not now"), PermissionDenied("not for you"), BrokerNotRunning("not listed yet")]
)
def test_one_consumer_that_cannot_share_its_queues_holds_up_no_other(
    mq: shmq.Connection,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
    refusal: ShmqError,
) -> None:
    mq.admin.create_topic("orders", queues=1)
    first, second = [mq.subscribe("orders", group=group) for group in ("broken", "billing")]
    before, members = second._reader, mq._live().members
    ask = members.assignment

    def assignment(spec: Any) -> Any:
        if spec.group == "broken":
            raise refusal
        return ask(spec)

    with monkeypatch.context() as patched:
        patched.setattr(members, "assignment", assignment)
        renew(mq)
        eventually(lambda: second._reader not in (None, before) and second.queues)
        is_said = 'the consumer of topic "orders", group "broken" tries again later' in caplog.text
        assert is_said is not isinstance(refusal, BrokerNotRunning)
        shared: list[object] = []
        patched.setattr(second, "_rebalance", lambda: shared.append("shared"))
        patched.setattr(second, "_retake", lambda: shared.append("taken again"))
        mq._membership.reattach(is_new=False)
        assert shared == ["taken again", "shared"]
        patched.setattr(first, "_retake", lambda: assignment(first._spec))
        mq._membership.reattach(is_new=False)
        assert shared == ["taken again", "shared"] * 2
    mq._membership.rebalance(None)
    eventually(lambda: first.queues)


def test_a_broker_that_is_silent_costs_a_round_one_wait_and_comes_last_in_the_next(
    mq: shmq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.admin.create_topic("orders", queues=1)
    first, second = [mq.subscribe("orders", group=group) for group in ("silent", "billing")]
    shared: list[str] = []

    def is_silent() -> None:
        shared.append("silent")
        raise RequestTimeout("no answer")

    monkeypatch.setattr(first, "_rebalance", is_silent)
    monkeypatch.setattr(second, "_rebalance", lambda: shared.append("billing"))
    for expected in (["silent"], ["billing", "silent"], ["billing", "silent"]):
        shared.clear()
        mq._membership.rebalance(None)
        assert shared == expected
    monkeypatch.setattr(first, "_rebalance", lambda: shared.append("silent"))
    for expected in (["billing", "silent"], ["silent", "billing"]):
        shared.clear()
        mq._membership.rebalance(None)
        assert shared == expected


def test_a_leader_that_refuses_to_be_asked_leaves_no_consumer_in_the_segments_of_before(
    broker: Broker, mq: shmq.Connection, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    mq.admin.create_topic("orders", queues=1)
    consumer = mq.subscribe("orders", group="billing")
    before, members = consumer._reader, mq._live().members
    ask, asked = members.renew, list[object]()  # type: ignore[attr-defined]

    def refused() -> Any:
        asked.append(members)
        if len(asked) == 1:
            raise RemoteError(1, "not now")
        return ask()

    monkeypatch.setattr(members, "renew", refused)
    broker.restart()
    eventually(lambda: asked and consumer._reader not in (None, before) and consumer.queues)
    mq.send("orders", b"after it")
    assert bodies(consumer.receive(1, wait=60)) == [b"after it"]


@pytest.mark.parametrize("is_of_group", [False, True])
@pytest.mark.parametrize("start", ["last", "first"])
def test_a_broadcasting_member_goes_on_where_it_was(
    mq: shmq.Connection, start: str, is_of_group: bool, eventually: Eventually
) -> None:
    mq.admin.create_topic("orders", queues=1)
    group = f"audit-{start}" if is_of_group else None
    with mq.subscribe("orders", model="broadcasting", group=group, start=start) as consumer:
        eventually(lambda: consumer.queues)
        mq.send_batch("orders", [b"settled", b"in hand", b"stored"])
        consumer.receive(2, wait=60)[0].ack()
        renew(mq)
        mq.send("orders", b"later")
        renew(mq)
        assert bodies(consumer.receive(9, wait=9)) == [b"in hand", b"stored", b"later"]


def test_a_broadcasting_member_without_a_group_reads_all_of_a_topic_that_was_made_again(
    mq: shmq.Connection, eventually: Eventually
) -> None:
    mq.admin.create_topic("orders", queues=1)
    with mq.subscribe("orders", model="broadcasting") as consumer:
        mq.send_batch("orders", [b"old"] * 3)
        for message in consumer.receive(3, wait=60):
            message.ack()
        mq.admin.delete_topic("orders")
        mq.admin.create_topic("orders", queues=1)
        mq.send_batch("orders", new := [b"new %d" % number for number in range(5)])
        renew(mq)
        eventually(lambda: consumer.queues)
        assert bodies(consumer.receive(9, wait=9)) == new


def test_a_pull_consumer_of_a_deleted_topic_makes_it_not_and_reads_the_new_one_from_its_first_message(
    mq: shmq.Connection,
) -> None:
    mq.admin.create_topic("orders", queues=1)
    with mq.pull_consumer("orders", start="end") as consumer:
        mq.send_batch("orders", [b"old"] * 3)
        assert len(consumer.poll(9, wait=60)) == 3
        mq.admin.delete_topic("orders")
        renew(mq)
        assert consumer.poll(9) == [] and "orders" not in mq.admin.topics
        renew(mq)
        mq.admin.create_topic("orders", queues=1)
        mq.send_batch("orders", new := [b"new %d" % number for number in range(5)])
        assert bodies(consumer.poll(9, wait=9)) == new


@pytest.mark.parametrize("is_copy", [False, True])
def test_a_pull_consumer_goes_on_at_the_end_of_a_log_that_lost_its_last_messages(
    mq: shmq.Connection, monkeypatch: pytest.MonkeyPatch, is_copy: bool
) -> None:
    mq.admin.create_topic("orders", queues=1)
    mq.send_batch("orders", [b"old"] * 3)
    with mq.pull_consumer("orders", start="end") as consumer:
        renew(mq)
        consumer._positions[0] = 20  # which it had read up to
        with monkeypatch.context() as patched:
            patched.setattr(ShmQueues, "is_copy", is_copy)
            assert consumer.poll(9) == []
        assert consumer.positions() == {0: 3}


def test_closing_a_consumer_waits_for_no_broker_that_it_asks_when_it_opens_anew(
    mq: shmq.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq.admin.create_topic("orders", queues=1)
    consumer = mq.subscribe("orders", group="billing")
    members, seen = mq._live().members, []

    def assignment(_: Any) -> Any:
        by_another_thread(consumer.close, unless_held=consumer._lock)
        seen.append(consumer._closed)
        raise shmq.BrokerNotRunning("away again")

    monkeypatch.setattr(members, "assignment", assignment)
    consumer._renew()
    assert seen == [True] and consumer._source is None
