"""Heartbeats of clients that write enumerations as numbers, and numbers as text."""

import pytest

from shmq.errors import ProtocolError
from shmq.protocol.body import ConsumerData, HeartbeatData, SubscriptionData, decode_heartbeat, encode_body
from tests.tables.rows import every_row

# As the C++ client of PyPI's rocketmq 0.4.4 sent it to a broker of ours; only client id and names are changed.
CPP = (
    b'{"clientID":"1-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"G",'
    b'"messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1795166924189","topic":"%RETRY%G"},'
    b'{"subString":"A || B","subVersion":"1795166924189","topic":"hello"}]}]}\n'
)


def test_the_cpp_clients_heartbeat_is_read() -> None:
    beat = decode_heartbeat(CPP)
    (data,) = beat.consumerDataSet
    assert (beat.clientID, data.groupName) == ("1-127.0.0.1@DEFAULT", "G")
    assert (data.consumeType, data.messageModel) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert data.consumeFromWhere == "CONSUME_FROM_LAST_OFFSET"
    assert [(entry.topic, entry.subString, entry.subVersion) for entry in data.subscriptionDataSet] == [
        ("%RETRY%G", "*", 1795166924189),
        ("hello", "A || B", 1795166924189),
    ]


def test_the_plain_form_is_read_as_it_is() -> None:
    beat = HeartbeatData("c", [ConsumerData("g", [SubscriptionData("t")])])
    assert decode_heartbeat(encode_body(beat)) == beat


@every_row(
    "data",
    [
        b"",
        b"[]",
        b"5",
        b"\xff",
        b"{}",
        b"[" * 100_000,
        b'{"clientID":"c","consumerDataSet":5}',
        b'{"clientID":"c","consumerDataSet":[5]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":2}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":true}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t","subVersion":"x"}]}]}',
    ],
)
def test_what_is_no_heartbeat_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_heartbeat(data)
