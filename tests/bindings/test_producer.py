"""Producing: where records go, what is refused, and what other writers, threads and slow slots may do to it."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, LiveStore, raises_status, until
from tests.deadline import attempts
from tests.tables.rows import every_row

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
BODIES = st.builds(
    lambda pattern, size: (pattern * (size // len(pattern) + 1))[:size],
    st.binary(min_size=1, max_size=16),
    st.integers(min_value=0, max_value=3000) | st.integers(min_value=15_000, max_value=100_000),
)
PROPERTIES = st.dictionaries(TEXT.map(lambda name: f"x{name}"), TEXT, max_size=6)


def bodies(live: LiveStore, topic: str = "orders") -> list[bytes]:
    """Every body of a topic, queue by queue."""
    reader = live.reader(topic)
    found: list[bytes] = []
    while batch := reader.poll(500):
        found += [message.body for message in batch]
        assert all(message.verify() for message in batch)
    return found


# ---- where it goes -----------------------------------------------------------------------------------------------


def test_a_receipt_says_where_the_record_is() -> None:
    with LiveStore() as live:
        live.topic()
        receipt = live.producer().send("orders", b"hello")
        record = (live.path / "commitlog" / f"{0:020d}").read_bytes()
        fields = _core.record_decode(record, receipt.log_position)
        assert fields["body"] == b"hello"
        assert (receipt.topic, receipt.offset) == ("orders", 0)
        assert fields["queue_id"] == receipt.queue_id
        assert fields["store_ms"] == receipt.store_ms == fields["born_ms"]
        assert fields["born_host"] == b"\x7f\0\0\1\0\0\0\0"
        assert receipt.message_id == (fields["store_host"] + struct.pack(">Q", receipt.log_position)).hex().upper()
        assert receipt.message_id in repr(receipt)


def test_sends_go_round_the_write_queues() -> None:
    with LiveStore() as live:
        live.topic(queues=3)
        producer = live.producer()
        ids = [producer.send("orders", b"x").queue_id for _ in range(9)]
        assert sorted(ids[:3]) == [0, 1, 2]
        assert ids[:3] == ids[3:6] == ids[6:]


def test_producers_do_not_all_start_at_one_queue() -> None:
    with LiveStore() as live:
        live.topic(queues=8)
        assert len({live.producer().send("orders", b"x").queue_id for _ in range(50)}) > 1


def test_one_group_stays_in_one_queue_chosen_by_javas_hash() -> None:
    with LiveStore() as live:
        live.topic(queues=4)
        producer = live.producer()
        for group in ("o-42", "o-43", "Kunde 7", "polygenelubricants"):
            expected = (_core.tag_hash(group) & 0x7FFFFFFF) % 4
            receipts = [producer.send("orders", b"x", message_group=group) for _ in range(3)]
            assert {receipt.queue_id for receipt in receipts} == {expected}
            assert producer.send("orders", b"x", message_group=group, queue_id=1).queue_id == 1
        groups = {message.message_group for message in live.reader().poll(100)}
        assert groups == {"o-42", "o-43", "Kunde 7", "polygenelubricants"}


def test_a_queue_id_outside_the_topic_is_refused() -> None:
    with LiveStore() as live:
        live.topic(queues=2)
        producer = live.producer()
        assert producer.send("orders", b"x", queue_id=1).queue_id == 1
        for wrong in (2, -1, 1 << 70):
            with raises_status(_core.NO_QUEUE, "0 to 1"):
                producer.send("orders", b"x", queue_id=wrong)


def test_a_topic_that_grows_or_comes_again_is_seen_at_the_next_send() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        asked: list[str] = []

        def resolve(topic: str) -> int:
            asked.append(topic)
            return live.store.topic_find(topic)

        producer = _core.Producer(live.store, resolve=resolve)
        assert {producer.send("orders", b"x").queue_id for _ in range(4)} == {0}
        live.tables.topic_put("orders", read_queues=4, write_queues=4)
        assert {producer.send("orders", b"x").queue_id for _ in range(8)} == {0, 1, 2, 3}
        assert asked == ["orders"]
        live.tables.topic_delete("orders")
        with raises_status(_core.NO_TOPIC):
            producer.send("orders", b"x")
        live.topic(queues=2)
        assert {producer.send("orders", b"x").queue_id for _ in range(4)} == {0, 1}


def test_a_topic_without_write_permission_takes_nothing() -> None:
    with LiveStore() as live:
        live.topic(perm=4)
        with raises_status(_core.NO_QUEUE, "permission 4"):
            live.producer().send("orders", b"x")


def test_what_resolve_raises_arrives_and_nonsense_is_refused() -> None:
    def fail(topic: str) -> int:
        raise LookupError(topic)

    answers: list[tuple[Callable[[str], Any], type[Exception]]] = [
        (fail, LookupError),
        (lambda topic: "no number", TypeError),
        (lambda topic: 7, _core.CoreError),
        (lambda topic: -1, _core.CoreError),
        (lambda topic: 1 << 40, _core.CoreError),
    ]
    with LiveStore() as live:
        live.topic("other")
        for resolve, kind in answers:
            with pytest.raises(kind):
                _core.Producer(live.store, resolve=resolve).send("orders", b"x")
        with raises_status(_core.NO_TOPIC):  # an index of another topic is not believed either
            _core.Producer(live.store, resolve=lambda topic: 0).send("orders", b"x")


# ---- what is stored ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            BODIES,
            st.none() | st.from_regex(r"[a-z]{1,9}", fullmatch=True),
            st.lists(st.from_regex(r"[a-z0-9]{1,9}", fullmatch=True), max_size=3),
            PROPERTIES,
        ),
        max_size=8,
    )
)
def test_everything_sent_reads_back(messages: list[tuple[bytes, str | None, list[str], dict[str, str]]]) -> None:
    with LiveStore(files=2) as live:
        live.topic(queues=1)
        producer = live.producer()
        for body, tag, keys, properties in messages:
            producer.send("orders", body, tag=tag, keys=keys, properties=properties, flag=7)
        found = live.reader().poll(100)
        assert [(m.body, m.tag, m.keys) for m in found] == [(body, tag, keys) for body, tag, keys, _ in messages]
        for message, (_, tag, keys, properties) in zip(found, messages, strict=True):
            reserved = ({"TAGS": tag} if tag else {}) | ({"KEYS": " ".join(keys)} if keys else {})
            assert message.properties == reserved | properties
            assert message.flag == 7
            assert message.verify()


@every_row("kind", [bytes, bytearray, memoryview])
@every_row("size", [0, 1, 256, 16_384, 70_000])
def test_any_buffer_is_a_body(kind: Callable[[bytes], Any], size: int) -> None:
    with LiveStore() as live:
        live.topic()
        body = os.urandom(size)
        live.producer().send("orders", kind(body))
        assert bodies(live) == [body]


def test_topic_and_body_may_be_named() -> None:
    with LiveStore() as live:
        live.topic()
        live.producer().send(body=b"x", topic="orders")
        live.producer().send("orders", **{"bo" + "dy": b"y"})  # type: ignore[arg-type]
        assert sorted(bodies(live)) == [b"x", b"y"]


def test_no_properties_means_only_the_record_crc_is_stored() -> None:
    with LiveStore() as live:
        live.topic()
        receipt = live.producer().send("orders", b"x")
        record = (live.path / "commitlog" / f"{0:020d}").read_bytes()
        properties = _core.record_decode(record, receipt.log_position)["properties"]
        assert len(properties) == 20
        assert properties.startswith(b"__CRC32#\1")


def test_ready_made_property_text_is_stored_as_it_is() -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer()
        text = b"REAL_TOPIC\1a\2TAGS\1fruit\2DELAY\x013"
        producer.send("orders", b"x", properties=text)
        producer.send("orders", b"y", properties=text + b"\2__CRC32#\x010123456789\2")
        for message in live.reader(tags=["fruit"]).poll():
            assert message.properties == {"REAL_TOPIC": "a", "TAGS": "fruit", "DELAY": "3"}
            assert message.verify()
        assert live.reader(tags=["fruit"]).lag() == 2


@every_row(
    ("options", "status", "text"),
    [
        ({"tag": ""}, _core.BAD_ARGUMENT, "empty"),
        ({"tag": "a|b"}, _core.BAD_ARGUMENT, "'|'"),
        ({"tag": "a\nb"}, _core.BAD_ARGUMENT, "0x0a"),
        ({"key": "a b"}, _core.BAD_ARGUMENT, "blank"),
        ({"keys": "abc"}, _core.BAD_ARGUMENT, "key=?"),
        ({"keys": ["a", ""]}, _core.BAD_ARGUMENT, "empty"),
        ({"message_group": "a\1"}, _core.BAD_ARGUMENT, "0x01"),
        ({"properties": {"a": "b\2"}}, _core.BAD_ARGUMENT, "0x02"),
        ({"properties": {"a\1": "b"}}, _core.BAD_ARGUMENT, "0x01"),
        ({"properties": {"": "b"}}, _core.BAD_ARGUMENT, "empty"),
        ({"properties": {"a": ""}}, _core.BAD_ARGUMENT, "empty"),
        ({"properties": {"TAGS": "b"}}, _core.BAD_ARGUMENT, "use tag="),
        ({"properties": {"KEYS": "b"}}, _core.BAD_ARGUMENT, "use key="),
        ({"properties": {"UNIQ_KEY": "b"}}, _core.BAD_ARGUMENT, "choose another name"),
        ({"properties": {"__CRC32#": "b"}}, _core.BAD_ARGUMENT, "belongs to RocketMQ"),
        ({"properties": {"x": "y" * 32768}}, _core.TOO_LARGE, "properties"),
        ({"timeout": -1}, _core.BAD_ARGUMENT, "timeout"),
        ({"timeout": float("nan")}, _core.BAD_ARGUMENT, "timeout"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_a_reason(options: dict[str, Any], status: int, text: str) -> None:
    with LiveStore() as live:
        live.topic()
        with raises_status(status, text):
            live.producer().send("orders", b"x", **options)
        assert live.store.log_end == 0


@every_row(
    ("args", "options", "text"),
    [
        (("orders", "text"), {}, r"did you mean body=text\.encode\(\)\?"),
        (("orders", 7), {}, "a body is bytes, not int; did you mean"),
        (("orders",), {}, "missing required argument 'body'"),
        ((), {"body": b""}, "missing required argument 'topic'"),
        (("orders", b"", b""), {}, "by position"),
        (("orders", b""), {"topic": "x"}, "multiple values for argument 'topic'"),
        (("orders", b""), {"tags": "x"}, "unexpected keyword argument 'tags'"),
        ((b"orders", b""), {}, "topic must be str"),
        (("orders", b""), {"tag": b"x"}, "tag must be str"),
        (("orders", b""), {"properties": 7}, "mapping"),
        (("orders", b""), {"properties": {"a": 7}}, "property value must be str"),
        (("orders", b""), {"message_group": 7}, "message_group must be str"),
        (("orders", b""), {"keys": [7]}, "key is a str, not 7"),
        (("orders", b""), {"timeout": "1"}, "float|real"),
        (("orders", b""), {"queue_id": "1"}, "int"),
    ],
)
def test_a_wrong_call_is_a_type_error(args: tuple[Any, ...], options: dict[str, Any], text: str) -> None:
    with LiveStore() as live:
        live.topic()
        with pytest.raises(TypeError, match=text):
            live.producer().send(*args, **options)


def test_a_body_beyond_the_limit_is_refused_with_the_numbers() -> None:
    with LiveStore(files=1, file_bytes=8 << 20) as live:
        live.topic()
        producer = live.producer()
        producer.send("orders", bytes(_core.BODY_BYTES_MAX))
        with raises_status(_core.TOO_LARGE, f"{_core.BODY_BYTES_MAX + 1}"):
            producer.send("orders", bytes(_core.BODY_BYTES_MAX + 1))
        with raises_status(_core.TOO_LARGE):
            producer.reserve("orders", _core.BODY_BYTES_MAX + 1)
        with raises_status(_core.BAD_ARGUMENT, "127"):
            producer.send("x" * 128, b"")


def test_a_full_log_is_said_so_and_goes_on_when_there_is_room() -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer()
        with raises_status(_core.LOG_FULL, "topic 'orders'"):
            for _ in range(10_000):
                producer.send("orders", bytes(1000))
        stored = len(bodies(live))
        live.add_file(1)
        live.keeper.set_allocated_end(2 * FILE_BYTES)
        producer.send("orders", bytes(1000))
        assert len(bodies(live)) == stored + 1


@pytest.mark.parametrize("how", ["send", "long", "batch", "reserve"])
def test_a_producer_waits_for_a_living_keeper_to_make_room(how: str) -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer(timeout=20.0)
        live.keeper.set_allocated_end(0)
        live.keeper.keeper_beat()
        assert not live.keeper.keep_flushed(0.0)[0]

        def keeper() -> None:
            assert live.keeper.keep_flushed(20.0)[0]
            live.keeper.set_allocated_end(FILE_BYTES)

        thread = threading.Thread(target=keeper)
        thread.start()
        if how == "reserve":
            with producer.reserve("orders", 4) as slot:
                slot.view[:] = b"body"
        elif how == "batch":
            producer.send_batch("orders", [b"body", b"body"])
        else:
            producer.send("orders", b"body" * (10_000 if how == "long" else 1))
        thread.join()
        assert bodies(live)
        live.keeper.set_allocated_end(0)
        with raises_status(_core.LOG_FULL):
            producer.send("orders", b"body", timeout=0.01)


def test_a_producer_whose_time_is_over_is_refused_though_the_keeper_lives() -> None:
    with LiveStore() as live, ThreadPoolExecutor(2) as threads:
        live.topic()
        producer = live.producer()
        live.keeper.set_allocated_end(0)
        live.keeper.keeper_beat()
        is_over = threading.Event()

        def keeper() -> None:
            while not is_over.is_set():
                live.keeper.keep_flushed(0.01)
                live.keeper.keeper_beat()

        beating = threads.submit(keeper)
        try:
            with raises_status(_core.LOG_FULL):
                threads.submit(producer.send, "orders", b"body", timeout=0.005).result(20.0)
        finally:
            is_over.set()
            beating.result()


def test_oneway_stores_and_returns_nothing() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic()
        producer = live.producer(wait_durable=True, timeout=0.0)
        producer.send_oneway("orders", b"x", tag="t")
        live.keeper.flush()
        assert bodies(live) == [b"x"]


# ---- batches -----------------------------------------------------------------------------------------------------


def test_a_batch_lies_in_one_queue_in_order() -> None:
    with LiveStore(files=3) as live:
        live.topic()
        sent = [os.urandom(size) for size in (0, 1, 100, 5000, 20_000, 3, 60_000)] + [b"%d" % i for i in range(2000)]
        receipts = live.producer().send_batch("orders", sent, tag="t", properties={"a": "b"})
        assert len({receipt.queue_id for receipt in receipts}) == 1
        assert [receipt.offset for receipt in receipts] == list(range(len(sent)))
        for receipt, body in zip(receipts, sent, strict=True):
            message = live.store.message_at(receipt.log_position)
            assert (message.body, message.offset, message.tag) == (body, receipt.offset, "t")
            assert message.store_ms == receipt.store_ms
        assert bodies(live) == sent


@pytest.mark.parametrize("count", [0, 1, _core.BATCH_MAX, _core.BATCH_MAX + 1, 5000])
def test_a_batch_of_any_size_takes_the_lock_once(count: int) -> None:
    with LiveStore(file_bytes=4 << 20) as live:
        live.topic()
        producer = live.producer()
        producer.send("orders", b"the first one also maps the file")
        producer.send_batch("orders", [b"and so does the first large one", bytes(300_000)])
        before = live.figures.stats()["lock_count"]
        assert len(producer.send_batch("orders", [b"x"] * count)) == count
        assert live.figures.stats()["lock_count"] - before == (count > 0)


def test_a_batch_lies_in_one_file_and_waits_for_it_as_a_whole() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        producer = live.producer(timeout=0.0)
        producer.send("orders", bytes(700_000))
        sent, end = [bytes([number]) * 10_000 for number in range(40)], live.store.log_end
        for _ in range(2):
            with raises_status(_core.LOG_FULL):
                producer.send_batch("orders", sent)
            assert live.store.log_end == end
        live.add_file(1)
        live.keeper.set_allocated_end(2 * FILE_BYTES)
        receipts = producer.send_batch("orders", sent)
        assert [receipt.offset for receipt in receipts] == list(range(1, 41))
        assert receipts[0].log_position == FILE_BYTES
        assert bodies(live)[1:] == sent


def test_without_unit_memory_nothing_of_a_batch_is_stored() -> None:
    with LiveStore(frame_max=2, frame_ready=2) as live:
        live.topic(queues=1)
        producer = live.producer()
        with raises_status(_core.UNITS_FULL):
            producer.send_batch("orders", [b"x"] * 600)
        assert live.store.log_end == 0 and bodies(live) == []
        assert len(producer.send_batch("orders", [b"x"] * 400)) == 400


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_what_is_more_than_a_file_holds_is_stored_in_parts_and_an_error_says_how_far(kind: Any) -> None:
    with LiveStore(file_bytes=64 << 10, files=2) as live:
        live.topic(queues=1)
        producer = live.producer(timeout=0.0)
        sent = [kind([number]) * 20_000 for number in range(8)]  # three a file
        with pytest.raises(_core.CoreError) as caught:
            producer.send_batch("orders", sent)
        assert caught.value.args[0] == _core.LOG_FULL
        assert [receipt.offset for receipt in caught.value.receipts] == list(range(6))
        assert caught.value.maybe_stored is True
        assert bodies(live) == sent[:6]
        for number in (2, 3):
            live.add_file(number)
        live.keeper.set_allocated_end(4 * (64 << 10))
        assert [receipt.offset for receipt in producer.send_batch("orders", sent[6:])] == [6, 7]
        assert bodies(live) == sent


def test_a_message_that_is_longer_than_a_file_stores_what_is_before_it_alone() -> None:
    with LiveStore(file_bytes=64 << 10, files=2) as live:
        live.topic(queues=1)
        with pytest.raises(_core.CoreError) as caught:
            live.producer().send_batch("orders", [b"a", b"b", bytes(70_000), b"c"])
        assert caught.value.args[0] == _core.TOO_LARGE
        assert len(caught.value.receipts) == 2 and bodies(live) == [b"a", b"b"]


def test_batch_keys_are_one_a_body() -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer()
        producer.send_batch("orders", (bytearray(b"a"), b"b"), keys=["k1", "k2"], tag="t")
        assert [(m.body, m.key, m.tag) for m in live.reader().poll()] == [(b"a", "k1", "t"), (b"b", "k2", "t")]
        with raises_status(_core.BAD_ARGUMENT, "1 keys for 2 bodies"):
            producer.send_batch("orders", [b"a", b"b"], keys=["k1"])
        for wrong in (b"ab", "ab", bytearray(b"ab"), 7):
            with pytest.raises(TypeError):
                producer.send_batch("orders", wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            producer.send_batch("orders", [b"a"], keys="k")
        with pytest.raises(TypeError, match="unexpected keyword argument 'key'"):
            producer.send_batch("orders", [b"a"], key="k")  # type: ignore[call-arg]


def test_a_bad_body_in_a_batch_stores_nothing_of_its_part() -> None:
    with LiveStore() as live:
        live.topic()
        with pytest.raises(TypeError, match="encode"):
            live.producer().send_batch("orders", [b"a", "b"])
        assert live.store.log_end == 0


# ---- other processes and threads ---------------------------------------------------------------------------------

HOLDER = """
import os, sys
from shmq.bindings import _core
store = _core.Store(*map(int, sys.argv[1:4]), writable=True)
producer = _core.Producer(store, resolve=store.topic_find)
slot = producer.reserve("orders", 1000)
print("held", flush=True)
sys.stdin.readline()
slot.abort()
"""


def holder(live: LiveStore) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, *map(str, live.descriptors)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=live.descriptors,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_send_waits_for_anothers_claim_and_then_goes_round_it() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        producer, expected = live.producer(), [b"x"]
        for _ in attempts():
            child = holder(live)
            try:
                producer.send("orders", b"late", timeout=0.0)
            except _core.CoreError as error:
                assert (error.args[0], f"pid {child.pid}" in error.args[1]) == (_core.BROKER_BUSY, True)
                break
            child.communicate("\n")  # this process was late: the claim had had its 20 ms
            expected.insert(0, b"late")
        producer.send("orders", b"x", timeout=20.0)
        assert live.figures.stats()["claims_evicted"] == len(expected)
        child.communicate("\n")
        assert bodies(live) == expected


def test_a_claim_of_the_dead_stops_no_writer() -> None:
    with LiveStore() as live:
        live.topic()
        child = holder(live)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        receipts = live.producer().send_batch("orders", [bytearray(b"a"), b"b"], timeout=20.0)
        assert receipts[0].log_position == 0
        assert bodies(live) == [b"a", b"b"]


@pytest.mark.parametrize("size", [10, 100_000])
def test_threads_of_one_process_share_a_store(size: int) -> None:
    with LiveStore(files=9, file_bytes=4 << 20) as live:
        live.topic()
        start = threading.Barrier(4)
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                producer = live.producer(timeout=20.0)
                start.wait()
                for i in range(60):
                    body = b"%d-%d" % (number, i)
                    producer.send("orders", bytearray(body.ljust(size)) if i % 2 else body.ljust(size))
                    producer.send_batch("orders", [b"b" + body])
                    with producer.reserve("orders", 30) as slot:
                        slot.view[: len(body) + 1] = b"s" + body
                        slot.size = len(body) + 1
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        expected = [b"%d-%d" % (number, i) for number in range(4) for i in range(60)]
        assert sorted(body.rstrip() for body in bodies(live)) == sorted(
            [*expected, *(b"b" + body for body in expected), *(b"s" + body for body in expected)]
        )


@pytest.mark.parametrize(
    "ending", ["flush failed", "given up", "closed", pytest.param("the keeper died", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("way", ["send", "send_batch", "reserve", "append_together"])
def test_a_send_that_is_stored_and_fails_while_it_waits_says_that_it_may_be_stored(way: str, ending: str) -> None:
    confirms = ending == "the keeper died"  # else the sender flushes itself
    with LiveStore(flush_sync=True, confirms=confirms) as live, ThreadPoolExecutor(1) as threads:
        live.topic()
        live.keeper.keeper_beat()  # a living keeper, which only this test plays
        store = live.attach(writable=True)
        producer = live.producer(store, wait_durable=True, timeout=60.0)

        def send() -> None:
            if way == "reserve":
                with producer.reserve("orders", 1) as slot:
                    slot.view[:] = b"x"
            elif way == "append_together":
                producer.append_together((("orders", 0, b"x", b"", 0, 0, 0, b"", 0, 0, None),), None, 60.0)
            else:
                getattr(producer, way)("orders", b"x" if way == "send" else [b"x"])

        sending = threads.submit(send)
        until(lambda: live.store.log_end > 0 or sending.done())
        if ending == "flush failed":
            live.keeper.set_read_only(1)
        elif ending != "closed":
            live.keeper.set_retired()
        if ending in ("given up", "closed"):
            store.close()
        error = sending.exception(60.0)
        assert isinstance(error, _core.CoreError)
        assert error.maybe_stored is True  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["send", "send_oneway", "send_batch", "reserve"])
def test_what_a_log_refuses_may_be_carried_out_elsewhere(way: str) -> None:
    asked: list[Any] = []

    def refused(method: str, error: BaseException, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        asked.append((method, type(error), positional, named))
        if named.get("timeout") == 1.0:
            return None
        if named.get("timeout") == 2.0:
            raise LookupError("nowhere else")
        return (len(asked),)

    body: Any = {"send_batch": [b"x"], "reserve": 1}.get(way, b"x")
    with LiveStore() as live:
        live.topic()
        send = getattr(live.producer(refused=refused), way)
        slot = send("orders", body)
        if way == "reserve":
            slot.commit()
        assert not asked
        _core.ReplicaStore(live.store).fence_off("127.0.0.1:1", 1.0)
        assert send("orders", body, tag="a") == 1
        assert send(topic="orders", **{{"send_batch": "bodies", "reserve": "size"}.get(way, "body"): body}) == 2
        with raises_status(_core.NOT_MASTER):
            send("orders", body, timeout=1.0)
        with pytest.raises(LookupError, match="nowhere else"):
            send("orders", body, timeout=2.0)
        with pytest.raises(TypeError, match="returns None, or a tuple"):
            getattr(live.producer(refused=lambda *_: 1), way)("orders", body)
        assert all(method == way and issubclass(kind, _core.CoreError) for method, kind, *_ in asked)
        assert [each[2] for each in asked[:2]] == [("orders", body), ()]
        assert asked[0][3] == {"tag": "a"}
        assert asked[1][3]["topic"] == "orders"
        assert live.figures.stats()["claim_state"] == 0
    with LiveStore() as live, pytest.raises(TypeError, match="refused= is a callable"):
        live.producer(refused=1)


def test_waiting_for_the_disk_ends_with_the_flush_or_says_how_far_it_is() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic()
        live.keeper.keeper_beat()  # a living keeper, which only this test plays
        producer = live.producer(wait_durable=True, timeout=0.05)
        with raises_status(_core.TIMED_OUT, "only up to 0"):
            producer.send("orders", b"x")
        assert bodies(live) == []
        done = threading.Event()

        def keeper() -> None:
            while not done.is_set():
                live.keeper.keeper_beat()
                live.keeper.keep_flushed(0.01)
                live.keeper.flush()

        thread = threading.Thread(target=keeper)
        thread.start()
        try:
            receipt = producer.send("orders", b"y", timeout=20.0)
            assert live.store.durable_end > receipt.log_position
            producer.send_batch("orders", [b"z"], timeout=20.0)
            with producer.reserve("orders", 1, timeout=20.0) as slot:
                slot.view[:] = b"s"
            assert live.store.durable_end == live.store.log_end
        finally:
            done.set()
            thread.join()
        assert sorted(bodies(live)) == [b"s", b"x", b"y", b"z"]


def test_a_client_flushes_itself_when_the_keeper_is_dead() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic()
        live.producer(wait_durable=True).send("orders", b"x")
        assert live.store.durable_end == live.store.log_end
        assert bodies(live) == [b"x"]


# ---- slots -------------------------------------------------------------------------------------------------------


def test_a_slot_is_published_at_the_end_of_its_block() -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer()
        with producer.reserve("orders", 100_000, tag="t", key="k", properties={"a": "b"}, message_group="g") as slot:
            assert slot.receipt is None
            assert bodies(live) == []
            assert slot.view is slot.view
            slot.view[:5] = b"hello"
            slot.properties["c"] = "d"
            slot.size = 5
        (message,) = live.reader().poll()
        assert slot.receipt is not None
        assert (message.body, message.tag, message.key, message.message_group) == (b"hello", "t", "k", "g")
        assert (message.properties["a"], message.properties["c"]) == ("b", "d")
        assert slot.receipt.log_position == message.log_position
        assert message.verify()
        assert live.store.log_end == message.log_position + message.record_bytes


def test_a_slot_that_fails_gives_its_place_back() -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer()
        with pytest.raises(ZeroDivisionError), producer.reserve("orders", 1000):
            raise ZeroDivisionError
        with pytest.raises(_core.CoreError, match="use tag="), producer.reserve("orders", 10) as slot:
            slot.properties["TAGS"] = "x"
        slot = producer.reserve("orders", 10)
        slot.abort()
        slot.abort()
        with raises_status(_core.BAD_ARGUMENT, "already"):
            slot.commit()
        with raises_status(_core.BAD_ARGUMENT):
            slot.size = 1
        with pytest.raises(BufferError):
            _ = slot.view
        assert live.store.log_end == 0
        assert live.figures.stats()["claim_state"] == 0
        assert producer.send("orders", b"x", timeout=0.0).log_position == 0


def test_a_slot_cannot_grow() -> None:
    with LiveStore() as live:
        live.topic()
        with live.producer().reserve("orders", 10) as slot:
            with raises_status(_core.BAD_ARGUMENT, "room for 10"):
                slot.size = 11
            with pytest.raises(TypeError):
                slot.size = "1"  # type: ignore[assignment]
            with pytest.raises(TypeError):
                del slot.size
            with pytest.raises(TypeError):
                slot.properties = 7  # type: ignore[assignment]
            slot.properties = {"a": "b"}
            assert len(slot.view) == slot.size == 10


def test_a_slot_evicted_by_others_is_published_all_the_same() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        producer = live.producer()
        with producer.reserve("orders", 30_000, timeout=20.0) as slot:
            slot.view[:] = b"s" * 30_000
            other = live.attach(writable=True)
            live.producer(other).send("orders", b"x", timeout=20.0)
        assert bodies(live) == [b"x", b"s" * 30_000]
        assert live.figures.stats()["claims_evicted"] == 1
        position, found, stop = live.keeper.scan(0, live.store.log_end, 10)
        assert (position, stop, len(found)) == (live.store.log_end, "", 3)


@pytest.mark.parametrize("fail", [False, True])
def test_memory_that_is_still_viewed_is_never_given_away(fail: bool) -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        producer = live.producer(timeout=20.0)
        with pytest.warns(ResourceWarning, match="parked"), warnings.catch_warnings():
            warnings.simplefilter("always")
            try:
                with producer.reserve("orders", 1000) as slot:
                    slot.view[:4] = b"good"
                    slot.size = 4
                    kept = slot.view[:]
                    if fail:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert fail
        producer.send("orders", b"next")
        kept[:] = b"X" * 1000  # this harms only the parked place
        del slot
        assert bodies(live) == [b"next"] if fail else [b"good", b"next"]
        kept.release()
        del kept
        gc.collect()
        position, _, stop = live.keeper.scan(0, live.store.log_end, 10)
        assert (position, stop) == (live.store.log_end, "")
        assert live.figures.stats()["claim_state"] == 0


def test_a_forgotten_slot_warns_and_gives_its_place_back() -> None:
    with LiveStore() as live:
        live.topic()
        with pytest.warns(ResourceWarning, match="without commit"):
            live.producer().reserve("orders", 10)
            gc.collect()
        assert live.figures.stats()["claim_state"] == 0


def test_a_slot_may_outlive_its_store() -> None:
    with LiveStore() as live:
        live.topic()
        store = live.attach(writable=True)
        slot = live.producer(store).reserve("orders", 10)
        view = slot.view
        store.close()
        view[:] = b"0123456789"
        with raises_status(_core.BAD_ARGUMENT, "closed"):
            slot.commit()
        view.release()
        slot.abort()
        live.producer().send("orders", b"x", timeout=20.0)
        assert bodies(live) == [b"x"]


# ---- leaks -------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_sending_a_lot_leaks_nothing() -> None:
    with LiveStore(files=1, file_bytes=32 << 20) as live:
        live.topic()
        producer, body, properties = live.producer(), b"x" * 100, {"name": "value"}
        tag = "".join(("t", "a", "g"))  # an object of its own: a literal is shared with every module that has it

        def once() -> None:
            producer.send("orders", body, tag=tag, properties=properties)
            producer.send_batch("orders", [body, bytearray(body)], keys=["a", "b"], properties=properties)
            with producer.reserve("orders", 100, tag=tag) as slot:
                slot.view[:] = body
            with pytest.raises(_core.CoreError):
                producer.send("orders", body, tag="|", properties=properties)
            with pytest.raises(TypeError):
                producer.send_batch("orders", [body, tag])

        for _ in range(200):
            once()
        live.keeper.populate(0, 32 << 20)
        gc.collect()
        objects = [body, tag, properties, "orders", producer, live.store]
        counts = [sys.getrefcount(item) for item in objects]
        before = resident_bytes()
        for _ in range(10_000):
            once()
        assert [sys.getrefcount(item) for item in objects] == counts
        assert resident_bytes() - before < 4 << 20


# ---- what it says about itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["send", "send_oneway", "send_batch", "reserve"])
def test_each_keyword_of_a_signature_is_taken(name: str) -> None:
    with LiveStore() as live:
        method = getattr(live.producer(), name)
        by_place = {"topic", "body", "bodies", "size"}
        of_the_client = {"delay_level", "delay", "deliver_at"}  # the core hands these on
        for keyword in sorted(set(inspect.signature(method).parameters) - by_place - of_the_client):
            with pytest.raises(TypeError, match="missing required argument 'topic'"):
                method(**{keyword: None})
