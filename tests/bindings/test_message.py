"""A message as the receiver sees it: fields, lifetimes of its memory, compressed bodies, codecs."""

from __future__ import annotations

import gc
import importlib.util
import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, STORE_HOST, LiveStore, raises_status
from tests.tables.rows import every_row


def place(live: LiveStore, body: bytes, **fields: Any) -> _core.Message:
    """A record with fields no producer writes, put into the log as recovery would find it."""
    position = live.store.log_end
    record = _core.record_encode(
        body=body, topic=b"orders", log_position=position, **{"store_host": STORE_HOST, **fields}
    )
    with (live.path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(position)
        file.write(record)
    live.keeper.set_log_end(position + len(record))
    return live.store.message_at(position, len(record))


def is_mapped(path: Path) -> bool:
    with open("/proc/self/maps") as maps:
        return any(str(path) in line for line in maps)


def test_every_field_is_the_records() -> None:
    with LiveStore() as live:
        properties = b"TAGS\1fruit\2KEYS\1a b  c\2__SHARDINGKEY\1g\2x\1y\2"
        message = place(
            live,
            b"hello",
            properties=properties,
            queue_id=3,
            queue_offset=9,
            flag=5,
            born_ms=1,
            store_ms=2,
            reconsume_times=4,
        )
        assert (message.topic, message.queue_id, message.offset) == ("orders", 3, 9)
        assert (message.body, bytes(message.view), message.size) == (b"hello", b"hello", 5)
        assert (message.tag, message.key, message.keys) == ("fruit", "a", ["a", "b", "c"])
        assert message.message_group == "g"
        assert message.properties == {"TAGS": "fruit", "KEYS": "a b  c", "__SHARDINGKEY": "g", "x": "y"}
        assert message.properties is message.properties
        assert (message.flag, message.sys_flag) == (5, 0)
        assert (message.born_ms, message.store_ms) == (1, 2)
        assert (message.reconsume_times, message.attempt) == (4, 5)
        assert (message.log_position, message.settled) == (0, False)
        assert message.record_bytes == live.store.log_end
        assert message.verify()
        assert "orders queue 3 offset 9" in repr(message)


def test_a_negative_number_of_tries_is_one_and_no_large_one() -> None:
    with LiveStore() as live:
        for tries, attempt in ((-1, 1), (-5, 1), (0, 1), ((1 << 31) - 1, 1 << 31)):
            message = place(live, b"", reconsume_times=tries)
            assert (message.reconsume_times, message.attempt) == (tries, attempt)


def test_a_message_without_options_says_none() -> None:
    with LiveStore() as live:
        message = place(live, b"")
        assert (message.tag, message.key, message.keys, message.message_group) == (None, None, [], None)
        assert (message.properties, message.body, len(message.view)) == ({}, b"", 0)


@every_row(
    ("text", "expected"),
    [
        (b"a\1b", {"a": "b"}),
        (b"a\1b\2c\1d", {"a": "b", "c": "d"}),
        (b"\2\2a\1b\2\2", {"a": "b"}),
        (b"lonely\2a\1b", {"a": "b"}),
        (b"\1nameless\2a\1", {"a": ""}),
        (b"\xff\1\xfe", {"\ufffd": "\ufffd"}),
    ],
)
def test_property_text_of_any_sender_is_readable(text: bytes, expected: dict[str, str]) -> None:
    with LiveStore() as live:
        assert place(live, b"x", properties=text).properties == expected


def test_the_message_id_is_the_senders_or_the_place() -> None:
    with LiveStore() as live:
        place(live, b"first")
        message = place(live, b"x", properties=b"UNIQ_KEY\x017F00000100002A9F\2")
        place_id = (STORE_HOST + struct.pack(">Q", message.log_position)).hex().upper()
        assert message.message_id == "7F00000100002A9F"
        assert message.offset_message_id == place_id
        assert place(live, b"x").message_id != place_id


def test_only_the_attempt_can_be_set() -> None:
    with LiveStore() as live:
        message = place(live, b"x")
        message.attempt = 7
        assert message.attempt == 7
        for wrong in (0, -1, "1", 1 << 40):
            with pytest.raises((ValueError, TypeError, OverflowError)):
                message.attempt = wrong  # type: ignore[assignment]
        for name in ("body", "settled", "topic", "value", "anything"):
            with pytest.raises(AttributeError):
                setattr(message, name, None)
        with pytest.raises((ValueError, TypeError, AttributeError)):
            del message.attempt


def test_a_flipped_body_bit_fails_verification_only() -> None:
    with LiveStore() as live:
        message = place(live, b"hello")
        with (live.path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(88)
            file.write(b"j")
        assert not message.verify()
        assert message.body == b"jello"


# ---- lifetimes ---------------------------------------------------------------------------------------------------


def test_a_view_is_read_only_and_no_copy() -> None:
    with LiveStore() as live:
        message = place(live, b"hello")
        view = message.view
        with pytest.raises(TypeError):
            view[0] = 1
        assert view.readonly and view.contiguous
        with (live.path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(88)
            file.write(b"j")
        assert bytes(view) == b"jello"
        assert bytes(memoryview(message)[1:3]) == b"el"  # type: ignore[arg-type]


def test_messages_and_views_outlive_reader_store_and_file() -> None:
    with LiveStore() as live:
        live.topic()
        live.producer().send("orders", b"hello" * 1000)
        path = live.path / "commitlog" / f"{0:020d}"
        store = live.attach(writable=False)
        reader = live.reader(store=store)
        (message,) = reader.poll()
        reader.close()
        store.close()
        live.store.close()
        path.unlink()
        assert message.body == b"hello" * 1000
        assert message.topic == "orders"
        message.ack()
        part = message.view[5:10]
        del message, reader, store
        gc.collect()
        assert bytes(part) == b"hello"
        assert is_mapped(path)
        del part
        gc.collect()
        assert not is_mapped(path)


def test_bodies_are_made_once_and_kept() -> None:
    with LiveStore() as live:
        message = place(live, b"hello")
        assert message.body is message.body


def test_messages_are_reused_without_mixing_their_contents() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"%d" % i for i in range(1000)], keys=[f"k{i}" for i in range(1000)])
        seen = []
        for _, message in zip(range(1000), live.reader(codec=int), strict=False):
            seen.append((message.body, message.key, message.properties["KEYS"], message.value, message.settled))
            if len(seen) % 3:
                message.ack()
        assert seen == [(b"%d" % i, f"k{i}", f"k{i}", i, False) for i in range(1000)]


def test_reading_messages_allocates_nothing_that_stays() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"x" * 100] * 1000)
        reader = live.reader()

        def read() -> None:
            reader.seek(0, 0)
            for _, message in zip(range(1000), reader, strict=False):
                _ = message.body

        read()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(10):
                read()
            assert tracemalloc.get_traced_memory()[0] - before < 10_000
        finally:
            tracemalloc.stop()


