"""Options of the sink: what is not known, not possible or contradictory is said, with the option and the cure."""

import pytest

from shmq.errors import UsageError
from shmq.spark.sink.options import SinkOptions, parse_sink_options
from tests.tables.rows import every_row


def test_names_have_no_case_and_the_engines_own_option_passes() -> None:
    assert parse_sink_options({"TOPIC": "orders", "checkpointLocation": "/x"}) == SinkOptions(topic="orders")


@every_row(
    ("given", "words"),
    [
        ({"topc": "orders"}, ["topc", "did you mean topic"]),
        ({"quite_else": "1"}, ["quite_else", "options are"]),
        ({"kafka.bootstrap.servers": "x"}, ["store or nameserver"]),
        ({"topics": "a,b"}, ["a column topic"]),
        ({"sendBatch": "100"}, ["sendBatch", "batchBytes"]),
        ({"topic": "bad name"}, ["option topic"]),
        ({"topic": "rmq_sys_wheel_timer"}, ["broker's own"]),
        ({"guarantee": "transaction"}, ["guarantee", "did you mean transactional"]),
        ({"compression": "gzip"}, ["compression", "zstd"]),
        ({"compression": "zstd", "guarantee": "idempotent"}, ["leave option compression out"]),
        ({"nameserver": "host:x"}, ["nameserver"]),
        ({"access": "tcp"}, ["access", "remote"]),
        ({"store": "rocketmq://h:9876", "access": "shm"}, ["exclude each other"]),
        ({"timeoutMs": "0"}, ["timeoutMs", "1 to 3600000"]),
        ({"batchBytes": "9g"}, ["batchBytes"]),
        ({"sendThreads": "many"}, ["sendThreads", "1 to 256"]),
        ({"writerId": "w"}, ["writerId", "guarantee=transactional"]),
        ({"batchId": "7", "guarantee": "idempotent"}, ["batchId", "writerId"]),
        ({"writerId": "a b", "guarantee": "idempotent"}, ["writerId", "letters"]),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(given: dict[str, str], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink_options(given)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_stream_counts_its_batches_itself() -> None:
    with pytest.raises(UsageError, match="leave option batchId out"):
        parse_sink_options({"guarantee": "idempotent", "writerId": "w", "batchId": "7"}, stream=True)
