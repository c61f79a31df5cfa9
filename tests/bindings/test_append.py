"""Appending for others: every field as given, batches as they come from the wire, refused before anything is stored."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, STORE_HOST, LiveStore, raises_status
from tests.tables.rows import every_row

IPV4 = bytes((10, 1, 2, 3)) + struct.pack(">I", 40_000)
IPV6 = bytes(range(1, 17)) + struct.pack(">I", 40_001)
TEXTS = st.lists(st.tuples(st.sampled_from([b"TAGS", b"KEYS", b"WAIT", b"x"]), st.binary(max_size=8)), max_size=4).map(
    lambda pairs: b"".join(name + b"\1" + value.translate(None, b"\1\2") + b"\2" for name, value in pairs)
)


def stored(live: LiveStore, log_position: int) -> dict[str, Any]:
    """The record at a position, its CRCs proven."""
    record = live.log.record_bytes_at(log_position)
    assert record is not None
    assert _core.record_verify(record)
    return _core.record_decode(record)


def message(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    """One message of a batch as clients encode it."""
    head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, flag, len(body))
    return head + body + struct.pack(">H", len(properties)) + properties


def user_text(properties: bytes) -> bytes:
    """Stored property text without the record CRC and the separator before it."""
    assert properties[-20:-11] == b"__CRC32#\1"[:9]
    return properties[:-20].removesuffix(b"\2")


# ---- one record --------------------------------------------------------------------------------------------------


@every_row("host", [IPV4, IPV6])
@every_row("size", [0, 100, 20_000, 300_000])
def test_every_field_is_stored_as_given(host: bytes, size: int) -> None:
    with LiveStore() as live:
        live.topic()
        body = bytes(range(256)) * (size // 256 + 1)
        answer = live.producer().append(
            "orders", body[:size], b"TAGS\1fruit\2KEYS\1k\2", queue_id=2, flag=-5, sys_flag=1 | 8 | 32, born_ms=1234,
            born_host=host, reconsume_times=3, prepared_position=99,
        )  # fmt: skip
        queue_offset, log_position, store_ms, end = answer
        fields = stored(live, log_position)
        assert (queue_offset, end) == (0, log_position + fields["record_bytes"]) and end == live.store.log_end
        assert fields["body"] == body[:size]
        assert fields["sys_flag"] == 1 | 8 | (16 if len(host) == 20 else 0)
        assert (fields["queue_id"], fields["flag"] & 0xFFFFFFFF) == (2, 0xFFFFFFFB)
        assert (fields["born_ms"], fields["born_host"], fields["store_host"]) == (1234, host, STORE_HOST)
        assert (fields["reconsume_times"], fields["prepared_position"]) == (3, 99)
        assert (fields["queue_offset"], fields["store_ms"]) == (0, store_ms)
        assert user_text(fields["properties"]) == b"TAGS\1fruit\2KEYS\1k"


def test_without_options_a_record_is_a_local_one_of_now() -> None:
    with LiveStore() as live:
        live.topic()
        _, log_position, store_ms, _ = live.producer().append("orders", b"x", queue_id=0)
        fields = stored(live, log_position)
        assert (fields["born_ms"], fields["born_host"], fields["sys_flag"]) == (store_ms, STORE_HOST[:4] + bytes(4), 0)


def unit_tag(live: LiveStore, queue: int, offset: int) -> int:
    return int(struct.unpack(">QIq", live.keeper.units_read(queue, offset, 1))[2])


def test_the_unit_says_the_tag_or_what_the_caller_says_instead() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        producer = live.producer()
        due_ms = 1_900_000_000_000
        for options, expected in (
            ({}, _core.tag_hash("b")),  # a later pair replaces an earlier one
            ({"tag_code": None}, _core.tag_hash("b")),
            ({"tag_code": due_ms}, due_ms),
            ({"tag_code": -7}, -7),
            ({"tag_code": 0}, 0),
        ):
            offset, *_ = producer.append("orders", b"x", b"TAGS\1a\2KEYS\1k\2TAGS\1b", queue_id=0, **options)
            assert unit_tag(live, queue, offset) == expected
        offset, _, store_ms, _ = producer.append("orders", b"x", queue_id=0, tag_code=_core.UNIT_DELAY_BASE + 5000)
        assert unit_tag(live, queue, offset) == store_ms + 5000
        offset, *_ = producer.append("orders", b"x", b"KEYS\1TAGS", queue_id=0)
        assert unit_tag(live, queue, offset) == 0


@every_row("sys_flag", [4, 12, 4 | 1])
@every_row("size", [10, 50_000])
def test_prepared_and_rolled_back_messages_belong_to_no_queue(sys_flag: int, size: int) -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        producer = live.producer()
        producer.append("orders", b"first", queue_id=0)
        offset, log_position, _, end = producer.append("orders", bytes(size), queue_id=0, sys_flag=sys_flag)
        assert (offset, end) == (0, live.store.log_end)
        assert stored(live, log_position)["queue_offset"] == 0
        assert live.store.queue(queue)[1] == 1
        assert producer.append("orders", b"second", queue_id=0)[0] == 1
        assert [m.body for m in live.reader().poll()] == [b"first", b"second"]


def test_a_record_crc_of_before_is_left_out_and_the_rest_stays() -> None:
    with LiveStore() as live:
        live.topic()
        text = b"A\x011\2__CRC32#\x010123456789\2TAGS\1t\2"
        _, log_position, _, _ = live.producer().append("orders", b"x", text, queue_id=0)
        assert user_text(stored(live, log_position)["properties"]) == b"A\x011\2TAGS\1t"


def test_any_queue_the_topic_has_may_be_named_whatever_its_permission() -> None:
    with LiveStore() as live:
        live.tables.topic_put("orders", read_queues=4, write_queues=2, perm=4)
        producer = live.producer()
        assert producer.append("orders", b"x", queue_id=3)[0] == 0
        for wrong in (4, -1, 1 << 40):
            with raises_status(_core.NO_QUEUE, "has 4 queues"):
                producer.append("orders", b"x", queue_id=wrong)
        with raises_status(_core.NO_TOPIC):
            producer.append("other", b"x", queue_id=0)


@every_row(
    ("options", "status", "text"),
    [
        ({"born_host": b"123"}, _core.BAD_ARGUMENT, "3 bytes"),
        ({"flag": 1 << 32}, _core.BAD_ARGUMENT, "flag"),
        ({"flag": -(1 << 31) - 1}, _core.BAD_ARGUMENT, "flag"),
        ({"born_ms": 1 << 63}, _core.BAD_ARGUMENT, "born_ms"),
        ({"tag_code": 1 << 64}, _core.BAD_ARGUMENT, "tag_code"),
        ({"properties": bytes(32_748)}, _core.TOO_LARGE, "4194304 bytes of body and 32767 of properties"),
        ({"body": bytes((4 << 20) + 1)}, _core.TOO_LARGE, "4194304"),
        ({"body": bytes(2 << 20)}, _core.TOO_LARGE, str(FILE_BYTES)),
    ],
)
def test_what_a_record_cannot_hold_is_refused(options: dict[str, Any], status: int, text: str) -> None:
    with LiveStore() as live:
        live.topic()
        with raises_status(status, text):
            live.producer().append("orders", **({"body": b"x", "queue_id": 0} | options))
        assert live.store.log_end == 0


def test_wrong_calls_are_type_errors() -> None:
    with LiveStore() as live:
        live.topic()
        append: Any = live.producer().append
        for args, options in (
            (("orders", b"x"), {}),
            (("orders",), {"queue_id": 0}),
            (("orders", b"x", b"", 1), {"queue_id": 0}),
            (("orders", b"x"), {"queue_id": 0, "nonsense": 1}),
            (("orders", b"x"), {"queue_id": 0, "topic": "orders"}),
            (("orders", "x"), {"queue_id": 0}),
            (("orders", b"x", "text"), {"queue_id": 0}),
            ((b"orders", b"x"), {"queue_id": 0}),
            (("orders", b"x"), {"queue_id": "0"}),
            (("orders", b"x"), {"queue_id": 0, "born_host": "10.0.0.1"}),
        ):
            with pytest.raises(TypeError):
                append(*args, **options)
        assert live.store.log_end == 0


# ---- batches -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=300), TEXTS, st.integers(-(1 << 31), (1 << 31) - 1)), min_size=1, max_size=40)
)
def test_a_batch_is_stored_as_its_records_one_by_one_would_be(records: list[tuple[bytes, bytes, int]]) -> None:
    with LiveStore() as live:
        one, other, third, _ = live.topic()
        producer = live.producer()
        shared: dict[str, Any] = {"sys_flag": 1, "born_ms": 77, "born_host": IPV6, "reconsume_times": 2}
        single = [
            producer.append("orders", body, text + b"X\1y", queue_id=0, flag=flag, **shared)
            for body, text, flag in records
        ]
        triples = [(body, text + b"X\1y", flag) for body, text, flag in records]
        batch = producer.append_batch("orders", 1, triples, **shared)
        wire = b"".join(message(*record) for record in records)
        encoded = producer.append_encoded_batch("orders", 2, wire, properties_extra=b"X\1y", **shared)
        for answers in (batch, encoded):
            assert [answer[0] for answer in answers] == list(range(len(records)))
            assert all(left[3] == right[1] for left, right in itertools.pairwise(answers))
            for answer, alone in zip(answers, single, strict=True):
                ours, theirs = stored(live, answer[1]), stored(live, alone[1])
                assert answer[3] - answer[1] == alone[3] - alone[1] == ours["record_bytes"]
                for name in ("body", "flag", "sys_flag", "born_ms", "born_host", "reconsume_times", "queue_offset"):
                    assert ours[name] == theirs[name]
                assert user_text(ours["properties"]) == user_text(theirs["properties"])
        for offset in range(len(records)):
            assert unit_tag(live, one, offset) == unit_tag(live, other, offset) == unit_tag(live, third, offset)


def test_long_batches_are_stored_whole_and_in_order() -> None:
    with LiveStore(files=4) as live:
        live.topic(queues=1)
        bodies = [b"%d" % i + bytes(20_000 if i % 100 == 7 else 50) for i in range(1500)]
        producer = live.producer()
        answers = producer.append_encoded_batch("orders", 0, b"".join(map(message, bodies)))
        again = producer.append_batch("orders", 0, [(body, b"", 0) for body in bodies])
        assert [answer[0] for answer in answers + again] == list(range(3000))
        assert all(left[3] == right[1] for part in (answers, again) for left, right in itertools.pairwise(part))
        found: list[bytes] = []
        reader = live.reader()
        while batch := reader.poll(500):
            assert all(message.verify() for message in batch)
            found += [message.body for message in batch]
        assert found == bodies + bodies


def test_a_record_crc_in_a_batch_is_left_out() -> None:
    with LiveStore() as live:
        live.topic()
        text = b"A\x011\2__CRC32#\x010123456789\2"
        producer = live.producer()
        ((_, first, *_),) = producer.append_batch("orders", 0, [(b"x", text, 0)])
        ((_, second, *_),) = producer.append_encoded_batch("orders", 0, message(b"x", text), properties_extra=text)
        assert user_text(stored(live, first)["properties"]) == b"A\x011"
        assert user_text(stored(live, second)["properties"]) == b"A\x011\2A\x011"


GOOD = message(b"body", b"K\1v")


@every_row(
    ("batch", "text"),
    [
        (b"", "no record"),
        (GOOD + b"\0" * 21, "record 1 of the batch: the bytes left are fewer"),
        (GOOD + struct.pack(">i", 1000) + GOOD[4:], "record 1 of the batch: its total size"),
        (GOOD + struct.pack(">i", -1) + GOOD[4:], "record 1 of the batch: its total size"),
        (GOOD + struct.pack(">i", 0) + GOOD[4:], "record 1 of the batch: its total size"),
        (GOOD + GOOD[:16] + struct.pack(">i", 8) + GOOD[20:], "record 1 of the batch: its body is longer"),
        (GOOD + GOOD[:16] + struct.pack(">i", -1) + GOOD[20:], "record 1 of the batch: its body is longer"),
        (GOOD + GOOD[:24] + struct.pack(">H", 4) + GOOD[26:], "record 1 of the batch: its lengths do not add up"),
        (GOOD + GOOD[:24] + struct.pack(">H", 2) + GOOD[26:], "record 1 of the batch: its lengths do not add up"),
    ],
)
def test_a_batch_with_a_wrong_length_stores_nothing_and_names_the_record(batch: bytes, text: str) -> None:
    with LiveStore() as live:
        live.topic()
        with raises_status(_core.BAD_ARGUMENT, text):
            live.producer().append_encoded_batch("orders", 0, batch)
        assert live.store.log_end == 0


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_crash_the_splitting_and_what_it_takes_is_what_was_there(data: st.DataObject) -> None:
    wire = bytearray(b"".join(data.draw(st.lists(st.binary(max_size=20).map(message), min_size=1, max_size=4))))
    for _ in range(data.draw(st.integers(0, 3))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.sampled_from([0, 1, 4, 22, 127, 128, 255]))
    wire = wire[: data.draw(st.integers(0, len(wire)))]
    with LiveStore() as live:
        live.topic()
        try:
            answers = live.producer().append_encoded_batch("orders", 0, bytes(wire))
        except _core.CoreError as error:
            assert error.args[0] == _core.BAD_ARGUMENT
            assert live.store.log_end == 0
        else:
            assert len(wire) == sum(22 + len(stored(live, at)["body"]) + text_bytes(live, at) for _, at, *_ in answers)


def text_bytes(live: LiveStore, log_position: int) -> int:
    """Bytes of the property text as it came: no generated text ends with a separator."""
    return len(stored(live, log_position)["properties"][:-20].removesuffix(b"\2"))


@every_row(
    ("records", "kind"),
    [
        ([(b"x", b"")], TypeError),
        ([(b"x", b"", "0")], TypeError),
        ([("x", b"", 0)], TypeError),
        ([[b"x", b"", 0]], TypeError),
        (7, TypeError),
        ([], _core.CoreError),
        ([(b"x", b"", 0), (b"x", b"", 1 << 32)], _core.CoreError),
        ([(b"x", b"", 0), (b"x", bytes(32_768), 0)], _core.CoreError),
        ([(b"x", b"", 0), (b"x", bytes(32_750), 0)], _core.CoreError),
        ([(b"x", b"", 0), (bytes((4 << 20) + 1), b"", 0)], _core.CoreError),
        ([(bytes(3 << 20), b"", 0), (bytes(3 << 20), b"", 0)], _core.CoreError),
    ],
)
def test_records_that_cannot_be_stored_keep_the_others_out(records: Any, kind: type[Exception]) -> None:
    with LiveStore(files=9) as live:
        live.topic()
        with pytest.raises(kind):
            live.producer().append_batch("orders", 0, records)
        assert live.store.log_end == 0


def test_a_batch_is_no_part_of_a_transaction_and_its_body_no_buffer_that_may_change() -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer()
        with raises_status(_core.BAD_ARGUMENT, "transaction"):
            producer.append_batch("orders", 0, [(b"x", b"", 0)], sys_flag=4)
        with pytest.raises(TypeError, match="read-only"):
            producer.append_encoded_batch("orders", 0, bytearray(GOOD))
        assert live.store.log_end == 0
        assert len(producer.append_encoded_batch("orders", 0, memoryview(GOOD + GOOD))) == 2