# ---- codecs and compression --------------------------------------------------------------------------------------


def test_the_value_is_the_codecs_and_made_once() -> None:
    with LiveStore() as live:
        live.topic(queues=1)
        live.producer().send_batch("orders", [b"1", b"x"])
        calls: list[bytes] = []

        def codec(body: bytes) -> int:
            calls.append(body)
            return int(body)

        good, bad = live.reader(codec=codec).poll()
        assert (good.value, good.value) == (1, 1)
        assert calls == [b"1"]
        with pytest.raises(ValueError, match="invalid literal"):
            _ = bad.value
        (plain, *_) = live.reader().poll()
        with pytest.raises(AttributeError, match="codec"):
            _ = plain.value


@every_row("kind", [0, 3])
@every_row("size", [0, 5000, _core.BODY_BYTES_MAX])
def test_a_zlib_body_is_inflated(kind: int, size: int) -> None:
    with LiveStore() as live:
        body = (os.urandom(50) * (size // 50 + 1))[:size]
        stored = zlib.compress(body)
        message = place(live, stored, sys_flag=1 | kind << 8)
        assert message.body == body
        assert f"{len(stored)} compressed bytes" in repr(message)
        assert (bytes(message.view), message.size) == (stored, len(body))
        assert message.verify()


def compressors() -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    if importlib.util.find_spec("lz4"):
        found.append((1, __import__("lz4.frame", fromlist=["compress"]).compress))
    for name in ("compression.zstd", "backports.zstd", "zstandard"):
        if importlib.util.find_spec(name.split(".")[0]):
            found.append((2, __import__(name, fromlist=["compress"]).compress))
    return found


@pytest.mark.parametrize("kind", [1, 2])
def test_lz4_and_zstandard_are_inflated_or_named(kind: int) -> None:
    with LiveStore() as live:
        known = [compress for number, compress in compressors() if number == kind]
        for compress in known:
            assert place(live, compress(b"hello" * 1000), sys_flag=1 | kind << 8).body == b"hello" * 1000
            with raises_status(_core.CORRUPT, "does not inflate"):
                _ = place(live, b"junk", sys_flag=1 | kind << 8).body
            with raises_status(_core.TOO_LARGE):
                _ = place(live, compress(bytes(_core.BODY_BYTES_MAX + 1)), sys_flag=1 | kind << 8).body
        if not known:
            with raises_status(_core.BAD_ARGUMENT, "pip install"):
                _ = place(live, b"x", sys_flag=1 | kind << 8).body


@pytest.mark.parametrize("damage", ["junk", "truncated", "empty", "unknown", "bomb"])
def test_a_body_that_does_not_inflate_is_an_error_not_a_guess(damage: str) -> None:
    with LiveStore() as live:
        whole = zlib.compress(b"hello" * 1000)
        stored = {"junk": b"junk", "truncated": whole[:-5], "empty": b"", "unknown": whole, "bomb": b""}[damage]
        flag = 1 | (7 << 8 if damage == "unknown" else 0)
        status = _core.CORRUPT
        if damage == "bomb":
            stored, status = zlib.compress(bytes(_core.BODY_BYTES_MAX + 1)), _core.TOO_LARGE
        message = place(live, stored, sys_flag=flag)
        for _ in range(2):
            with raises_status(status, f"{message.log_position}" if damage != "unknown" else "type 7"):
                _ = message.body
        assert bytes(message.view) == stored


def test_the_log_helper_writes_inside_one_file() -> None:
    with LiveStore() as live:
        place(live, b"x" * 1000)
        assert live.store.log_end < FILE_BYTES
