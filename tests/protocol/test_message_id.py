"""One reader of offset message ids: what is none has no place, whatever else it is."""

from shmq.protocol.message_id import MessagePlace, message_id_text, message_place, position_in
from tests.tables.rows import every_row

IPV4 = bytes((127, 0, 0, 1)) + (10911).to_bytes(4)
IPV6 = bytes(15) + bytes((1,)) + (10911).to_bytes(4)


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
