"""The answer about a transaction goes to the broker that asks, and where another host leads by now, to that one."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from shmq.client.transactions.transaction import COMMIT, Checkers, TransactionCheck
from shmq.errors import BrokerBusy, BrokerNotRunning, NotMaster, ShmqError
from tests.deadline import DEADLINE_SECONDS


def in_doubt() -> ShmqError:
    error = BrokerNotRunning("the connection broke before the answer came")
    error.maybe_stored = True
    return error


@pytest.mark.parametrize(
    ("refusal", "fields", "is_said_again"),
    [
        (NotMaster("it leads no more"), {"bname": "b"}, True),
        (BrokerNotRunning("it is gone"), {"bname": "b"}, True),
        (NotMaster("it leads no more"), {}, False),  # RocketMQ 4's does not say which broker asks
        (BrokerBusy("later"), {"bname": "b"}, False),
        (in_doubt(), {"bname": "b"}, False),
    ],
)
def test_an_answer_that_is_refused_goes_to_the_leader(
    refusal: ShmqError, fields: dict[str, str], is_said_again: bool
) -> None:
    said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def tell(given: dict[str, str]) -> None:
        said.put(("broker", given))
        if given is fields:
            raise refusal

    checkers = Checkers(None, lambda given: said.put(("leader", given)))
    checkers.add("shop", lambda _: COMMIT)
    last = {"bname": "last"}
    try:
        for number, each in enumerate((fields, last)):
            message: Any = SimpleNamespace(message_id=str(number))
            checkers.asked(TransactionCheck("shop", message, lambda _, each=each: each, tell))
        found = [said.get(timeout=DEADLINE_SECONDS) for _ in range(3 if is_said_again else 2)]
    finally:
        checkers.stop()
    assert found == [("broker", fields), *([("leader", fields)] if is_said_again else []), ("broker", last)]
