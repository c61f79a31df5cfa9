"""`Connection.arrow`: rows, places, what it sees, how long batches live, and its errors."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import shmq
import shmq.aio
from shmq.client.batches import LEASE_SECONDS
from shmq.errors import CorruptionError, OffsetOutOfRange, TopicNotFound, UsageError
from shmq.shm.core import KeeperStore, columns_names
from shmq.testing import Broker, SharedBroker
from tests.deadline import eventually

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[arrow]'")


@pytest.fixture
def mq(shmq_shared_broker: SharedBroker) -> Iterator[shmq.Connection]:
    with shmq_shared_broker.connect() as connection:
        yield connection


@pytest.fixture
def topic(shmq_shared_broker: SharedBroker, mq: shmq.Connection) -> str:
    """Nine messages in three queues, with tags, keys and properties."""
    name = shmq_shared_broker.named("orders")
    mq.admin.create_topic(name, queues=3)
    for number in range(9):
        mq.send(
            name,
            b"order %d" % number,
            queue_id=number % 3,
            tag="even" if number % 2 == 0 else "odd",
            key=f"k{number}",
            properties={"number": str(number)},
        )
    return name


def bodies(reader: Any) -> list[bytes]:
    return [body for batch in reader for body in batch.column("body").to_pylist()]


# -- rows
def test_rows_are_those_that_browse_shows(mq: shmq.Connection, topic: str) -> None:
    rows = mq.arrow(topic, columns=columns_names()).read_all().to_pylist()
    browsed = {(message.queue_id, message.offset): message for message in mq.browse(topic)}
    assert [(row["queue_id"], row["queue_offset"]) for row in rows] == sorted(browsed)
    for row in rows:
        message = browsed[row["queue_id"], row["queue_offset"]]
        assert row["topic"] == topic and row["broker"] == mq.broker_name
        assert row["body"] == bytes(message.body) and row["tags"] == message.tag and row["keys"] == message.key
        assert row["commitlog_offset"] == message.log_position
        assert row["store_timestamp"] == datetime.fromtimestamp(message.store_ms / 1000, UTC)
        assert dict(row["properties"])["number"] == message.properties["number"]


def test_columns_come_in_the_order_they_were_named(mq: shmq.Connection, topic: str) -> None:
    reader = mq.arrow(topic, columns=["body", "queue_offset"])
    assert reader.schema.names == ["body", "queue_offset"]
    assert reader.schema.field("body").type == pyarrow.binary()
    default = mq.arrow(topic).schema.names
    assert set(columns_names()) - set(default) == {"msg_id", "properties", "born_host", "store_host"}


@pytest.mark.parametrize(
    ("columns", "message", "hint"),
    [
        (["boody"], "no column 'boody'", "did you mean body"),
        (["body", "body"], "named twice", "columns="),
        ([], "no column is named", "columns="),
    ],
)
def test_columns_that_mean_nothing_are_refused(
    mq: shmq.Connection, topic: str, columns: list[str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        mq.arrow(topic, columns=columns)
    assert hint in caught.value.hint


def test_tags_select(mq: shmq.Connection, topic: str) -> None:
    assert sorted(bodies(mq.arrow(topic, tags="odd"))) == [b"order %d" % number for number in (1, 3, 5, 7)]
    assert len(bodies(mq.arrow(topic, tags=["odd", "even"]))) == 9


def test_compressed_bodies_arrive_as_they_were_sent_in_bounded_batches(mq: shmq.Connection, topic: str) -> None:
    producer = mq._live().sends.core_producer(5.0)
    for _ in range(8):
        producer.append(topic, zlib.compress(bytes(1 << 20)), queue_id=0, sys_flag=1)
    batches = list(mq.arrow(topic, columns=["body"], start={0: 3, 1: "latest", 2: "latest"}))
    assert [bytes(1 << 20)] * 8 == [body for batch in batches for body in batch.column(0).to_pylist()]
    assert len(batches) >= 4 and all(batch.nbytes < 4 << 20 for batch in batches)


def test_batches_are_bounded_by_rows_and_bytes(mq: shmq.Connection, topic: str) -> None:
    assert [batch.num_rows for batch in mq.arrow(topic, batch_rows=2)] == [2, 1] * 3
    for _ in range(5):
        mq.send(topic, bytes(1_500_000), queue_id=0)
    sizes = [batch.num_rows for batch in mq.arrow(topic, start={0: 3, 1: "latest", 2: "latest"})]
    assert sizes == [1] * 5
    for wrong in (0, 65_537, 1.5, True):
        with pytest.raises(UsageError, match="batch_rows"):
            mq.arrow(topic, batch_rows=wrong)  # type: ignore[arg-type]


def test_the_page_has_every_column_with_its_type(mq: shmq.Connection, topic: str) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "arrow.md").read_text()
    shown: dict[str, str] = {}
    for names, kind in re.findall(r"^\| (`[^|]*) \| ([\w\[<]+)", page.split("## Columns")[1], re.MULTILINE):
        shown |= dict.fromkeys(re.findall(r"`(\w+)`", names), kind)
    kinds = {field.name: str(field.type).partition(",")[0] for field in mq.arrow(topic, columns=columns_names()).schema}
    assert shown == kinds


# -- places
@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [
        ("earliest", "latest", [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        ("latest", "latest", []),
        ("latest", "earliest", []),
        ({0: 1}, {0: 2, 1: 1, 2: "earliest"}, [3, 1]),
        ({0: "latest", 1: "latest"}, "latest", [2, 5, 8]),
        ("-1h", "latest", [0, 3, 6, 1, 4, 7, 2, 5, 8]),
        ("earliest", "-1h", []),
    ],
)
def test_places(mq: shmq.Connection, topic: str, start: Any, end: Any, numbers: list[int]) -> None:
    assert bodies(mq.arrow(topic, start=start, end=end)) == [b"order %d" % number for number in numbers]


def test_a_time_begins_and_ends_at_the_store_time_of_the_messages(mq: shmq.Connection, topic: str) -> None:
    behind = max(message.store_ms for message in mq.browse(topic)) + 1
    eventually(lambda: time.time() * 1000 > behind + 1)
    mq.send(topic, b"late", queue_id=1)
    moment = datetime.fromtimestamp(behind / 1000, UTC)
    assert bodies(mq.arrow(topic, start=moment)) == [b"late"]
    assert len(bodies(mq.arrow(topic, end=moment.isoformat()))) == 9


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"start": {0: 4}}, OffsetOutOfRange, "holds offsets 0 to 3 .exclusive., not 4"),
        ({"end": {2: 17}}, OffsetOutOfRange, "end: queue 2"),
        ({"start": {7: 0}}, UsageError, "has no queue 7"),
        ({"start": 5}, UsageError, "an offset counts messages of one queue"),
        ({"start": "soon"}, UsageError, "is not a position"),
        ({"end": {"0": 1}}, UsageError, "is no queue id"),
        ({"end": {0: -1}}, UsageError, "offset -1 is negative"),
    ],
)
def test_places_that_do_not_exist_are_refused(
    mq: shmq.Connection, topic: str, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        mq.arrow(topic, **given)
    assert caught.value.hint  # type: ignore[attr-defined]


def test_what_comes_after_the_call_is_not_read_and_nothing_is_consumed(mq: shmq.Connection, topic: str) -> None:
    with mq.subscribe(topic, group=f"{topic}-group") as consumer:
        reader = mq.arrow(topic)
        mq.send(topic, b"late")
        assert len(bodies(reader)) == 9 and len(bodies(mq.arrow(topic))) == 10
        seen: list[bytes] = []
        while len(seen) < 10 and (messages := consumer.receive(10, 20.0)):
            seen += [bytes(message.body) for message in messages]
        assert len(seen) == 10


def test_retry_and_dead_letter_topics_are_topics(mq: shmq.Connection, topic: str) -> None:
    group = f"{topic}-group"
    with mq.subscribe(topic, group=group, attempts_max=1) as consumer:
        messages = consumer.receive(9, 20.0)
        messages[0].nack(after=0)
        body = bytes(messages[0].body)
        eventually(lambda: mq.admin.dlq(group))
    assert bodies(mq.arrow(f"%DLQ%{group}")) == [body]


def test_the_asyncio_twin_returns_the_same(mq: shmq.Connection, topic: str) -> None:
    async def main() -> list[bytes]:
        async with shmq.aio.connect(mq.url) as twin:
            return bodies(await twin.arrow(topic, columns=["body"]))

    assert asyncio.run(main()) == bodies(mq.arrow(topic))


# -- how long things live
def leases(broker: Broker) -> list[Path]:
    return list((broker.store / "leases").glob("*"))


def test_reader_and_batches_outlive_connection_and_broker() -> None:
    with Broker() as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=1)
            for number in range(100):
                mq.send("orders", b"%d" % number)
            reader = mq.arrow("orders", batch_rows=10)
            first = reader.read_next_batch()
        second = reader.read_next_batch()
        assert len(leases(broker)) == 1
    rest = bodies(reader)
    kept = first.column("body").to_pylist() + second.column("body").to_pylist()
    assert [int(body) for body in kept + rest] == list(range(100))


def test_a_lease_keeps_retention_away_until_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker() as broker, broker.connect() as mq:
        mq.admin.create_topic("orders", queues=1)
        for number in range(30):
            mq.send("orders", b"%d" % number)
        reader = mq.arrow("orders", batch_rows=10)
        (lease,) = leases(broker)
        assert int(lease.name.partition(".")[0]) == mq.browse("orders")[0].log_position
        os.utime(lease, (time.time(), time.time() + 1))
        now = time.monotonic() + LEASE_SECONDS
        monkeypatch.setattr("shmq.client.batches.time.monotonic", lambda: now)
        reader.read_next_batch()
        assert lease.stat().st_mtime - time.time() > LEASE_SECONDS / 2, "it was renewed"
        child = os.fork()
        if child == 0:
            del reader
            os._exit(0)
        os.waitpid(child, 0)
        assert lease.exists(), "a child's copy is not the taker"
        assert len(bodies(reader)) == 20 and not leases(broker)
        unread = mq.arrow("orders")
        assert len(leases(broker)) == 1
        del unread
        assert not leases(broker)
        assert bodies(mq.arrow("orders", start="latest")) == [] and not leases(broker)


def test_what_retention_took_is_an_error_with_the_number(caplog: pytest.LogCaptureFixture) -> None:
    with Broker(file_bytes=1 << 20) as broker, broker.connect() as mq:
        mq.admin.create_topic("old", queues=1)
        for _ in range(300):
            mq.send("old", bytes(9000))
        reader = mq.arrow("old")
        store = mq._live().wire.store  # type: ignore[attr-defined]  # the test plays the keeper
        KeeperStore(store).set_offset_min(store.topic(store.topic_find("old"))["queues"][0], 150)
        with pytest.raises(OffsetOutOfRange, match=r"topic old, queue 0, offset 0.*150 messages are missing"):
            reader.read_all()
        assert len(bodies(mq.arrow("old"))) == 150


def test_a_damaged_message_is_an_error_that_names_its_place_and_is_reported() -> None:
    with Broker(flush="sync") as broker:
        with broker.connect() as mq:
            mq.admin.create_topic("orders", queues=1)
            sent = [mq.send("orders", body) for body in (b"before", b"damaged", b"behind")]
        with (broker.store / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(sent[1].log_position + 88)
            file.write(b"D")
        with broker.connect() as mq:
            reader = mq.arrow("orders")
            assert reader.read_next_batch().column("body").to_pylist() == [b"before"]
            with pytest.raises(CorruptionError, match=f"queue 0, offset 1, log position {sent[1].log_position}"):
                reader.read_next_batch()
            assert bodies(mq.arrow("orders", start={0: 2})) == [b"behind"]
        eventually(lambda: any((broker.store / "quarantine").glob("*")))


def test_a_killed_reader_leaves_the_broker_as_it_was(mq: shmq.Connection, topic: str) -> None:
    program = "import os, signal, shmq, sys\nreader = shmq.connect(sys.argv[1]).arrow(sys.argv[2], batch_rows=1)\n"
    program += "reader.read_next_batch()\nos.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-P", "-c", program, mq.url, topic], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(bodies(mq.arrow(topic))) == 9 and mq.send(topic, b"next")


# -- what is not there
def test_a_topic_that_is_not_there_is_said_with_the_nearest_name(mq: shmq.Connection, topic: str) -> None:
    with pytest.raises(TopicNotFound) as caught:
        mq.arrow(f"{topic}x")
    assert f'did you mean "{topic}"' in caught.value.hint


def test_a_broker_over_tcp_is_refused_with_the_cure(shmq_broker_factory: Callable[..., Broker]) -> None:
    broker = shmq_broker_factory(tcp=True)
    with shmq.connect(f"rocketmq://{broker.name_server}") as mq, pytest.raises(UsageError, match="memory") as caught:
        mq.arrow("orders")
    assert "shmq://NAME" in caught.value.hint


def test_without_pyarrow_the_error_names_the_extra(mq: shmq.Connection, topic: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="pyarrow") as caught:
        mq.arrow(topic)
    assert caught.value.hint == "pip install 'shmq[arrow]'"
