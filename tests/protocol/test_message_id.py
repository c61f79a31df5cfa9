"""Offset message ids: what is none has no place, whatever else it is. Unique keys say host, process and time."""

from shmq.protocol.message_id import (
    MessagePlace,
    UniqueIds,
    message_id_text,
    message_place,
    month_of,
    position_in,
)
from tests.tables.rows import every_row

IPV4 = bytes((127, 0, 0, 1)) + (10911).to_bytes(4)
IPV6 = bytes(15) + bytes((1,)) + (10911).to_bytes(4)
NOW_MS = 1_795_166_223_123
IDS = UniqueIds("10.0.0.7", pid=0x12345, salt=7)


@every_row(("host", "text"), [(IPV4, "127.0.0.1"), (IPV6, "::1")])
def test_an_id_says_host_port_and_log_position_in_either_case(host: bytes, text: str) -> None:
    made = message_id_text(host, 255)
    for each in (made, made.lower()):
        assert message_place(each) == MessagePlace(text, 10911, 255)
        assert position_in(each) == 255


def test_the_last_position_is_the_largest_of_a_log() -> None:
    largest = message_id_text(IPV4, (1 << 63) - 1)
    assert position_in(largest) == (1 << 63) - 1
    beyond = message_id_text(IPV4, 1 << 63)
    assert position_in(beyond) is None and message_place(beyond) is None


@every_row("text", ["", "FF", "x" * 32, "-" + "F" * 31, " " * 32, "7F000001" * 3, "\uff11" * 32, "0" * 48])
def test_what_is_no_id_names_no_position(text: str) -> None:
    assert position_in(text) is None and message_place(text) is None


def test_a_port_that_none_can_have_names_no_broker() -> None:
    text = message_id_text(bytes((127, 0, 0, 1)) + (65536).to_bytes(4), 7)
    assert message_place(text) is None


def made_ms(message_id: str, now_ms: int = NOW_MS) -> int:
    """When an id was made: RocketMQ counts from the start of the month in which it was."""
    return month_of(now_ms).start + int(message_id[-12:-4], 16)


def test_an_id_says_host_process_and_time_as_rocketmqs_do() -> None:
    made = IDS.next(NOW_MS)
    assert len(made) == 32 and made == made.upper()
    assert made.startswith("0A000007" + "2345" + "00000007")
    assert made_ms(made) == NOW_MS


def test_ids_of_one_millisecond_differ() -> None:
    assert len({IDS.next(NOW_MS) for _ in range(1000)}) == 1000


def test_an_id_of_last_month_counts_from_the_start_of_that_month() -> None:
    last = month_of(NOW_MS).start - 1000
    assert made_ms(IDS.next(last), last) == last


def test_an_ipv6_host_makes_a_longer_id() -> None:
    assert len(UniqueIds("::1").next(NOW_MS)) == 56
