"""Options: what is not known, not possible or contradictory is said, with the option and the cure."""

import pytest

from shmq.errors import UsageError
from shmq.spark.options import Options, parse_options


def test_names_have_no_case_and_defaults_read_everything() -> None:
    assert parse_options({"TOPIC": "orders"}) == Options(topics=("orders",))
    assert parse_options({"topics": "a, b,a"}).topics == ("a", "b")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"topc": "orders"}, ["topc", "did you mean topic"]),
        ({"topic": "orders", "quite_else": "1"}, ["quite_else", "options are"]),
        ({"subscribe": "orders"}, ["subscribe", "topic or topics"]),
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
