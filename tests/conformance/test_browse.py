"""Looking without consuming: by key, by id, by unique key, by queue offset, by time."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import shmq
import shmq.aio
from tests.conformance.conftest import QUEUES, Named

Eventually = Callable[..., Any]


def bodies(messages: list[shmq.Message]) -> list[bytes]:
    return [message.body for message in messages]


def stored_time(message: shmq.Message) -> datetime:
    return datetime.fromtimestamp(message.store_ms / 1000, UTC)


def test_browse_returns_all_queues_in_the_order_of_storing(mq: shmq.Connection, topic: str) -> None:
    sent = [b"%d" % number for number in range(20)]
    for body in sent:
        mq.send(topic, body)
    found = mq.browse(topic)
    assert bodies(found) == sent
    assert {message.queue_id for message in found} == set(range(QUEUES))


def test_browse_moves_no_offset_and_takes_nothing_from_a_group(
    mq: shmq.Connection, topic: str, named: Named, eventually: Eventually
) -> None:
    mq.send(topic, b"one")
    assert bodies(mq.browse(topic)) == bodies(mq.browse(topic)) == [b"one"]
    with mq.subscribe(topic, group=named("billing")) as subscription:
        (message,) = eventually(lambda: subscription.receive(1, 1.0))
        assert message.body == b"one"
        message.ack()
    assert bodies(mq.browse(topic)) == [b"one"]


def test_a_browsed_message_cannot_be_given_back(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"one")
    (message,) = mq.browse(topic)
    with pytest.raises(shmq.UsageError):
        message.nack()


def test_browse_by_key_finds_every_message_with_the_key_and_no_other(
    mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    mq.send(topic, b"first", keys=["o-42", "c-1"])
    mq.send(topic, b"other", key="o-4")
    mq.send(topic, b"second", key="o-42")
    assert eventually(lambda: len(found := mq.browse(topic, key="o-42")) == 2 and bodies(found)) == [
        b"first",
        b"second",
    ]
    assert bodies(mq.browse(topic, key="c-1")) == [b"first"]
    assert mq.browse(topic, key="o-43") == []


def test_browse_by_key_keeps_to_the_time_and_to_the_tags(
    mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    mq.send(topic, b"early", key="k", tag="red")
    (early,) = eventually(lambda: mq.browse(topic, key="k"))
    eventually(lambda: mq.send(topic, b"late", key="k", tag="blue") and mq.browse(topic)[-1].store_ms > early.store_ms)
    eventually(lambda: len(mq.browse(topic, key="k")) == len(mq.browse(topic)))
    assert bodies(mq.browse(topic, key="k", until=stored_time(early)))[:1] == [b"early"]
    assert all(message.tag == "blue" for message in mq.browse(topic, key="k", tags="blue"))
    assert bodies(mq.browse(topic, key="k", tags="red")) == [b"early"]
    assert mq.browse(topic, key="k", since="2100-01-01T00:00:00Z") == []


def test_browse_by_key_keeps_to_the_queue_and_to_the_offset(
    mq: shmq.Connection, topic: str, named: Named, eventually: Eventually
) -> None:
    key = named("key")
    for number in range(8):
        mq.send(topic, b"%d" % number, key=key, queue_id=number % 2)
    assert eventually(lambda: len(mq.browse(topic, key=key)) == 8)
    assert bodies(mq.browse(topic, key=key, queue_id=1)) == [b"1", b"3", b"5", b"7"]
    assert bodies(mq.browse(topic, key=key, queue_id=1, offset=2)) == [b"5", b"7"]
    found = mq.browse(topic, key=key, queue_id=0, limit=4)
    assert (bodies(found), found.is_cut) == ([b"0", b"2", b"4", b"6"], False)


def test_browse_by_the_id_of_the_receipt_finds_the_message(
    mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    receipt = mq.send(topic, b"one", key="k")
    mq.send(topic, b"two")
    (found,) = eventually(lambda: mq.browse(topic, id=receipt.message_id))
    assert (found.body, found.queue_id, found.offset) == (b"one", receipt.queue_id, receipt.offset)


def test_browse_by_offset_message_id_finds_the_message(mq: shmq.Connection, topic: str) -> None:
    mq.send(topic, b"one")
    (stored,) = mq.browse(topic)
    (found,) = mq.browse(topic, id=stored.offset_message_id.lower())
    assert (found.body, found.log_position) == (b"one", stored.log_position)


def test_browse_by_unique_key_finds_a_message_of_a_client_over_tcp(
    broker: Any, mq: shmq.Connection, topic: str, eventually: Eventually
) -> None:
    with shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        remote.send(topic, b"remote")
    (stored,) = mq.browse(topic)
    unique = stored.properties["UNIQ_KEY"]
    assert bodies(eventually(lambda: mq.browse(topic, id=unique))) == [b"remote"]


@pytest.mark.parametrize("message_id", ["", "xyz", "0" * 32, "F" * 32, "7F000001" + "0" * 24, "0" * 56, "o-42"])
def test_an_id_that_leads_nowhere_finds_nothing(mq: shmq.Connection, topic: str, message_id: str) -> None:
    mq.send(topic, b"one", key="o-42")
    assert mq.browse(topic, id=message_id) == []


def test_an_id_of_another_topic_finds_nothing(mq: shmq.Connection, topic: str, named: Named) -> None:
    other = named("other")
    mq.admin.create_topic(other, queues=1)
    mq.send(other, b"elsewhere")
    (elsewhere,) = mq.browse(other)
    assert mq.browse(topic, id=elsewhere.offset_message_id) == []


def test_browse_from_an_offset_of_one_queue(mq: shmq.Connection, topic: str) -> None:
    for number in range(5):
        mq.send(topic, b"%d" % number, queue_id=1)
    mq.send(topic, b"elsewhere", queue_id=2)
    assert bodies(mq.browse(topic, queue_id=1, offset=2)) == [b"2", b"3", b"4"]
    assert bodies(mq.browse(topic, queue_id=1, offset=2, limit=1)) == [b"2"]
    assert bodies(mq.browse(topic, queue_id=2)) == [b"elsewhere"]


def test_browse_since_and_until_are_exact(mq: shmq.Connection, topic: str, eventually: Eventually) -> None:
    mq.send(topic, b"early")
    (early,) = mq.browse(topic)
    eventually(lambda: mq.send(topic, b"late") and mq.browse(topic)[-1].store_ms > early.store_ms + 1)
    late = mq.browse(topic)[-1]
    assert mq.browse(topic, since=stored_time(late))[-1].offset_message_id == late.offset_message_id
    assert all(message.store_ms >= late.store_ms for message in mq.browse(topic, since=stored_time(late)))
    assert bodies(mq.browse(topic, until=stored_time(early)))[0] == b"early"
    assert all(message.store_ms <= early.store_ms for message in mq.browse(topic, until=stored_time(early)))
    assert mq.browse(topic, since="-1h") == mq.browse(topic) or len(mq.browse(topic, since="-1h")) >= 2
    assert mq.browse(topic, until="-1h") == []


def test_browse_by_tag_reads_past_what_has_other_tags(mq: shmq.Connection, topic: str) -> None:
    for number in range(100):
        mq.send(topic, b"%d" % number, tag="rare" if number % 50 == 7 else "common")
    assert bodies(mq.browse(topic, tags="rare")) == [b"7", b"57"]
    assert bodies(mq.browse(topic, tags=["rare", "none"], limit=1)) == [b"7"]


MANY = 300


@pytest.mark.parametrize("size", [10, 40_000], ids=["more-than-rocketmq-answers-with", "more-than-fits-one-answer"])
def test_browse_by_key_finds_all_that_there_are_the_oldest_first(
    mq: shmq.Connection, topic: str, size: int, eventually: Eventually
) -> None:
    sent = [b"%d" % number + bytes(size) for number in range(MANY)]
    for start in range(0, MANY, 50):
        mq.send_batch(topic, sent[start : start + 50], keys=["o-42"] * 50)
    mq.send(topic, b"other", key="o-43")
    found = eventually(lambda: len(all_ := mq.browse(topic, key="o-42", limit=1000)) == MANY and all_)
    assert bodies(found) == sent and not found.is_cut
    for limit, is_cut in ((MANY, False), (MANY - 1, True), (64, True), (1, True)):
        some = mq.browse(topic, key="o-42", limit=limit)
        assert bodies(some) == sent[:limit] and some.is_cut is is_cut, limit


def test_a_limit_that_leaves_some_out_says_so(mq: shmq.Connection, topic: str, named: Named) -> None:
    for number in range(10):
        mq.send(topic, b"%d" % number)
    assert [mq.browse(topic, limit=limit).is_cut for limit in (9, 10, 11)] == [True, False, False]
    with mq.subscribe(topic, group=named("billing"), start="begin") as subscription:
        messages: list[shmq.Message] = []
        while len(messages) < 3:
            messages += subscription.receive(3 - len(messages), 60.0)
        for message in messages:
            subscription.reject(message)
        assert [mq.admin.dlq(named("billing"), limit=limit).is_cut for limit in (2, 3, 4)] == [True, False, False]


def test_a_coroutine_gets_the_error_of_a_cut_too(url: str, mq: shmq.Connection, topic: str) -> None:
    mq.send_batch(topic, [b"a", b"b"])

    async def browsed(limit: int) -> bool:
        async with shmq.aio.connect(url) as connection:
            return (await connection.browse(topic, limit=limit)).is_cut

    assert [asyncio.run(browsed(limit)) for limit in (1, 2)] == [True, False]


def test_the_limit_keeps_the_oldest(mq: shmq.Connection, topic: str) -> None:
    for number in range(10):
        mq.send(topic, b"%d" % number)
    assert bodies(mq.browse(topic, limit=3)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"limit": 0}, shmq.UsageError),
        ({"limit": 1_000_000}, shmq.UsageError),
        ({"offset": 1}, shmq.UsageError),
        ({"queue_id": 0, "offset": -1}, shmq.UsageError),
        ({"queue_id": 0, "offset": 1 << 40}, shmq.OffsetOutOfRange),
        ({"queue_id": 99}, shmq.UsageError),
        ({"key": "k", "id": "i"}, shmq.UsageError),
        ({"since": "yesterday"}, shmq.UsageError),
        ({"since": "-1x"}, shmq.UsageError),
        ({"since": "-1h", "until": "-2h"}, shmq.UsageError),
        ({"tags": "a|b"}, shmq.UsageError),
    ],
)
def test_what_means_nothing_is_refused_with_what_to_do(
    mq: shmq.Connection, topic: str, arguments: dict[str, Any], error: type[shmq.ShmqError]
) -> None:
    mq.send(topic, b"one", queue_id=0)
    with pytest.raises(error) as refused:
        mq.browse(topic, **arguments)
    assert refused.value.hint


def test_a_topic_that_does_not_exist_is_not_made_by_looking(mq: shmq.Connection, named: Named) -> None:
    missing = named("missing")
    with pytest.raises(shmq.TopicNotFound):
        mq.browse(missing)
    assert missing not in mq.admin.topics
