"""The text of message traces: what Java writes is read, what we write Java reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.protocol.system_topics.trace import (
    END_TRANSACTION,
    PUB,
    SUB_AFTER,
    SUB_BEFORE,
    ContextCode,
    MessageType,
    Trace,
    decode_traces,
    encode_trace,
    trace_keys,
)

PUBLISHED = Trace(
    PUB, "ID1", 1700, "shop", "orders", "fruit", "k1 k2", "10.0.0.1:10911", "", 9, 3, MessageType.DELAY, "OFF1", True
)
BEFORE = Trace(SUB_BEFORE, "ID1", 1701, "billing", keys="k1", request_id="R1", retries=2)
AFTER = Trace(SUB_AFTER, "ID1", 1705, "billing", keys="k1", cost_ms=4, succeeded=False, request_id="R1", context_code=4)
ENDED = Trace(
    *(END_TRANSACTION, "ID1", 1706, "shop", "orders", "", "k1", "10.0.0.1:10911"),
    message_type=MessageType.TRANSACTION_COMMIT,
    transaction_id="T1",
    transaction_state="COMMIT_MESSAGE",
    is_from_check=True,
)


@pytest.mark.parametrize("trace", [PUBLISHED, BEFORE, AFTER, ENDED], ids=lambda trace: trace.kind)
def test_what_is_written_is_read_again(trace: Trace) -> None:
    assert decode_traces(encode_trace(trace)) == [trace]
    assert decode_traces(encode_trace(trace) * 2) == [trace, trace]


def shown(trace: Trace) -> str:
    return encode_trace(trace).replace("\x01", "|").replace("\x02", "$")


def test_fields_are_in_rocketmqs_order() -> None:
    assert shown(PUBLISHED) == ("Pub|1700|DefaultRegion|shop|orders|ID1|fruit|k1 k2|10.0.0.1:10911|9|3|3|OFF1|true$")
    assert shown(BEFORE) == "SubBefore|1701|DefaultRegion|billing|R1|ID1|2|k1$"
    assert shown(AFTER) == "SubAfter|R1|ID1|4|false|k1|4|1705|billing$"
    assert shown(ENDED) == (
        "EndTransaction|1706|DefaultRegion|shop|orders|ID1||k1|10.0.0.1:10911|2|T1|COMMIT_MESSAGE|true$"
    )


def test_a_last_field_is_never_empty_since_java_would_miss_it() -> None:
    for trace in (PUBLISHED, BEFORE, AFTER, ENDED):
        assert not encode_trace(trace._replace(keys="", tags="")).endswith("\x01\x02")
    assert decode_traces(encode_trace(BEFORE._replace(keys=""))) == [BEFORE._replace(keys="")]


@pytest.mark.parametrize(("fields", "end"), [(13, "true"), (14, "OFF|true"), (15, "OFF|true|10.0.0.2")])
def test_publishing_is_read_in_every_length_clients_have_written(fields: int, end: str) -> None:
    line = f"Pub|5|Region|g|t|ID|null|null|h:1|2|3|0|{end}"
    (trace,) = decode_traces(line.replace("|", "\x01") + "\x02")
    assert (trace.succeeded, trace.offset_message_id) == (True, "" if fields == 13 else "OFF")
    assert (trace.client_host, trace.tags) == ("10.0.0.2" if fields == 15 else "", "")


def test_short_ends_of_consuming_are_read_too() -> None:
    (trace,) = decode_traces("SubAfter\x01R\x01ID\x014\x01true\x01k\x02")
    assert (trace.message_id, trace.cost_ms, trace.context_code) == ("ID", 4, ContextCode.SUCCESS)


def test_what_is_no_trace_is_passed_over() -> None:
    good = encode_trace(AFTER)
    for noise in ("", "\x02", "Recall\x01a\x02", "Pub\x01x\x02", "SubBefore\x01-1\x01\x01\x01\x01\x01\x01\x02"):
        assert decode_traces(noise + good) == [AFTER]


def test_separators_in_a_text_break_no_record() -> None:
    assert [trace.keys for trace in decode_traces(encode_trace(AFTER._replace(keys="a\x01b\x02c")))] == ["a b c"]


def test_a_trace_is_found_by_its_id_and_every_key() -> None:
    assert trace_keys([PUBLISHED, BEFORE, AFTER._replace(message_id="")]) == ["ID1", "k1", "k2"]


@given(st.text())
def test_no_text_makes_the_reader_fail(text: str) -> None:
    for kind in (PUB, SUB_BEFORE, SUB_AFTER, END_TRANSACTION):
        decode_traces(text)
        decode_traces(kind + "\x01" + text.replace(" ", "\x01") + "\x02")
