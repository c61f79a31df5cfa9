"""Batches, compression, one-way sends, ids and keys: what is stored is the same, whichever way it came."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.testing import Broker
from tests.conformance.conftest import QUEUES, url_of

Eventually = Callable[..., Any]


def test_a_batch_is_stored_in_one_queue_in_its_order(mq: shmq.Connection, topic: str) -> None:
    receipts = mq.send_batch(topic, [b"a", b"b", b"c"], tag="t", keys=["1", "2", "3"], properties={"p": "q"})
    assert len({receipt.queue_id for receipt in receipts}) == 1
    assert [receipt.offset for receipt in receipts] == [0, 1, 2]
    found = mq.browse(topic)
    assert [(m.body, m.tag, m.key, m.properties["p"]) for m in found] == [
        (body, "t", key, "q") for body, key in ((b"a", "1"), (b"b", "2"), (b"c", "3"))
    ]
    assert [message.message_id for message in found] == [receipt.message_id for receipt in receipts]


def test_an_empty_batch_stores_nothing(mq: shmq.Connection, topic: str) -> None:
    assert mq.send_batch(topic, []) == []
    assert mq.browse(topic) == []


def test_a_batch_beyond_four_mebibytes_is_split_and_stays_in_order(mq: shmq.Connection, topic: str) -> None:
    bodies = [b"%04d" % number + bytes(90_000) for number in range(50)]
    receipts = mq.send_batch(topic, bodies)
    assert len({receipt.queue_id for receipt in receipts}) == 1
    assert [receipt.offset for receipt in receipts] == list(range(50))
    assert [message.body[:4] for message in mq.browse(topic)] == [body[:4] for body in bodies]


@pytest.mark.parametrize(("count", "size"), [(48, 86_900), (512, 7_700), (512, 0)])
def test_a_batch_just_below_the_bound_is_one_append(mq: shmq.Connection, topic: str, count: int, size: int) -> None:
    receipts = mq.send_batch(topic, [bytes(size)] * count, queue_id=0)
    steps = {later.log_position - earlier.log_position for earlier, later in itertools.pairwise(receipts)}
    assert len(receipts) == count and len(steps) == 1  # nothing between two of them, not even the end of a log file


@pytest.fixture(scope="module", params=[1 << 20, 2 << 20])
def small_files(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker whose log files hold less than the largest batch."""
    with Broker(tcp=True, timeout=90.0, file_bytes=request.param) as broker:
        yield broker


def test_a_batch_longer_than_a_log_file_is_stored_in_parts(small_files: Broker, transport: str) -> None:
    bodies = [b"%04d" % number + bytes(60_000) for number in range(90)]
    with shmq.connect(url_of(small_files, transport), timeout=30.0) as mq:
        mq.admin.create_topic(f"long-{transport}", queues=QUEUES)
        receipts = mq.send_batch(f"long-{transport}", bodies, keys=[str(number) for number in range(90)])
        found = mq.browse(f"long-{transport}")
    assert {receipt.queue_id for receipt in receipts} == {receipts[0].queue_id}
    assert [receipt.offset for receipt in receipts] == list(range(90))
    assert [(message.body[:4], message.key) for message in found] == [
        (body[:4], str(number)) for number, body in enumerate(bodies)
    ]
    assert [message.message_id for message in found] == [receipt.message_id for receipt in receipts]


def test_a_long_batch_of_an_event_loop_is_stored_in_parts(small_files: Broker, transport: str) -> None:
    async def send() -> list[shmq.Receipt]:
        async with await shmq.aio.connect(url_of(small_files, transport), timeout=30.0) as mq:
            return await mq.send_batch(f"loop-{transport}", [bytes(60_000)] * 50)

    assert [receipt.offset for receipt in asyncio.run(send())] == list(range(50))


def test_an_error_of_a_long_batch_has_the_receipts_of_what_is_stored(small_files: Broker, transport: str) -> None:
    bodies = [bytes(60_000)] * 20 + [bytes((2 << 20) + 1)] + [b"later"] * 3
    with shmq.connect(url_of(small_files, transport), timeout=30.0) as mq:
        mq.admin.create_topic(f"half-{transport}")
        with pytest.raises(shmq.MessageTooLarge) as caught:
            mq.send_batch(f"half-{transport}", bodies)
        stored = mq.browse(f"half-{transport}")
    assert len(stored) == len(caught.value.receipts) <= 20
    assert [message.message_id for message in stored] == [receipt.message_id for receipt in caught.value.receipts]
    assert "one log file of" in str(caught.value)


def test_a_one_way_send_arrives_without_a_receipt(mq: shmq.Connection, topic: str, eventually: Eventually) -> None:
    for number in range(8):
        assert mq.send_oneway(topic, b"%d" % number, tag="t", key="k") is None
    found = eventually(lambda: len(found := mq.browse(topic)) == 8 and found)
    assert {message.queue_id for message in found} == set(range(QUEUES))
    assert {(message.tag, message.key) for message in found} == {("t", "k")}


def test_sends_in_the_background_give_receipts(mq: shmq.Connection, topic: str) -> None:
    with mq.producer() as producer:
        receipts = [pending.result(60) for pending in [producer.send_nowait(topic, b"%d" % n) for n in range(20)]]
    assert {receipt.message_id for receipt in receipts} == {message.message_id for message in mq.browse(topic)}


@pytest.mark.parametrize("size", [0, 1, 4_000_000])
def test_a_body_of_any_size_is_kept(mq: shmq.Connection, topic: str, size: int) -> None:
    receipt = mq.send(topic, bytes(size))
    (message,) = mq.browse(topic)
    assert message.body == bytes(size) and message.message_id == receipt.message_id
    assert message.verify()


def test_a_body_above_four_mebibytes_is_refused_with_the_limit(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(shmq.MessageTooLarge, match=str(4 << 20)):
        mq.send(topic, bytes((4 << 20) + 1))
    assert mq.browse(topic) == []
