"""HOST:PORT has one reader, which says what is wrong with a text that is none."""

import pytest

from shmq.addresses import Address, parse_address, parse_target
from shmq.errors import UsageError
from tests.tables.rows import every_row

WRONG_HOSTS = [
    ("a b", "no part of a host name"), (" h", "no part"), ("h\n", "no part"), ("-h", "no part"), ("a_/b", "no part"),
    ("h" * 300, "no host has this name"), (".".join(["h" * 60] * 5), "at most 253"), ("a..b", "no host has this name"),
    ("256.1.1.1", "no IPv4 address"), ("1.2.3.4.5", "no IPv4 address"), ("[::1::]", "no IPv6 address"),
    ("[h:1]", "no IPv6 address"), ("[fe80::1%a b]", "no interface"),
]  # fmt: skip
LONGEST = ".".join(["h" * 62] * 4) + "h"
RIGHT_HOSTS = ["h", "a_b-c.example.", "10.0.0.4", "[::1]", "[fe80::1%eth0.5]", "bücher.example", LONGEST]


def test_an_address_is_host_and_port_and_a_port_may_be_left_to_a_default() -> None:
    assert parse_address("localhost:0") == ("localhost", 0)
    assert parse_address("[::1]:10911") == ("::1", 10911)
    assert parse_address("host", port=10911) == ("host", 10911)
    assert parse_address("[::1]", port=1) == ("::1", 1)
    assert parse_address("host:5", port=1) == ("host", 5)


def test_an_address_is_written_as_it_is_read() -> None:
    for text in ("h:1", "[::1]:65535"):
        assert str(parse_address(text)) == text
    assert isinstance(parse_address("h:1"), Address)


@every_row(("host", "fault"), WRONG_HOSTS)
def test_a_host_that_cannot_be_is_refused_with_its_fault_and_a_name(host: str, fault: str) -> None:
    for read in (parse_address, parse_target):
        with pytest.raises(UsageError, match=fault) as caught:
            read(f"{host}:1", name="listen")
        assert str(caught.value).startswith("listen is ") and caught.value.hint


@every_row("host", RIGHT_HOSTS)
def test_a_host_that_can_be_is_taken(host: str) -> None:
    assert parse_address(f"{host}:1") == (host.strip("[]"), 1)


@every_row("text", ["h:65536", "h:-1", "h:\uff11", "h:", "h", ":1", "", "::1:5", "[::1]5", "[::1"])
def test_what_has_no_host_or_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT is needed"):
        parse_address(text)
