"""Sending over TCP, without a socket: what is on the wire, which queue is next, and what an answer means."""

import struct

import pytest

from shmq import errors
from shmq.client.keywords import keys_of, message_properties
from shmq.client.remote.send_policy import (
    Attempts,
    FaultTable,
    QueueChoice,
    avoid_seconds,
    queue_of_group,
    send_error,
)
from shmq.client.remote.sender import BATCH_BYTES_MAX, BATCH_COUNT_MAX, batches, send_command, single
from shmq.client.wire_tcp.route import Route
from shmq.properties import parse_properties
from shmq.protocol.codes import Request
from shmq.protocol.command import Command
from shmq.protocol.dialect import MessageQueue
from shmq.protocol.message_id import UniqueIds
from shmq.shm.core import tag_hash
from tests.tables.rows import every_row

NOW_MS = 1_795_166_223_123
IDS = UniqueIds("10.0.0.7", pid=0x12345, salt=7)


def route(*names: str, queues: int = 2) -> Route:
    writable = tuple(MessageQueue(name, number, "T") for name in names for number in range(queues))
    return Route("T", writable, writable, {})


# -- the message
def test_a_message_travels_with_short_names_and_its_properties() -> None:
    properties = message_properties("fruit", keys_of("o-1", ["o-2"]), "grp", {"region": "eu"})
    message = single(IDS, NOW_MS, "zlib", "T", bytearray(b"body"), 7, properties)
    command = send_command(message, group="shop", broker_name="a", queue_id=3)
    assert command.code == Request.SEND_MESSAGE_V2 and bytes(command.body) == b"body"
    assert {name: command.ext[name] for name in "abcdefghjkmn"} == {
        "a": "shop", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": str(NOW_MS), "h": "7", "j": "0",
        "k": "false", "m": "false", "n": "a",
    }  # fmt: skip
    assert parse_properties(command.ext["i"]) == {
        "TAGS": "fruit",
        "KEYS": "o-1 o-2",
        "__SHARDINGKEY": "grp",
        "region": "eu",
        "UNIQ_KEY": message.message_ids[0],
        "WAIT": "true",
    }


def test_what_rocketmq_would_lose_is_refused_before_it_is_sent() -> None:
    with pytest.raises(errors.UsageError, match="reserved"):
        message_properties(None, (), None, {"UNIQ_KEY": "x"})
    for tag in ("", "a\x01b", "a|b"):
        with pytest.raises(errors.UsageError):
            message_properties(tag, (), None, None)
    with pytest.raises(errors.UsageError):
        message_properties(None, ["two words"], None, None)
    with pytest.raises(TypeError, match="did you mean body=text"):
        single(IDS, NOW_MS, "none", "T", "text", 0, {})
    with pytest.raises(TypeError, match="did you mean key="):
        keys_of(None, "abc")
    with pytest.raises(errors.MessageTooLarge):
        single(IDS, NOW_MS, "none", "T", bytes((4 << 20) + 1), 0, {})


def test_a_batch_is_what_a_broker_cuts_apart() -> None:
    (part,) = batches(IDS, NOW_MS, "T", [b"one", b"two!"], [{"TAGS": "x"}, {}])
    position, seen = 0, []
    while position < len(part.body):
        size, magic, crc, flag, body_bytes = struct.unpack_from(">iiiii", part.body, position)
        body = part.body[position + 20 : position + 20 + body_bytes]
        (text_bytes,) = struct.unpack_from(">h", part.body, position + 20 + body_bytes)
        text = part.body[position + 22 + body_bytes :][:text_bytes].decode()
        assert (magic, crc, flag, size) == (0, 0, 0, 22 + body_bytes + text_bytes)
        seen.append((body, parse_properties(text)["UNIQ_KEY"]))
        position += size
    assert seen == list(zip([b"one", b"two!"], part.message_ids, strict=True))
    assert send_command(part, group="", broker_name="a", queue_id=0).code == Request.SEND_BATCH_MESSAGE


def test_long_batches_are_sent_in_parts_that_fit() -> None:
    many = batches(IDS, NOW_MS, "T", [b"x"] * (BATCH_COUNT_MAX + 1), [{}] * (BATCH_COUNT_MAX + 1))
    assert [len(part.message_ids) for part in many] == [BATCH_COUNT_MAX, 1]
    large = batches(IDS, NOW_MS, "T", [bytes(1 << 20)] * 7, [{}] * 7)
    assert [len(part.message_ids) for part in large] == [3, 3, 1]
    assert all(len(part.body) <= BATCH_BYTES_MAX for part in large)
    (whole,) = batches(IDS, NOW_MS, "T", [bytes(80_000)] * 50, [{"KEYS": "k" * 100}] * 50)
    assert len(whole.body) > 4_000_000
    assert batches(IDS, NOW_MS, "T", [], []) == []


