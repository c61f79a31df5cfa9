"""Receipts, lists of offsets and batches of acknowledgements, as RocketMQ writes and reads them."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import ProtocolError
from shmq.message import origin_topic, pop_names, pop_retry_flag, popped_topic, retry_topic, retry_topic_of
from shmq.protocol.pop import (
    BatchAck,
    Popped,
    Receipt,
    bit_set,
    offset_fields,
    parse_receipt,
    parse_start_offsets,
)
from tests.tables.rows import every_row

RECEIPT = Receipt(7, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 2, 9)


def test_a_receipt_has_eight_words() -> None:
    assert str(RECEIPT) == "7 1700000000000 60000 3 1 broker-a 2 9"
    assert parse_receipt(str(RECEIPT)) == RECEIPT
    assert not RECEIPT.is_ordered
    assert RECEIPT._replace(revive_queue=999).is_ordered


@every_row(
    "text",
    ["", "7", "7 1 2 3 1 b 2", "7 1 2 3 1 b 2 9 9", "-7 1 2 3 1 b 2 9", "7 1 2 3 5 b 2 9", "7 1 2 x 1 b 2 9", "7 " * 8],
)
def test_what_is_no_receipt_is_an_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="no receipt"):
        parse_receipt(text)


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    for read in (parse_receipt, parse_start_offsets):
        try:
            read(text)
        except ProtocolError:
            continue


def test_offsets_of_a_reply_are_as_rocketmq_writes_them() -> None:
    queues = [Popped("0", 3, 5, [5, 7], {5: 2}), Popped("1", 0, 9, [9])]
    fields = offset_fields(queues, is_ordered=True)
    assert fields == {
        "startOffsetInfo": "0 3 5;1 0 9",
        "msgOffsetInfo": "0 3 5,7;1 0 9",
        "orderCountInfo": "0 qo3%5 2;0 3 0;1 0 0",
    }
    assert parse_start_offsets(fields["startOffsetInfo"]) == {("0", 3): 5, ("1", 0): 9}
    assert "orderCountInfo" not in offset_fields(queues)


def test_a_retry_flag_names_the_topic_a_message_lies_in() -> None:
    assert retry_topic_of("g", "t") == "%RETRY%g+t"
    assert [popped_topic("g", "t", flag) for flag in "012"] == ["t", "%RETRY%g_t", "%RETRY%g+t"]
    assert [pop_retry_flag(topic) for topic in ("t", "%RETRY%g_t", "%RETRY%g+t")] == ["0", "1", "2"]
    assert [origin_topic("g", topic) for topic in ("t", "%RETRY%g_t", "%RETRY%g+t")] == ["t"] * 3
    for topic in ("%RETRY%h_t", "%RETRY%h+t", "%RETRY%g_h+t", "%RETRY%g", "%RETRY%g_", "%RETRY%g+"):
        assert origin_topic("g", topic) == topic, "it is another group's, or nothing was popped there"


WORDS = st.text(string.ascii_letters + "%|_-", min_size=1, max_size=9)


@given(WORDS, WORDS)
def test_a_retry_topic_says_of_which_group_and_topic_it_is(group: str, topic: str) -> None:
    """So no two of them share one, and none has the name of the retries of a group that does not pop."""
    name = retry_topic_of(group, topic)
    assert (pop_names(name), origin_topic(group, name), pop_retry_flag(name)) == ((group, topic), topic, "2")
    assert pop_names(retry_topic(f"{group}_{topic}")) == pop_names(topic) == ("", "")


def test_acknowledged_offsets_are_a_set_of_bits() -> None:
    assert BatchAck(so=10, b=bit_set(10, [10, 12, 41])).offsets == [10, 12, 41]
    assert BatchAck(so=10, b="BQ==").offsets == [10, 12]  # Java's BitSet.toByteArray() of bits 0 and 2
    assert BatchAck(so=10).offsets == []


@pytest.mark.parametrize("bits", ["%", "A" * 400])
def test_a_set_of_bits_that_is_none_is_an_error(bits: str) -> None:
    with pytest.raises(ProtocolError, match="set of"):
        _ = BatchAck(b=bits).offsets
