"""A control request whose link broke is sent again, and its caller learns what an earlier try may have done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shmq.client.transactions.half import RemoteTransactions
from shmq.client.transactions.transaction import COMMIT, Transaction, TxState
from shmq.client.wire_shm.control import ControlClient
from shmq.errors import RemoteError, RequestTimeout, ShmqError, TopicNotFound, TransactionError, UsageError
from shmq.protocol.codes import Response
from shmq.protocol.command import Command
from shmq.protocol.failure import failure_reply
from shmq.shm.place import Place

Broker = Callable[[Command], ShmqError | None]


class Link:
    """A link over which some requests are served before it breaks without an answer; the next one is there then."""

    def __init__(self, client: ControlClient, serve: Broker, *, breaks: bool) -> None:
        self._client, self._serve, self._breaks = client, serve, breaks

    def send(self, command: Command, _deadline: float) -> None:
        error = self._serve(command)
        if self._breaks:
            self._client._lose(self)  # type: ignore[arg-type]
            self._client._link = Link(self._client, self._serve, breaks=False)  # type: ignore[assignment]
        else:
            self._client._dispatch([command.reply() if error is None else failure_reply(command, error)])

    def close(self) -> None:
        """Nothing is sent over it from now on."""


def client_of(tmp_path: Path, serve: Broker, *, breaks: bool) -> ControlClient:
    client = ControlClient(Place("default", tmp_path), client_id="c", role=0, timeout=60.0)
    client._link = Link(client, serve, breaks=breaks)  # type: ignore[assignment]
    return client


class Topics:
    """A broker that knows one topic."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_there = True

    def delete(self, _: Command) -> ShmqError | None:
        self.asked += 1
        was_there, self.is_there = self.is_there, False
        return None if was_there else TopicNotFound("there is no such topic")


def test_what_an_earlier_try_has_deleted_is_deleted(tmp_path: Path) -> None:
    topics = Topics()
    client_of(tmp_path, topics.delete, breaks=True).delete_topic("orders")
    assert topics.asked == 2 and not topics.is_there


def test_a_topic_that_is_not_there_is_said_to_who_asked_once(tmp_path: Path) -> None:
    topics = Topics()
    topics.is_there = False
    with pytest.raises(TopicNotFound) as caught:
        client_of(tmp_path, topics.delete, breaks=False).delete_topic("orders")
    assert not caught.value.maybe_stored


def test_a_group_that_an_earlier_try_has_deleted_is_deleted(tmp_path: Path) -> None:
    left = ["g"]

    def delete(_: Command) -> ShmqError | None:
        return None if left and left.pop() else RemoteError(Response.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")

    client_of(tmp_path, delete, breaks=True).delete_group("g")
    with pytest.raises(ShmqError, match="no such group"):
        client_of(tmp_path, delete, breaks=False).delete_group("g")


def test_another_refusal_of_a_later_try_says_that_an_earlier_one_may_count(tmp_path: Path) -> None:
    client = client_of(tmp_path, lambda _: UsageError("no"), breaks=True)
    with pytest.raises(UsageError) as caught:
        client.delete_topic("orders")
    assert caught.value.maybe_stored


class _Half:
    group, topic, broker, message_id, offset, log_position = "g", "orders", "default", "M1", 0, 0


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_transaction_that_is_settled_at_the_second_try_may_be_what_was_asked_for(is_marked: bool) -> None:
    """Whether the answer to the first try was lost by a link, or came too late for its caller."""
    answers: list[ShmqError] = [RemoteError(Response.SYSTEM_ERROR, "it was settled before")]
    if is_marked:
        answers[0].maybe_stored = True
    else:
        late = RequestTimeout("no answer in time")
        late.maybe_stored = True
        answers.insert(0, late)

    class Wire:
        is_local = False

        def request(self, *_: object) -> Command:
            raise answers.pop(0)

    wire: Any = Wire()
    transactions = RemoteTransactions(wire, wire, wire)

    def end(half: Any, state: TxState, timeout: float) -> Any:
        return transactions._end_at_broker(half, state, timeout)

    transaction = Transaction(_Half(), 1.0, end)
    if not is_marked:
        with pytest.raises(RequestTimeout):
            transaction._end(COMMIT)
    with pytest.raises(TransactionError) as caught:
        transaction._end(COMMIT)
    assert caught.value.maybe_stored
