"""Retry topics of POP and their two names: no group gets what is another's, and what lies under the old name is taken.

`%RETRY%a_b_c` is the old name for group `a` that pops `b_c` and for `a_b` that pops `c`, and it is the retry topic of
the group `a_b_c`, which pulls.
"""

import base64
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from shmq.daemon.broker.log import NewRecord
from shmq.daemon.broker.settings import BrokerSettings
from shmq.properties import encode_properties, parse_properties
from shmq.protocol.codes import Request
from shmq.protocol.pop import parse_start_offsets
from tests.broker.pop.pop_client import INVISIBLE_MS, PopClient, PoppedMessage
from tests.tables.rows import every_row

OLD = "%RETRY%a_b_c"
READERS = {"b_c": "a", "c": "a_b"}


@pytest.fixture
def client(tables: Any, settings: BrokerSettings) -> PopClient:
    return PopClient(tables, settings)


def bodies(messages: list[Any]) -> list[bytes]:
    return [message.body for message in messages]


def make(client: PopClient, *names: str) -> None:
    for name in names:
        client.tables.topic_put(name, read_queues=1, write_queues=1, perm=6, flags=0, kind=0)


def store(client: PopClient, name: str, body: bytes, tries: int = 1, **properties: str) -> None:
    record = NewRecord(body, encode_properties(properties).encode(), reconsume_times=tries)
    client.log.append(client.topic(name), 0, record)


def copied(client: PopClient, name: str, body: bytes, topic: str, **properties: str) -> None:
    """Store what an earlier version stored of a message that was popped and not settled."""
    said = {"RETRY_TOPIC": topic, "1ST_POP_TIME": "1", "POP_COPY": "0 0 0 1", "ORIGIN_MESSAGE_ID": "0" * 32}
    store(client, name, body, **said | properties)


def given_back(client: PopClient, name: str, body: bytes, topic: str) -> None:
    """Store what a broker stores of a message that a member of a group sent back."""
    store(client, name, body, RETRY_TOPIC=topic, REAL_TOPIC=name, ORIGIN_MESSAGE_ID="0" * 32)


def stored(client: PopClient, name: str) -> list[bytes]:
    return bodies(client.log.stored(client.topic(name), 0)) if client.tables.topic(name) else []


def test_what_comes_again_to_a_group_that_pops_lies_in_no_topic_of_another_group(client: PopClient) -> None:
    make(client, "b_c", "c", OLD)
    for topic, group in READERS.items():
        store(client, topic, topic.encode(), tries=0)
        assert bodies(client.popped(topic=topic, consumerGroup=group)) == [topic.encode()]
    given_back(client, OLD, b"pulled", "b_c")
    for _ in range(2):  # first what was popped, then what came again
        client.run(client.now_ms + INVISIBLE_MS + 1)
        for topic, group in READERS.items():
            assert bodies(client.popped(topic=topic, consumerGroup=group)) == [topic.encode()]
    assert stored(client, OLD) == [b"pulled"]
    assert (stored(client, "%RETRY%a+b_c"), stored(client, "%RETRY%a_b+c")) == ([b"b_c"] * 2, [b"c"] * 2)
    assert [client.committed(group, topic=OLD) for group in READERS.values()] == [-1, -1]


def test_copies_under_the_old_name_go_to_who_popped_them_and_retries_to_neither(client: PopClient) -> None:
    make(client, "b_c", "c", OLD)
    for number in range(3):
        for topic in READERS:
            given_back(client, OLD, b"pulled", topic)
            copied(client, OLD, b"%s %d" % (topic.encode(), number), topic)
    for topic, group in READERS.items():
        wanted = [b"%s %d" % (topic.encode(), number) for number in range(3)]
        late = [client.popped(topic=topic, consumerGroup=group, maxMsgNums=2) for _ in range(2)]
        assert bodies([message for messages in late for message in messages]) == wanted[:2]
        (last,) = client.popped(topic=topic, consumerGroup=group)
        assert (last.body, last.topic, last.tries, last.receipt.retry_flag) == (wanted[2], topic, 1, "1")
        assert client.ack(last, group).code == 0
        assert client.popped(topic=topic, consumerGroup=group) == []
    client.run(client.now_ms + INVISIBLE_MS + 1)
    assert stored(client, "%RETRY%a+b_c") == [b"b_c 0", b"b_c 1"]
    assert stored(client, "%RETRY%a_b+c") == [b"c 0", b"c 1"]
    assert len(stored(client, OLD)) == 12


