"""A producer's queue selector and its compression of long bodies; the same over both transports."""

import asyncio
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.producers.queue_selector import Candidate
from shmq.client.remote.send_policy import Latencies
from shmq.errors import UsageError
from shmq.protocol.compression import SYS_FLAG_COMPRESSED, compress
from shmq.testing import Broker

QUEUES = 4
WAYS = ["local", "tcp"]
LONG = b"shared memory " * 1000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(tcp=True) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-100:]
    with broker.connect() as mq:
        mq.admin.create_topic(name, queues=QUEUES)
    return name


@pytest.fixture(params=WAYS)
def mq(request: pytest.FixtureRequest, broker: Broker) -> Iterator[shmq.Connection]:
    url = broker.url if request.param == "local" else f"rocketmq://{broker.name_server}"
    with shmq.connect(url) as connection:
        yield connection


def stored(mq: shmq.Connection, topic: str) -> list[shmq.Message]:
    found: list[shmq.Message] = []
    with mq.pull_consumer(topic) as consumer:
        while batch := consumer.poll(100, 1.0 if not found else 0.0):
            found += batch
    return found


# -- which queue
def test_messages_of_one_key_share_a_queue_and_those_without_take_turns(mq: shmq.Connection, topic: str) -> None:
    with mq.producer(queue_selector="key") as producer:
        by_key = {key: {producer.send(topic, b"x", key=key).queue_id for _ in range(5)} for key in "abcdefgh"}
        assert all(len(queues) == 1 for queues in by_key.values())
        assert len(set.union(*by_key.values())) > 1
        assert {producer.send(topic, b"x").queue_id for _ in range(QUEUES)} == set(range(QUEUES))


@pytest.mark.parametrize("key", ["a\0b", "\ud800", "", 7])
def test_a_key_that_is_none_is_refused_by_its_name(mq: shmq.Connection, topic: str, key: Any) -> None:
    with mq.producer(queue_selector="key") as producer, pytest.raises(shmq.UsageError, match=r"^key "):
        producer.send(topic, b"x", key=key)


def test_the_same_key_has_the_same_queue_over_both_transports(broker: Broker, topic: str) -> None:
    with broker.connect() as one, shmq.connect(f"rocketmq://{broker.name_server}") as two:
        for key in "abcdefgh":
            queues = {mq.producer(queue_selector="key").send(topic, b"x", key=key).queue_id for mq in (one, two)}
            assert len(queues) == 1


def test_a_function_chooses_and_sees_what_is_sent(mq: shmq.Connection, topic: str) -> None:
    asked: list[Candidate] = []

    def last(queue_ids: Sequence[int], candidate: Candidate) -> int:
        asked.append(candidate)
        return queue_ids[-1]

    with mq.producer(queue_selector=last) as producer:
        assert producer.send(topic, b"1", tag="t", key="k").queue_id == QUEUES - 1
        assert {each.queue_id for each in producer.send_batch(topic, [b"2", b"3"])} == {QUEUES - 1}
        producer.send_oneway(topic, b"4")
        with producer.reserve(topic, 1) as slot:
            slot.view[:] = b"5"
        assert slot.receipt is not None and slot.receipt.queue_id == QUEUES - 1
        assert producer.send(topic, b"6", queue_id=0).queue_id == 0
        group = {producer.send(topic, b"7", message_group="g").queue_id for _ in range(3)}
        assert len(group) == 1
        assert producer.send_nowait(topic, b"8").result(60).queue_id == QUEUES - 1
    assert [(each.body, each.tag, each.key) for each in asked] == [
        (b"1", "t", "k"), (b"2", None, None), (b"4", None, None), (None, None, None), (b"8", None, None)
    ]  # fmt: skip


def test_a_choice_that_is_none_is_refused_and_nothing_is_stored(mq: shmq.Connection, topic: str) -> None:
    with mq.producer(queue_selector=lambda queue_ids, candidate: 99) as producer, pytest.raises(UsageError, match="99"):
        producer.send(topic, b"x")
    with pytest.raises(UsageError, match="'fastest'"):
        mq.producer(queue_selector="fastest")
    assert stored(mq, topic) == []


def test_least_latency_uses_every_queue_of_the_only_broker(mq: shmq.Connection, topic: str) -> None:
    with mq.producer(queue_selector="least_latency") as producer:
        assert {producer.send(topic, b"x").queue_id for _ in range(3 * QUEUES)} == set(range(QUEUES))


def test_the_fastest_broker_is_the_one_with_the_lowest_mean_and_a_new_one_is_tried() -> None:
    latencies = Latencies()
    assert latencies.fastest(["a", "b"]) is None
    latencies.report("a", 0.010)
    assert latencies.fastest(["a", "b"]) == "b"
    latencies.report("b", 0.020)
    assert latencies.fastest(["a", "b"]) == "a"
    latencies.report("a", 0.0, failed=True)
    assert latencies.fastest(["a", "b"]) == "b" and latencies.fastest(["a"]) == "a"


