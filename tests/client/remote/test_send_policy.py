"""Sending over TCP, without a socket: which queue is next, and what an answer means."""

import pytest

from shmq import errors
from shmq.client.remote.send_policy import (
    Attempts,
    FaultTable,
    QueueChoice,
    avoid_seconds,
    queue_of_group,
    send_error,
)
from shmq.client.wire_tcp.route import Route
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.shm.core import tag_hash
from tests.tables.rows import every_row


def route(*names: str, queues: int = 2) -> Route:
    writable = tuple(MessageQueue(name, number, "T") for name in names for number in range(queues))
    return Route("T", writable, writable, {}, writable)


# -- the queue
def test_messages_go_round_all_queues() -> None:
    selector = QueueChoice(None)
    chosen = [selector.select(route("a", "b"), 0.0) for _ in range(8)]
    assert set(chosen) == set(route("a", "b").writable) and chosen[:4] == chosen[4:]


def test_the_broker_that_failed_is_avoided_unless_it_is_the_only_one() -> None:
    selector = QueueChoice(None)
    assert {selector.select(route("a", "b"), 0.0, avoid="a").brokerName for _ in range(8)} == {"b"}
    assert selector.select(route("a"), 0.0, avoid="a").brokerName == "a"


def test_a_slow_broker_is_avoided_for_a_while() -> None:
    faults = FaultTable()
    selector = QueueChoice(faults)
    faults.report("a", 0.7, now=100.0)
    assert {selector.select(route("a", "b"), 129.0).brokerName for _ in range(8)} == {"b"}
    assert {selector.select(route("a", "b"), 130.0).brokerName for _ in range(8)} == {"a", "b"}


def test_when_all_are_slow_the_least_slow_is_taken_and_a_quick_answer_clears() -> None:
    faults = FaultTable()
    faults.report("a", 0.0, now=0.0, failed=True)
    faults.report("b", 1.5, now=0.0)
    selector = QueueChoice(faults)
    assert {selector.select(route("a", "b"), 1.0).brokerName for _ in range(4)} == {"b"}
    faults.report("a", 0.001, now=2.0)
    assert faults.is_available("a", 2.0)


@every_row(
    ("latency", "avoided"), [(0.1, 0), (0.549, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (15, 600), (30, 600)]
)
def test_the_table_of_latencies_is_rocketmqs(latency: float, avoided: float) -> None:
    assert avoid_seconds(latency) == avoided


def test_a_message_group_has_the_queue_that_local_producers_give_it() -> None:
    for group in ("o-42", "ü", "a" * 100):
        assert queue_of_group(route("a", queues=8), group).queueId == (tag_hash(group) & 0x7FFFFFFF) % 8


# -- the answer
@pytest.mark.parametrize("code", [0, 11])
def test_stored_is_stored(code: int) -> None:
    assert send_error(Command(code=code)) is None


@every_row(
    ("code", "kind"),
    [
        (2, errors.BrokerBusy),
        (10, errors.SendTimeout),
        (12, errors.SendTimeout),
        (13, errors.MessageTooLarge),
        (14, errors.ReadOnlyStore),
        (16, errors.PermissionDenied),
        (17, errors.TopicNotFound),
        (215, errors.FlowControl),
        (1, errors.RemoteError),
    ],
)
def test_a_refusal_has_a_type_and_the_brokers_words(code: int, kind: type[errors.ShmqError]) -> None:
    error = send_error(Command(code=code, remark="because"))
    assert isinstance(error, kind) and "because" in str(error) and error.code == code


def test_three_tries_and_not_more() -> None:
    attempts = Attempts(deadline=10.0)
    gone = errors.BrokerNotRunning("gone")
    assert [attempts.may_retry(gone, name, 1.0) for name in "abc"] == [True, True, False]
    assert attempts.avoid == "c"


@every_row(
    ("error", "again"),
    [
        (errors.RequestTimeout("slow"), True),
        (send_error(Command(code=1, remark="x")), True),
        (send_error(Command(code=2, remark="x")), True),
        (send_error(Command(code=14, remark="x")), True),
        (send_error(Command(code=16, remark="x")), True),
        (send_error(Command(code=204, remark="x")), True),
        (send_error(Command(code=13, remark="x")), False),
        (send_error(Command(code=10, remark="x")), False),
        (errors.PermissionDenied("TLS"), True),
        (errors.UsageError("closed"), False),
    ],
)
def test_another_broker_is_tried_for_what_another_broker_can_change(error: errors.ShmqError, again: bool) -> None:
    assert Attempts(deadline=10.0).may_retry(error, "a", 1.0) is again


def test_nothing_is_tried_after_the_deadline_or_for_oneway() -> None:
    gone = errors.BrokerNotRunning("gone")
    assert not Attempts(deadline=10.0).may_retry(gone, "a", 10.0)
    assert not Attempts(deadline=10.0, retries=0).may_retry(gone, "a", 1.0)
