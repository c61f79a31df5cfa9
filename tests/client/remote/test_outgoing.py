"""What is sent over TCP, without a socket: what is on the wire, and how a batch is cut."""

import struct

import pytest

from shmq import errors
from shmq.client.keywords import keys_of, message_properties
from shmq.client.remote.outgoing import BATCH_BYTES_MAX, BATCH_COUNT_MAX, batches, halves, send_command, single
from shmq.properties import parse_properties
from shmq.protocol.codes import Request
from shmq.protocol.message_id import UniqueIds
from tests.tables.rows import every_row

NOW_MS = 1_795_166_223_123
IDS = UniqueIds("10.0.0.7", pid=0x12345, salt=7)


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


@every_row(
    ("sizes", "first"), [((1, 1), 1), ((1, 1, 1), 1), ((9_000, 1), 1), ((1, 9_000), 1), ((1, 1, 1, 1, 9_000), 4)]
)
def test_a_batch_is_cut_where_its_halves_have_about_as_many_bytes(sizes: tuple[int, ...], first: int) -> None:
    (whole,) = batches(IDS, NOW_MS, "T", [bytes(size) for size in sizes], [{}] * len(sizes))
    left, right = halves(whole)
    assert left.body + right.body == whole.body and left.message_ids + right.message_ids == whole.message_ids
    assert len(left.message_ids) == first
    assert left.is_batch and right.is_batch and left.properties == right.properties == whole.properties
