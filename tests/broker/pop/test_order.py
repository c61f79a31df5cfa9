"""Ordered pops: one batch of a queue at a time, again from the first that is not settled, through kills too."""

from typing import Any

import pytest

from shmq.daemon.broker.settings import BrokerSettings
from shmq.errors import BrokerBusy
from shmq.protocol.codes import Response
from tests.broker.pop.pop_client import INVISIBLE_MS, PopClient, PoppedMessage, messages_of


@pytest.fixture
def client(tables: Any, settings: BrokerSettings) -> PopClient:
    client = PopClient(tables, settings)
    client.put(b"a", b"b", b"c", b"d")
    return client


def pop(client: PopClient, count: int = 2, **changes: Any) -> list[PoppedMessage]:
    return client.popped(order="true", maxMsgNums=count, **changes)


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_queue_gives_nothing_while_a_batch_of_it_is_out(client: PopClient) -> None:
    first = pop(client)
    assert bodies(first) == [b"a", b"b"]
    assert all(message.receipt.is_ordered for message in first)
    assert pop(client) == []
    client.ack(first[0])
    assert pop(client) == []
    client.ack(first[1])
    assert bodies(pop(client)) == [b"c", b"d"]


def test_progress_moves_with_acknowledgements_only_and_without_gaps(client: PopClient) -> None:
    first = pop(client, 3)
    assert client.committed() == 0
    client.ack(first[1])
    assert client.committed() == 0
    client.ack(first[0])
    assert client.committed() == 2
    client.ack(first[2])
    assert client.committed() == 3


def test_what_was_not_settled_comes_again_first_in_place_and_with_one_try_more(client: PopClient) -> None:
    client.ack(pop(client, 3)[1])
    client.run(client.now_ms + INVISIBLE_MS)
    again = pop(client, 3)
    assert [(message.body, message.tries) for message in again] == [(b"a", 1), (b"c", 1)]
    client.run(client.now_ms + INVISIBLE_MS)
    assert [(message.body, message.tries) for message in pop(client, 3)] == [(b"a", 2), (b"c", 2)]
    assert client.tables.topic("%RETRY%g+orders") is None


def test_new_messages_behind_those_that_come_again_have_no_tries(client: PopClient) -> None:
    pop(client, 1)
    client.run(client.now_ms + INVISIBLE_MS)
    reply = client.pop(order="true", maxMsgNums=3)
    assert [(message.body, message.tries) for message in messages_of(reply)] == [(b"a", 1), (b"b", 0), (b"c", 0)]
    assert reply.ext["orderCountInfo"] == "0 qo0%0 1;0 0 0"


def test_the_same_attempt_gets_the_same_again(client: PopClient) -> None:
    assert bodies(pop(client, attemptId="x")) == [b"a", b"b"]
    assert bodies(pop(client, attemptId="y")) == []
    assert [(message.body, message.tries) for message in pop(client, attemptId="x")] == [(b"a", 0), (b"b", 0)]


def test_a_receipt_of_an_earlier_pop_settles_nothing(client: PopClient) -> None:
    early = pop(client)
    client.run(client.now_ms + INVISIBLE_MS)
    late = pop(client)
    assert client.ack(early[0]).code == 0
    assert client.committed() == 0
    client.ack(late[0])
    assert client.committed() == 1


def test_more_time_for_one_message_blocks_the_queue_as_long(client: PopClient) -> None:
    first = pop(client, 1)
    client.at(client.now_ms + INVISIBLE_MS - 1000)
    reply = client.change(first[0], 5000)
    assert (reply.code, reply.ext["popTime"]) == (0, str(first[0].receipt.pop_ms))
    client.at(client.now_ms + 4999)
    assert pop(client) == []
    client.at(client.now_ms + 1)
    assert bodies(pop(client)) == [b"a", b"b"]


def test_giving_a_message_back_frees_the_queue_at_once(client: PopClient) -> None:
    (first,) = pop(client, 1)
    client.change(first, 0)
    assert [(message.body, message.tries) for message in pop(client, 1)] == [(b"a", 1)]


def test_more_time_for_what_is_not_out_is_refused(client: PopClient) -> None:
    (first,) = pop(client, 1)
    client.ack(first)
    pop(client, 1)
    assert client.change(first, 1000).code == Response.NO_MESSAGE


def test_who_waits_pops_as_soon_as_the_batch_is_settled(client: PopClient) -> None:
    (first,) = pop(client, 1)
    assert client.pop(order="true", maxMsgNums=1, pollTime=15_000, connection=2) is None
    client.ack(first)
    assert bodies(messages_of(client.replies[2][0])) == [b"b"]


def test_who_waits_pops_when_the_time_of_the_batch_is_over(client: PopClient) -> None:
    pop(client, 1, invisibleTime=3000)
    assert client.pop(order="true", maxMsgNums=1, pollTime=15_000, connection=2) is None
    client.run(client.now_ms + 4000)
    assert bodies(messages_of(client.replies[2][0])) == [b"a"]


def test_a_reset_counts_more_than_what_is_out(client: PopClient) -> None:
    first = pop(client, 2)
    slot = client.tables.offset_slot(client.tables.group("g"), client.topic().queues[0])
    client.tables.set_committed(slot, 3)
    client.ack(first[0])
    client.ack(first[1])
    assert client.committed() == 3
    assert bodies(pop(client)) == [b"d"]


def test_a_batch_can_be_settled_with_one_request(client: PopClient) -> None:
    assert client.batch_ack(*pop(client, 2)).code == 0
    assert client.committed() == 2


def test_a_successor_keeps_the_order_the_tries_and_the_time(client: PopClient) -> None:
    pop(client, 2)
    client.run(client.now_ms + INVISIBLE_MS)
    again = pop(client, 2)
    client.ack(again[0])
    client.at(client.now_ms + 10_000)
    client.start()
    assert pop(client) == []
    client.at(client.now_ms + 49_999)
    assert pop(client) == []
    client.at(client.now_ms + 1)
    assert [(message.body, message.tries) for message in pop(client, 2)] == [(b"b", 2), (b"c", 0)]


def test_a_successor_moves_the_progress_its_predecessor_could_not(
    client: PopClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = pop(client, 1)

    def killed(*_: Any) -> None:
        raise BrokerBusy("killed here")

    monkeypatch.setattr(client.tables, "set_committed", killed)
    assert client.ack(first).code != 0
    monkeypatch.undo()
    assert client.committed() == 0
    client.start()
    client.tick()
    assert client.committed() == 1
    assert bodies(pop(client, 1)) == [b"b"]