# -- the queue
def test_messages_go_round_all_queues() -> None:
    selector = QueueChoice(None)
    chosen = [selector.select(route("a", "b"), 0.0) for _ in range(8)]
    assert set(chosen) == set(route("a", "b").writable) and chosen[:4] == chosen[4:]


def test_the_broker_that_failed_is_avoided_unless_it_is_the_only_one() -> None:
    selector = QueueChoice(None)
    assert {selector.select(route("a", "b"), 0.0, avoid="a").brokerName for _ in range(8)} == {"b"}
    assert selector.select(route("a"), 0.0, avoid="a").brokerName == "a"


def test_a_slow_broker_is_avoided_for_a_while() -> None:
    faults = FaultTable()
    selector = QueueChoice(faults)
    faults.report("a", 0.7, now=100.0)
    assert {selector.select(route("a", "b"), 129.0).brokerName for _ in range(8)} == {"b"}
    assert {selector.select(route("a", "b"), 130.0).brokerName for _ in range(8)} == {"a", "b"}


def test_when_all_are_slow_the_least_slow_is_taken_and_a_quick_answer_clears() -> None:
    faults = FaultTable()
    faults.report("a", 0.0, now=0.0, failed=True)
    faults.report("b", 1.5, now=0.0)
    selector = QueueChoice(faults)
    assert {selector.select(route("a", "b"), 1.0).brokerName for _ in range(4)} == {"b"}
    faults.report("a", 0.001, now=2.0)
    assert faults.is_available("a", 2.0)


@every_row(
    ("latency", "avoided"), [(0.1, 0), (0.549, 0), (0.55, 30), (1, 60), (2, 120), (3, 180), (15, 600), (30, 600)]
)
def test_the_table_of_latencies_is_rocketmqs(latency: float, avoided: float) -> None:
    assert avoid_seconds(latency) == avoided


def test_a_message_group_has_the_queue_that_local_producers_give_it() -> None:
    for group in ("o-42", "ü", "a" * 100):
        assert queue_of_group(route("a", queues=8), group).queueId == (tag_hash(group) & 0x7FFFFFFF) % 8


# -- the answer
@pytest.mark.parametrize("code", [0, 11])
def test_stored_is_stored(code: int) -> None:
    assert send_error(Command(code=code)) is None


@every_row(
    ("code", "kind"),
    [
        (2, errors.BrokerBusy),
        (10, errors.SendTimeout),
        (12, errors.SendTimeout),
        (13, errors.MessageTooLarge),
        (14, errors.ReadOnlyStore),
        (16, errors.PermissionDenied),
        (17, errors.TopicNotFound),
        (215, errors.FlowControl),
        (1, errors.RemoteError),
    ],
)
def test_a_refusal_has_a_type_and_the_brokers_words(code: int, kind: type[errors.ShmqError]) -> None:
    error = send_error(Command(code=code, remark="because"))
    assert isinstance(error, kind) and "because" in str(error) and error.code == code


def test_three_tries_and_not_more() -> None:
    attempts = Attempts(deadline=10.0)
    gone = errors.BrokerNotRunning("gone")
    assert [attempts.may_retry(gone, name, 1.0) for name in "abc"] == [True, True, False]
    assert attempts.avoid == "c"


@every_row(
    ("error", "again"),
    [
        (errors.RequestTimeout("slow"), True),
        (send_error(Command(code=1, remark="x")), True),
        (send_error(Command(code=2, remark="x")), True),
        (send_error(Command(code=14, remark="x")), True),
        (send_error(Command(code=16, remark="x")), True),
        (send_error(Command(code=204, remark="x")), True),
        (send_error(Command(code=13, remark="x")), False),
        (send_error(Command(code=10, remark="x")), False),
        (errors.PermissionDenied("TLS"), True),
        (errors.UsageError("closed"), False),
    ],
)
def test_another_broker_is_tried_for_what_another_broker_can_change(error: errors.ShmqError, again: bool) -> None:
    assert Attempts(deadline=10.0).may_retry(error, "a", 1.0) is again


def test_nothing_is_tried_after_the_deadline_or_for_oneway() -> None:
    gone = errors.BrokerNotRunning("gone")
    assert not Attempts(deadline=10.0).may_retry(gone, "a", 10.0)
    assert not Attempts(deadline=10.0, retries=0).may_retry(gone, "a", 1.0)