def test_a_copy_that_does_not_say_for_whom_it_is_goes_to_each_who_may_have_popped_it(client: PopClient) -> None:
    """RocketMQ's brokers write no RETRY_TOPIC into copies, and hand them out like this."""
    make(client, "b_c", "c", OLD)
    store(client, OLD, b"of a RocketMQ broker", **{"1ST_POP_TIME": "1"})
    store(client, OLD, b"sent there by its name")
    for topic, group in READERS.items():
        assert bodies(client.popped(topic=topic, consumerGroup=group)) == [b"of a RocketMQ broker"]
        assert client.popped(topic=topic, consumerGroup=group) == []


def test_what_is_stored_under_the_old_name_after_the_last_copy_is_no_lag_and_wakes_no_pop(client: PopClient) -> None:
    make(client, "b_c", OLD)
    copied(client, OLD, b"old", "b_c")
    (old,) = client.popped(topic="b_c", consumerGroup="a")
    assert client.ack(old, "a").code == 0
    given_back(client, OLD, b"pulled", "b_c")
    copied(client, OLD, b"looks like a copy", "b_c")
    assert client.pop(topic="b_c", consumerGroup="a", pollTime=5000) is None
    assert client.committed("a", topic=OLD) == 3
    assert client.topic(OLD).queues[0] not in client.broker.wanted.queues


def test_a_long_queue_of_retries_is_searched_for_copies_a_piece_at_a_time(client: PopClient) -> None:
    make(client, "b_c", OLD)
    for _ in range(512 * 16):
        given_back(client, OLD, b"pulled", "b_c")
    copied(client, OLD, b"old", "b_c")
    found = list(itertools.islice(iter(lambda: client.popped(topic="b_c", consumerGroup="a"), None), 12))
    assert bodies([message for messages in found for message in messages]) == [b"old"]
    assert not found[0]


def test_a_peek_and_a_question_see_copies_under_the_old_name_and_no_retries(client: PopClient) -> None:
    make(client, "b_c", OLD)
    given_back(client, OLD, b"pulled", "b_c")
    question = {"consumerGroup": "a", "topic": "b_c", "queueId": -1, "maxMsgNums": 8, "pollTime": 0, "bornTime": 0}
    asked = client.ask(Request.NOTIFICATION, question)
    assert (asked.ext["hasMsg"], client.ask(Request.PEEK_MESSAGE, question).body) == ("false", b"")
    client.start()
    copied(client, OLD, b"old", "b_c")
    assert client.ask(Request.NOTIFICATION, question).ext["hasMsg"] == "true"
    peeked = client.ask(Request.PEEK_MESSAGE, question).body
    assert b"old" in peeked and b"pulled" not in peeked


def test_an_ordered_pop_takes_nothing_that_comes_again(client: PopClient) -> None:
    make(client, "b_c", OLD, "%RETRY%a+b_c")
    copied(client, OLD, b"old", "b_c")
    copied(client, "%RETRY%a+b_c", b"new", "b_c")
    assert client.popped(topic="b_c", consumerGroup="a", order="true") == []


def test_copies_under_both_names_come_in_one_pop_with_flags_of_their_own(client: PopClient) -> None:
    make(client, "%RETRY%g_orders", "%RETRY%g+orders")
    copied(client, "%RETRY%g_orders", b"old", "orders")
    copied(client, "%RETRY%g+orders", b"new", "orders")
    client.put(b"first")
    reply = client.pop()
    assert set(parse_start_offsets(reply.ext["startOffsetInfo"])) == {("0", 0), ("1", 0), ("2", 0)}
    client.run(client.now_ms + INVISIBLE_MS)
    assert sorted(stored(client, "%RETRY%g+orders")) == [b"first", b"new", b"new", b"old"]


# -- receipts

Settle = Callable[[PopClient, PoppedMessage, str, str], Any]


def acked(client: PopClient, message: PoppedMessage, group: str, name: str) -> Any:
    return client.ack(message, group, topic=name)


def acked_in_a_batch(client: PopClient, message: PoppedMessage, group: str, name: str) -> Any:
    found = message.receipt
    bits = base64.b64encode((1 << found.offset - found.first_offset).to_bytes(8, "little")).decode()
    ack = {"c": group, "t": name, "r": found.retry_flag, "so": found.first_offset, "q": found.queue_id}
    ack |= {"rq": found.revive_queue, "pt": found.pop_ms, "it": found.invisible_ms, "b": bits}
    return client.ask(Request.BATCH_ACK_MESSAGE, body=json.dumps({"brokerName": "default", "acks": [ack]}).encode())