# -- packing
@pytest.mark.parametrize(("kind", "library"), [("lz4", "lz4"), ("zstd", "zstandard")])
def test_a_library_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, library: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)  # what an import of a missing library finds
    with pytest.raises(shmq.UsageError, match=f"{kind} is not installed") as told:
        compress(LONG, kind)
    assert told.value.hint is not None and "pip install 'shmq[compression]'" in told.value.hint
    assert compress(LONG, "zlib")[1] == SYS_FLAG_COMPRESSED


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_long_bodies_are_packed_and_every_reader_gets_them_whole(
    mq: shmq.Connection, broker: Broker, topic: str, kind: str
) -> None:
    if kind != "zlib":
        pytest.importorskip({"lz4": "lz4.frame", "zstd": "zstandard"}[kind])
    with mq.producer(compression=kind) as producer:
        receipt = producer.send(topic, LONG, tag="t", key="k-1", properties={"a": "b"}, message_group="g", flag=7)
        producer.send_oneway(topic, LONG)
        producer.send(topic, b"short")
    with broker.connect() as local, shmq.connect(f"rocketmq://{broker.name_server}") as remote:
        for reader in (local, remote):
            found = {message.offset_message_id: message for message in stored(reader, topic)}
            assert sorted(message.body for message in found.values()) == sorted([LONG, LONG, b"short"])
            packed = [message for message in found.values() if message.body == LONG]
            assert all(message.sys_flag & SYS_FLAG_COMPRESSED and len(message.view) < len(LONG) for message in packed)
            assert all(message.size == len(LONG) for message in packed)
            (first,) = [message for message in packed if message.tag == "t"]
            assert (first.key, first.properties["a"], first.message_group, first.flag) == ("k-1", "b", "g", 7)
            assert (first.queue_id, first.offset, first.message_id) == (
                *(receipt.queue_id, receipt.offset, receipt.message_id),
            )
            assert first.verify()
            (short,) = [message for message in found.values() if message.body == b"short"]
            assert not short.sys_flag & SYS_FLAG_COMPRESSED


def test_locally_nothing_is_packed_unless_it_is_asked_for(broker: Broker, topic: str) -> None:
    with broker.connect() as mq, mq.producer() as producer:
        producer.send(topic, LONG)
        assert type(producer.send).__name__ == "builtin_function_or_method"
        (message,) = stored(mq, topic)
        assert message.size == len(LONG) and not message.sys_flag & SYS_FLAG_COMPRESSED


def test_what_does_not_become_shorter_goes_as_it_is(mq: shmq.Connection, topic: str) -> None:
    noise = zlib.compress(bytes(number * number % 251 for number in range(60_000)), 9)[:8192]
    with mq.producer(compression="zlib") as producer:
        producer.send(topic, noise)
    (message,) = stored(mq, topic)
    assert message.body == noise and not message.sys_flag & SYS_FLAG_COMPRESSED


def test_packing_refuses_what_a_plain_send_refuses(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(UsageError, match="'gzip'"):
        mq.producer(compression="gzip")
    with mq.producer(compression="zlib") as producer:
        for wrong in ({"queue_id": 99}, {"tag": "a|b"}, {"properties": {"a\x01": "b"}}, {"properties": {"KEYS": "x"}}):
            with pytest.raises(UsageError):
                producer.send(topic, LONG, **wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            producer.send(topic, LONG.decode())
    assert stored(mq, topic) == []


def test_asyncio_twins_take_the_same_options(broker: Broker, topic: str) -> None:
    async def main() -> None:
        async with (
            shmq.aio.connect(broker.url) as mq,
            mq.producer(compression="zlib", queue_selector=lambda queue_ids, candidate: queue_ids[1]) as producer,
        ):
            assert (await producer.send(topic, LONG)).queue_id == 1
            assert (await producer.send(topic, LONG)).queue_id == 1

    asyncio.run(asyncio.wait_for(main(), 60))
    with broker.connect() as mq:
        assert all(message.sys_flag & SYS_FLAG_COMPRESSED for message in stored(mq, topic))


# -- batches
def test_a_batch_of_more_than_a_request_holds_is_split_by_itself_and_stays_in_order(
    mq: shmq.Connection, topic: str
) -> None:
    bodies = [b"%04d" % number + bytes(60_000) for number in range(50)]  # 3 MB: no request takes more than 1 MiB
    receipts = mq.send_batch(topic, bodies)
    assert len({receipt.queue_id for receipt in receipts}) == 1
    assert [receipt.offset for receipt in receipts] == list(range(50))
    assert [message.body[:4] for message in stored(mq, topic)] == [body[:4] for body in bodies]


def test_a_batch_has_no_delay_and_says_so(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises((TypeError, UsageError)):
        mq.send_batch(topic, [b"x"], delay_level=3)  # type: ignore[call-arg]
    assert stored(mq, topic) == []
