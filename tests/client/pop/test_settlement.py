"""Requests about popped messages: which goes out when, and under which receipt, on this host and over TCP."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from shmq.client.pop.settlement import ACK_PAUSE, Lease, Settlement
from shmq.client.position import BEGIN
from shmq.client.spec import ConsumerSpec
from shmq.client.wire import Question
from shmq.errors import BrokerNotRunning, RemoteError, ShmqError
from shmq.protocol.codes import Request, Response
from shmq.protocol.command import Command
from shmq.protocol.pop import Receipt, parse_receipt

SPEC = ConsumerSpec("orders", "billing", start=BEGIN)


class Brokers:
    """A wire whose brokers answer when the test says so, and the consumer behind the reader."""

    timeout = 1.0
    client_id = "test"
    alive = True

    def __init__(self, *, is_local: bool) -> None:
        self.is_local = is_local
        self.asked: list[tuple[int, Mapping[str, str]]] = []
        self.open: list[Callable[[Any], None]] = []
        self.jobs: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0
        self.refusal: ShmqError | None = None

    def request(self, question: Question, timeout: float = 1.0) -> Command:
        self.asked.append((question.code, question.ext or {}))
        if self.refusal is not None:
            raise self.refusal
        return changed(len(self.asked))

    def begin(self, question: Question, then: Any, *, timeout: Any = None) -> None:
        self.asked.append((question.code, question.ext or {}))
        self.open.append(then)

    def codes(self) -> list[int]:
        return [code for code, _ in self.asked]

    def run(self) -> None:
        jobs, self.jobs = self.jobs, []
        for _, job in jobs:
            job()

    def _now(self) -> float:
        return self.now

    def keep_for(self, messages: list[Any]) -> None:
        raise NotImplementedError

    def _later(self, seconds: float, job: Callable[[], None]) -> None:
        self.jobs.append((seconds, job))


def changed(pop_ms: int) -> Command:
    return Command(code=Response.SUCCESS, ext={"popTime": str(pop_ms), "invisibleTime": "9"})


def lease(offset: int = 5, until: float = 30.0) -> Lease:
    return Lease(Receipt(5, 100, 9, 0, "0", "broker-a", 0, 0), offset, until)


def settlement(brokers: Brokers) -> Settlement:
    made: Any = brokers
    return Settlement(made, SPEC, made)


def test_acknowledgements_of_one_moment_travel_together() -> None:
    brokers = Brokers(is_local=False)
    pops = settlement(brokers)
    for offset in (5, 6, 7):
        pops.ack(lease(offset))
    brokers.run()
    assert brokers.codes() == [Request.BATCH_ACK_MESSAGE]


@pytest.mark.parametrize("answer", [BrokerNotRunning("away"), Command(code=Response.SYSTEM_ERROR)])
def test_an_acknowledgement_is_sent_until_it_is_confirmed_or_its_time_is_over(answer: Any) -> None:
    brokers = Brokers(is_local=True)
    pops = settlement(brokers)
    pops.ack(lease(until=30.0))
    for _ in range(3):
        brokers.run()
        brokers.open.pop()(answer)
        assert [seconds for seconds, _ in brokers.jobs] == [ACK_PAUSE]
    brokers.now = 31.0
    brokers.run()
    brokers.open.pop()(answer)
    assert brokers.jobs == []
    assert brokers.codes() == [Request.ACK_MESSAGE] * 4


def test_over_tcp_an_acknowledgement_waits_for_the_receipt_of_a_change() -> None:
    brokers = Brokers(is_local=False)
    pops = settlement(brokers)
    held = lease()
    assert pops.extend(held, 20.0)
    pops.ack(held)
    brokers.run()
    assert brokers.codes() == [Request.CHANGE_MESSAGE_INVISIBLETIME]
    brokers.open.pop()(changed(777))
    brokers.run()
    assert brokers.codes() == [Request.CHANGE_MESSAGE_INVISIBLETIME, Request.ACK_MESSAGE]
    assert parse_receipt(brokers.asked[1][1]["extraInfo"]).pop_ms == 777


def test_over_tcp_requests_about_one_message_go_out_one_after_the_other() -> None:
    brokers = Brokers(is_local=False)
    pops = settlement(brokers)
    held = lease()
    pops.extend(held, 20.0)
    pops.hide(held, 5.0)
    assert len(brokers.open) == 1
    brokers.open.pop()(changed(777))
    assert parse_receipt(brokers.asked[1][1]["extraInfo"]).pop_ms == 777


def test_on_this_host_a_message_that_is_not_in_hand_any_more_cannot_be_extended() -> None:
    brokers = Brokers(is_local=True)
    brokers.refusal = RemoteError(Response.NO_MESSAGE, "gone")
    assert not settlement(brokers).extend(lease(), 20.0)
    brokers.refusal = BrokerNotRunning("away")
    assert settlement(brokers).extend(lease(), 20.0), "the outcome is unknown"


@pytest.mark.parametrize("is_local", [True, False])
def test_a_dead_letter_is_hidden_stored_and_settled(is_local: bool) -> None:
    brokers = Brokers(is_local=is_local)
    message: Any = type("Message", (), {"log_position": 1, "offset_message_id": "x", "topic": "orders", "attempt": 3})()
    settlement(brokers).dead_letter(message, lease(), "poison")
    while brokers.open:
        brokers.open.pop()(changed(777))
    wanted = [Request.CHANGE_MESSAGE_INVISIBLETIME, Request.CONSUMER_SEND_MSG_BACK, Request.ACK_MESSAGE]
    assert brokers.codes() == wanted


def test_a_dead_letter_that_others_hold_now_is_theirs() -> None:
    brokers = Brokers(is_local=False)
    message: Any = type("Message", (), {"log_position": 1, "offset_message_id": "x", "topic": "orders", "attempt": 3})()
    settlement(brokers).dead_letter(message, lease(), "poison")
    brokers.open.pop()(Command(code=Response.NO_MESSAGE))
    assert brokers.codes() == [Request.CHANGE_MESSAGE_INVISIBLETIME]