def given_more_time(client: PopClient, message: PoppedMessage, group: str, name: str) -> Any:
    """More time than a test has."""
    fields = {**message.settling(group), "topic": name, "invisibleTime": 10 * INVISIBLE_MS}
    return client.ask(Request.CHANGE_MESSAGE_INVISIBLETIME, fields)


FORMS = ("orders", "%RETRY%{}_orders", "%RETRY%{}+orders")
WAYS = (acked, acked_in_a_batch, given_more_time)


@every_row("number, flag, form, settle", [(n, *row) for n, row in enumerate(itertools.product("012", FORMS, WAYS))])
def test_a_receipt_counts_by_its_flag_whatever_name_the_request_gives_the_topic(
    client: PopClient, number: int, flag: str, form: str, settle: Settle
) -> None:
    group = f"g{number}"
    if not number:
        client.put(b"a")
    taken = client.popped(consumerGroup=group)
    if flag != "0":
        client.ack(taken[0], group)
        name = FORMS[int(flag)].format(group)
        make(client, name)
        copied(client, name, b"a", "orders")
        taken = client.popped(consumerGroup=group)
    (message,) = taken
    assert message.receipt.retry_flag == flag
    before = len(client.retries(group))
    assert settle(client, message, group, form.format(group)).code == 0
    client.run(client.now_ms + INVISIBLE_MS + 1)
    assert len(client.retries(group)) == before, "it came again"


def test_what_was_popped_under_the_old_name_before_an_update_is_settled_or_comes_again_under_the_new(
    client: PopClient,
) -> None:
    make(client, "%RETRY%g_orders")
    for body in (b"settled", b"late"):
        copied(client, "%RETRY%g_orders", body, "orders")
    settled, _ = client.popped()
    client.start()
    assert client.ack(settled).code == 0
    client.run(client.now_ms + INVISIBLE_MS)
    (copy,) = client.retries()
    assert (copy.body, copy.reconsume_times) == (b"late", 2)
    assert parse_properties(copy.properties.decode())["RETRY_TOPIC"] == "orders"
    (again,) = client.popped()
    assert (again.body, again.receipt.retry_flag, again.topic) == (b"late", "2", "orders")


@every_row("name", ["%RETRY%old_orders", "%RETRY%old+orders"])
def test_a_copy_that_a_predecessor_has_stored_is_not_stored_again_under_either_name(
    client: PopClient, name: str
) -> None:
    if client.tables.topic("%RETRY%old+orders") is None:
        make(client, "%RETRY%old_orders", "%RETRY%old+orders")
    client.put(b"a")
    offset = len(client.log.stored(client.topic(), 0)) - 1
    _progress(client, "old", offset)
    (message,) = client.popped(consumerGroup="old")
    copied(client, name, b"a", "orders", POP_COPY=f"0 0 {offset} {message.receipt.pop_ms}")
    before = stored(client, "%RETRY%old_orders"), stored(client, "%RETRY%old+orders")
    client.at(client.now_ms + INVISIBLE_MS)
    client.start()
    client.run(client.now_ms + 1)
    assert (stored(client, "%RETRY%old_orders"), stored(client, "%RETRY%old+orders")) == before
    (again,) = client.popped(consumerGroup="old")
    assert (again.body, client.ack(again, "old").code) == (b"a", 0)


def _progress(client: PopClient, group: str, offset: int) -> None:
    queue = client.topic().queues[0]
    client.tables.set_committed(client.tables.offset_put(client.tables.group_put(group), queue), offset)


@every_row("name", ["%RETRY%h", "%RETRY%g_a", "%RETRY%h+a"])
def test_who_pops_another_groups_retry_topic_by_its_name_stores_nothing_there(client: PopClient, name: str) -> None:
    make(client, name)
    given_back(client, name, b"of another", "a")
    (message,) = client.popped(topic=name)
    client.run(client.now_ms + INVISIBLE_MS)
    assert (stored(client, name), stored(client, f"%RETRY%g+{name}")) == ([b"of another"], [b"of another"])
    (again,) = client.popped(topic=name)
    assert client.ack(again, topic=name).code == 0
    client.run(client.now_ms + INVISIBLE_MS)
    assert client.popped(topic=name) == []
    given_back(client, name, b"more", "a")
    (message,) = client.popped(topic=name)
    assert client.ack(message, topic=name).code == 0
    client.run(client.now_ms + INVISIBLE_MS)
    assert client.popped(topic=name) == []
