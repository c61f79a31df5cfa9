"""RocketMQ's JSON: number keys, object keys, quotes of all kinds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import ProtocolError, UsageError
from shmq.protocol.dialect import DEPTH_MAX, MessageQueue, dumps, loads
from tests.tables.rows import every_row

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT64 = st.integers(-(2**63), 2**63 - 1)
QUEUES = st.builds(MessageQueue, brokerName=TEXT, queueId=INT64, topic=TEXT)
VALUES = st.recursive(
    st.none() | st.booleans() | INT64 | TEXT | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | INT64 | QUEUES, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_a_value_survives_the_dialect(value: object) -> None:
    assert loads(dumps(value)) == value


@given(VALUES)
def test_standard_json_is_read_as_the_standard_reads_it(value: object) -> None:
    text = json.dumps(value, default=str, skipkeys=True)
    assert loads(text.encode()) == json.loads(text)


def test_number_keys_are_written_without_quotes_or_blanks() -> None:
    assert dumps({1: "127.0.0.1:10911", 0: "b"}) == b'{0:"b",1:"127.0.0.1:10911"}'


def test_queue_keys_are_written_as_objects_in_rocketmqs_order() -> None:
    # The live answer to 202 in the reference, §18, with its numbers filled in.
    queue = MessageQueue(brokerName="broker-a", queueId=3, topic="TopicTest")
    body = {"offsetTable": {queue: {"maxOffset": 2, "minOffset": 0, "lastUpdateTimestamp": 5}}}
    golden = (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"TopicTest"}:'
        b'{"lastUpdateTimestamp":5,"maxOffset":2,"minOffset":0}}}'
    )
    assert dumps(body) == golden
    assert loads(golden) == body


@every_row(
    ("text", "value"),
    [
        (b"{0:15,1:7}", {0: 15, 1: 7}),
        (b"{-1:2}", {-1: 2}),
        (b"{'a':'b\\'c'}", {"a": "b'c"}),
        (b"{ a : [ ] , $b_1 : { } }", {"a": [], "$b_1": {}}),
        (b'"\\ud83d\\ude00\\u0041\\n"', "\U0001f600A\n"),
        ('"ä"'.encode(), "ä"),
        (b"[1,-2,3.5,1e2,true,false,null]", [1, -2, 3.5, 100.0, True, False, None]),
        (b" 9223372036854775807 ", 2**63 - 1),
    ],
)
def test_the_dialect_is_read(text: bytes, value: object) -> None:
    assert loads(text) == value


@every_row(
    "text",
    [
        b"",
        b"{",
        b"[1,]",
        b"[1 2]",
        b"{,}",
        b"{1.5:2}",
        b"{true}",
        b"{[1]:2}",
        b'{{"a":1}:2}',
        b'{{"brokerName":"b","queueId":"x","topic":"t"}:2}',
        b"{1:2}x",
        b'"open',
        b'"tab\there"',
        b'"\\x41"',
        b'"\\ud800"',
        b'"\\ud800\\u0041"',
        b'"\\udc00"',
        b'"\\u12g4"',
        b"NaN",
        b"Infinity",
        b"+1",
        b"01",
        b"1.",
        b"1x",
        b"-",
        b"1e999",
        b"9223372036854775808",
        b"9" * 5000,
        b"\xff",
        b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2),
        b"{" * 100_000,
    ],
)
def test_what_is_not_the_dialect_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads(text)


def test_nesting_up_to_the_limit_is_read() -> None:
    assert loads(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)


@given(st.binary(max_size=60) | st.text("{}[]:,\"'\\u0123ab-.eE \n", max_size=60).map(str.encode))
def test_any_bytes_give_a_value_or_a_protocol_error(data: bytes) -> None:
    try:
        loads(data)
    except ProtocolError:
        return


@every_row("value", [{(1, 2): 3}, {True: 1}, {1.5: 2}, object(), float("nan"), [float("inf")], "\ud800"])
def test_what_the_dialect_cannot_carry_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        dumps(value)
