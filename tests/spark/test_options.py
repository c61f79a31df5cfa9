"""Options: what is not known, not possible or contradictory is said, with the option and the cure."""

import pytest

from shmq.errors import UsageError
from shmq.spark.options import Options, ignored_in_batch, parse_options
from tests.tables.rows import every_row


def test_names_have_no_case_and_defaults_read_everything() -> None:
    assert parse_options({"TOPIC": "orders"}) == Options(topics=("orders",))
    assert parse_options({"topics": "a, b,a"}).topics == ("a", "b")


@every_row(
    ("given", "words"),
    [
        ({"topc": "orders"}, ["topc", "did you mean topic"]),
        ({"topic": "orders", "quite_else": "1"}, ["quite_else", "options are"]),
        ({"subscribe": "orders"}, ["subscribe", "topic or topics"]),
        ({"topic": "a", "kafka.group.id": "g"}, ["kafka.group.id", "commitGroup"]),
        ({"topic": "a", "assign": '{"a": [0]}'}, ["exclude"]),
        ({"assign": '{"a": [0]}', "queueIds": "1"}, ["assign and queueIds exclude"]),
        ({"assign": '{"a": []}'}, ["assign", '{"orders": [0, 2]']),
        ({"assign": '{"a": [-1]}'}, ["assign"]),
        ({"assign": "a"}, ["assign"]),
        ({"assign": '{"bad name": [0]}'}, ["option assign"]),
        ({}, ["which topics"]),
        ({"topic": "a", "topics": "a,b"}, ["exclude"]),
        ({"topic": "bad name"}, ["option topic"]),
        ({"topicPattern": "("}, ["topicPattern", "regular expression"]),
        ({"topic": "a", "view": "message"}, ["view", "messages"]),
        ({"topic": "a", "access": "tcp"}, ["access", "auto, shm or remote"]),
        ({"topic": "a", "store": "rocketmq://h:1", "access": "shm"}, ["exclude"]),
        ({"topic": "a", "nameserver": "host:port"}, ["option nameserver"]),
        ({"topic": "a", "startingOffsets": "committed"}, ["group"]),
        ({"topic": "a", "startingOffsets": "newest"}, ["startingOffsets", "earliest"]),
        ({"topic": "a", "startingOffsets": '{"a": {"0": -3}}'}, ["startingOffsets"]),
        ({"topic": "a", "startingOffsets": '{"a": {"0": true}}'}, ["startingOffsets"]),
        ({"topic": "a", "endingOffsets": "[1]"}, ["endingOffsets"]),
        ({"topic": "a", "startingOffsets": "earliest", "startingTimestamp": "1"}, ["exclude"]),
        ({"topic": "a", "startingTimestamp": "1", "startingOffsetsByTimestamp": '{"a": {"0": 1}}'}, ["exclude"]),
        ({"topic": "a", "startingOffsetsByTimestamp": '{"a": {"0": "1"}}'}, ["startingOffsetsByTimestamp", "1970"]),
        ({"topic": "a", "endingOffsetsByTimestamp": "latest"}, ["endingOffsetsByTimestamp"]),
        ({"topic": "a", "startingTimestamp": "yesterday"}, ["startingTimestamp", "2026"]),
        ({"topic": "a", "startingTimestamp": "2", "endingTimestamp": "1"}, ["swap"]),
        ({"topic": "a", "batchRows": "0"}, ["batchRows", "1 to 65536"]),
        ({"topic": "a", "batchBytes": "9g"}, ["batchBytes"]),
        ({"topic": "a", "queueIds": "0,x"}, ["queueIds"]),
        ({"topic": "a", "tags": "a | b"}, ["tags", "||"]),
        ({"topic": "a", "verifyCrc": "yes"}, ["verifyCrc", "true or false"]),
        ({"topic": "a", "group": "bad group"}, ["option group"]),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options(given)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_offsets_are_read_with_and_without_a_broker_above_them() -> None:
    for text in ('{"a": {"0": 5, "1": -2, "2": -1}}', '{"a": {"broker-a": {"0": 5, "1": -2, "2": -1}}}'):
        assert parse_options({"topic": "a", "startingOffsets": text}).start == {"a": {0: 5, 1: -2, 2: -1}}


def test_sizes_and_times_have_units() -> None:
    options = parse_options(
        {
            "topic": "a",
            "maxBytesPerPartition": "64m",
            "batchBytes": "512k",
            "startingTimestamp": "2026-11-20T08:00:00Z",
            "endingTimestamp": "1900000000000",
        }
    )
    assert (options.partition_bytes_max, options.batch_bytes) == (64 << 20, 512 << 10)
    assert (options.start_ms, options.end_ms) == (1_795_161_600_000, 1_900_000_000_000)


def test_any_time_before_1970_is_the_beginning_and_no_time_is_too_late() -> None:
    for text in ("1900-01-01", "0001-01-01", "-1", "-2208988800000", "1969-12-31T23:59:59Z"):
        assert parse_options({"topic": "a", "startingTimestamp": text}).start_ms == 0, text
    for text in ("9999-12-31T23:59:59.9999999-23:00", "9" * 5_000, str(1 << 63)):
        late = parse_options({"topic": "a", "endingTimestamp": text}).end_ms
        assert late is not None and 1 << 47 < late < 1 << 63, text
    options = parse_options({"topic": "a", "startingOffsetsByTimestamp": '{"a": {"0": -1}}'})
    assert options.start_times == {"a": {0: -1}}, "the search takes it"


def test_queues_are_assigned_by_topic() -> None:
    options = parse_options({"assign": '{"a": [2, 0, 2], "b": [1]}'})
    assert options.topics == ("a", "b")
    assert (options.wanted_queues("a"), options.wanted_queues("b"), options.wanted_queues("c")) == ((2, 0), (1,), ())


def test_the_environment_names_a_store_only_where_no_option_names_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMQ_URL", "shmq://from-environment")
    assert parse_options({"topic": "a"}).store == "shmq://from-environment"
    assert parse_options({"topic": "a", "store": "mine"}).store == "mine"
    assert parse_options({"topic": "a", "nameserver": "h:9876"}).store is None
    monkeypatch.setenv("SHMQ_URL", "rocketmq://h:x")
    with pytest.raises(UsageError, match="option store"):
        parse_options({"topic": "a"})


def test_what_means_something_to_streams_only_is_reported_to_a_batch() -> None:
    assert ignored_in_batch({"topic": "a", "COMMITGROUP": "g", "maxOffsetsPerTrigger": "1"}) == [
        "maxOffsetsPerTrigger",
        "commitGroup",
    ]
    assert parse_options({"topic": "a"}).partition_bytes_max == 1 << 30
    assert parse_options({"topic": "a"}, stream=True).partition_bytes_max == 128 << 20
