"""The table of requests is complete, and holds header fields to what RocketMQ needs."""

import pytest

from shmq.errors import ProtocolError
from shmq.protocol.codes import Request
from shmq.protocol.request_table import REQUESTS, FieldKind, RequestClass, check_fields
from tests.tables.rows import every_row

# Declared by RocketMQ 4.9.8 (95) or 5.3.3 (158), counted in the constants of their RequestCode classes.
ROCKETMQ_REQUESTS = 162
SHMQ_REQUESTS = range(30_000, 31_000)
PARTIES = {"client", "broker", "slave", "namesrv", "controller", "local"}
PULL = {
    "consumerGroup": "g", "topic": "t", "queueId": "0", "queueOffset": "-1", "maxMsgNums": "32", "sysFlag": "3",
    "commitOffset": "0", "suspendTimeoutMillis": "15000", "subVersion": "9223372036854775807",
}  # fmt: skip


def test_every_request_code_has_one_row_and_every_row_a_code() -> None:
    assert set(REQUESTS) == set(Request)
    assert sum(spec.code not in SHMQ_REQUESTS for spec in REQUESTS.values()) == ROCKETMQ_REQUESTS


def test_every_row_names_known_parties_and_each_field_once() -> None:
    for spec in REQUESTS.values():
        assert {spec.asks, spec.answers} <= PARTIES
        names = [field.name for field in spec.fields]
        assert len(names) == len(set(names)), spec


def test_remote_changes_of_accounts_and_of_the_brokers_set_are_refused() -> None:
    dangerous = {*range(50, 54), 301, 302, 902, 903, 1009, 1011, *range(3001, 3011)}
    assert {REQUESTS[code].request_class for code in dangerous} == {RequestClass.REFUSED}


def test_rows_that_go_on_in_a_second_line_are_read_to_their_end() -> None:
    fields = {field.name: field for field in REQUESTS[Request.PULL_MESSAGE].fields}
    assert len(fields) == 14
    assert fields["suspendTimeoutMillis"].kind is FieldKind.LONG and fields["suspendTimeoutMillis"].is_mandatory
    assert not fields["proxyFrowardClientId"].is_mandatory


def test_a_request_with_all_mandatory_fields_passes() -> None:
    check_fields(Request.PULL_MESSAGE, PULL)
    check_fields(Request.PULL_MESSAGE, PULL | {"topic": "", "maxMsgBytes": "", "unknown": "x", "bname": "b"})
    check_fields(Request.HEART_BEAT, {})
    check_fields(987654, {"anything": "x"})


@every_row("name", PULL)
def test_a_missing_mandatory_field_is_refused_with_rocketmqs_words(name: str) -> None:
    with pytest.raises(ProtocolError, match=f"^the custom field <{name}> is null$"):
        check_fields(Request.PULL_MESSAGE, {key: value for key, value in PULL.items() if key != name})


@every_row("value", ["", "x", "1.0", "1e3", " 1", "٣", "2147483648", "-2147483649", "9" * 5000])
def test_a_number_that_is_none_or_too_large_is_refused(value: str) -> None:
    with pytest.raises(ProtocolError, match="queueId"):
        check_fields(Request.PULL_MESSAGE, PULL | {"queueId": value})


@pytest.mark.parametrize("value", ["9223372036854775808", "-9223372036854775809", "x"])
def test_a_long_has_64_bits(value: str) -> None:
    with pytest.raises(ProtocolError, match="queueOffset"):
        check_fields(Request.PULL_MESSAGE, PULL | {"queueOffset": value})
