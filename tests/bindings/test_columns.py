"""Records as Arrow columns: every field, every condition, every limit, over real units, files and memory."""

from __future__ import annotations

import lzma
import struct
import zlib
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.c_core import BINDINGS, run_sanitized
from tests.bindings.live_store import FILE_BYTES, LiveStore, raises_status

pa = pytest.importorskip("pyarrow", reason="columns are looked at with pyarrow")

NAMES = _core.columns_names()
ALL = bytes(range(len(NAMES)))


class Batch:
    """What pyarrow imports: the two capsules of one batch."""

    def __init__(self, columns: bytes, capsule: object) -> None:
        self._pair = (_core.columns_schema(columns), capsule)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._pair


def numbers(*names: str) -> bytes:
    return bytes(NAMES.index(name) for name in names)


def imported(columns: bytes, capsule: object) -> list[dict[str, Any]]:
    batch = pa.record_batch(Batch(columns, capsule))
    batch.validate(full=True)
    return batch.to_pylist()


def read(live: LiveStore, queue: int, first: int, end: int, columns: bytes = ALL, **options: Any) -> Any:
    queue_id = live.store.queue(queue)[4]
    return _core.ColumnReader(live.store).columns(queue, queue_id, first, end, columns, "orders", "broker-a", **options)


def rows(live: LiveStore, queue: int, columns: bytes = ALL, **options: Any) -> list[dict[str, Any]]:
    """Everything in a queue, however many batches it takes."""
    end, found = live.store.queue_visible(queue), []
    at = live.store.queue(queue)[0]
    while at < end:
        following, count, _, _, capsule = read(live, queue, at, end, columns, **options)
        assert following > at
        batch = imported(columns, capsule)
        assert len(batch) == count
        found += batch
        at = following
    return found


# ---- fields ------------------------------------------------------------


def test_every_field_of_a_record_arrives() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        properties = b"TAGS\1paid\2KEYS\1o-1 o-2\2UNIQ_KEY\1AB\2colour\1gr\xc3\xbcn\2"
        live.producer().append("orders", b"first", queue_id=0)
        _, at, stored_ms, end = live.producer().append(
            "orders", b"body", properties, queue_id=0, flag=7, born_ms=1_700_000_000_123, reconsume_times=3
        )
        row = rows(live, queue)[1]
        message = live.store.message_at(at)
        assert row.pop("born_timestamp").timestamp() == 1_700_000_000.123
        assert round(row.pop("store_timestamp").timestamp() * 1000) == stored_ms
        assert row == {
            "topic": "orders",
            "broker": "broker-a",
            "queue_id": 0,
            "queue_offset": 1,
            "commitlog_offset": at,
            "store_size": end - at,
            "msg_id": message.offset_message_id,
            "uniq_key": "AB",
            "keys": "o-1 o-2",
            "tags": "paid",
            "tags_code": _core.tag_hash("paid"),
            "body": b"body",
            "body_crc": zlib.crc32(b"body") & 0x7FFFFFFF,
            "properties": list(message.properties.items()),
            "flag": 7,
            "sys_flag": 0,
            "born_host": "127.0.0.1:0",
            "store_host": "127.0.0.1:10911",
            "reconsume_times": 3,
            "prepared_txn_offset": 0,
        }


def test_columns_come_in_the_order_that_was_asked_for() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        live.producer().append("orders", b"x", queue_id=0)
        columns = numbers("body", "queue_offset", "tags", "topic")
        assert rows(live, queue, columns) == [{"body": b"x", "queue_offset": 0, "tags": None, "topic": "orders"}]
        schema = pa.record_batch(Batch(columns, read(live, queue, 0, 1, columns)[4])).schema
        assert schema.names == ["body", "queue_offset", "tags", "topic"] and all(field.nullable for field in schema)
        for wrong in (b"\1\1", b"\x16", bytes(23)):
            with raises_status(_core.BAD_ARGUMENT, "each once at most"):
                read(live, queue, 0, 1, wrong)


def test_types_are_those_spark_expects() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        live.producer().append("orders", b"x", queue_id=0)
        schema = pa.record_batch(Batch(ALL, read(live, queue, 0, 1)[4])).schema
        kinds = {field.name: str(field.type) for field in schema}
        assert {kinds[name] for name in ("body",)} == {"binary"}
        assert {kinds[name] for name in ("queue_id", "store_size", "body_crc", "flag", "sys_flag")} == {"int32"}
        assert {kinds[name] for name in ("queue_offset", "commitlog_offset", "tags_code")} == {"int64"}
        assert {kinds[name] for name in ("born_timestamp", "store_timestamp")} == {"timestamp[us, tz=UTC]"}
        assert schema.field("properties").type == pa.map_(pa.string(), pa.string())


def test_columns_of_units_are_read_without_the_log() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for _ in range(300):
            live.producer().append("orders", b"x", b"TAGS\1a", queue_id=0)
        fresh = live.attach(writable=False)  # has mapped no log file yet
        (live.path / "commitlog" / f"{0:020d}").unlink()
        columns = numbers("queue_offset", "commitlog_offset", "store_size", "tags_code", "topic", "broker", "queue_id")
        assert _core.ColumnReader(fresh).columns(queue, 0, 0, 300, columns, "orders", "b")[:2] == (300, 300)
        with raises_status(_core.SYSTEM):
            _core.ColumnReader(fresh).columns(queue, 0, 0, 300, numbers("body"), "orders", "b")


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_text_is_valid_whatever_was_stored(texts: list[bytes | None]) -> None:
    cleaned = [None if text is None else text.translate(None, b"\1\2\0") for text in texts]
    with LiveStore() as live:
        queue, *_ = live.topic()
        for text in cleaned:
            live.producer().append("orders", b"x", b"" if text is None else b"KEYS\1" + text, queue_id=0)
        columns = numbers("keys", "properties")
        found = rows(live, queue, columns) if cleaned else []
        assert [row["keys"] for row in found] == [_replaced(text) if text else None for text in cleaned]


def _replaced(text: bytes) -> str:
    """Each byte that begins no well-formed character becomes one U+FFFD."""
    out = ""
    while text:
        for count in (1, 2, 3, 4):
            try:
                out += text[:count].decode()
            except UnicodeDecodeError:
                continue
            text = text[count:]
            break
        else:
            out += "\ufffd"
            text = text[1:]
    return out


def test_a_later_property_replaces_an_earlier_one_and_crcs_are_left_out() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        live.producer().append("orders", b"x", b"a\x011\2b\x012\2a\x013\2broken\2\1no name\2empty\1\2", queue_id=0)
        (row,) = rows(live, queue, numbers("properties"))
        assert row["properties"] == [("b", "2"), ("a", "3"), ("empty", "")]


def test_times_that_are_missing_are_null() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        live.producer().append("orders", b"x", queue_id=0, born_ms=1 << 62)
        live.producer().append("orders", b"x", queue_id=0, born_ms=1)
        first, second = rows(live, queue, numbers("born_timestamp"))
        assert first["born_timestamp"] is None and second["born_timestamp"].timestamp() == 0.001


# ---- compressed bodies ------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "packed"),
    [
        (0, zlib.compress(b"hello" * 50)),
        (3, zlib.compress(b"hello" * 50)),
        (1, lz4.frame.compress(b"hello" * 50)),
        (2, zstandard.ZstdCompressor().compress(b"hello" * 50)),
    ],
)
def test_compressed_bodies_are_named_with_how_to_inflate_them(how: int, packed: bytes) -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        sys_flag = 1 | how << 8
        live.producer().append("orders", b"plain", queue_id=0)
        live.producer().append("orders", packed, queue_id=0, sys_flag=sys_flag)
        columns = numbers("body")
        _, _, _, found, capsule = read(live, queue, 0, 2, columns)
        assert found == [(1, sys_flag)]
        body = imported(columns, capsule)[1]["body"]
        assert body == packed and _core.body_inflate(body, sys_flag) == b"hello" * 50
        assert read(live, queue, 0, 2, numbers("flag"))[3] == []


def test_inflating_has_a_cap_and_damage_is_reported() -> None:
    bomb = zlib.compress(bytes(_core.BODY_BYTES_MAX + 1))
    with raises_status(_core.TOO_LARGE):
        _core.body_inflate(bomb, 1)
    with raises_status(_core.CORRUPT):
        _core.body_inflate(lzma.compress(b"x"), 1)
    with raises_status(_core.CORRUPT):
        _core.body_inflate(b"x", 1 | 7 << 8)


# ---- ranges, limits, conditions --------------------------------------------------------------------------------------


def test_limits_end_a_batch_but_the_first_record_goes_always() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        sizes = []
        for _ in range(6):
            _, at, _, end = live.producer().append("orders", bytes(1000), queue_id=0)
            sizes.append(end - at)
        assert read(live, queue, 0, 6)[:3] == (6, 6, sum(sizes))
        assert read(live, queue, 2, 5)[:2] == (5, 3)
        assert read(live, queue, 0, 6, rows_max=4)[:2] == (4, 4)
        assert read(live, queue, 0, 6, bytes_max=sum(sizes[:3]))[:2] == (3, 3)
        assert read(live, queue, 0, 6, bytes_max=sum(sizes[:3]) - 1)[:2] == (2, 2)
        assert read(live, queue, 3, 6, bytes_max=0)[:2] == (4, 1)
        assert read(live, queue, 3, 3)[:2] == (3, 0)
        for wrong in ({"rows_max": 0}, {"rows_max": 65537}, {"bytes_max": 1 << 40}):
            with raises_status(_core.BAD_ARGUMENT):
                read(live, queue, 0, 6, **wrong)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "Aa", "BB", ""]), max_size=400),  # Aa and BB have one hash
    st.sets(st.sampled_from(["a", "b", "Aa"]), min_size=1),
    st.integers(1, 50),
)
def test_tags_choose_exactly_though_hashes_collide(tags: list[str], wanted: set[str], rows_max: int) -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for number, tag in enumerate(tags):
            live.producer().append("orders", b"%d" % number, b"TAGS\1" + tag.encode() if tag else b"", queue_id=0)
        columns = numbers("queue_offset")
        found = rows(live, queue, columns, tags=sorted(wanted), rows_max=rows_max)
        assert [row["queue_offset"] for row in found] == [at for at, tag in enumerate(tags) if tag in wanted]


def test_times_choose_by_when_a_record_was_stored() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        stored = [live.producer().append("orders", b"x", queue_id=0)[2]]
        while stored[-1] < stored[0] + 3:
            stored.append(live.producer().append("orders", b"x", queue_id=0)[2])
        begin, end = stored[0] + 1, stored[-1]
        found = rows(live, queue, numbers("queue_offset"), ms_begin=begin, ms_end=end, rows_max=65536)
        assert [row["queue_offset"] for row in found] == [at for at, ms in enumerate(stored) if begin <= ms < end]
        assert rows(live, queue, numbers("queue_offset"), ms_begin=end + 1) == []


def test_nothing_is_read_before_it_is_durable_with_sync_flush() -> None:
    with LiveStore(flush_sync=True) as live:
        queue, *_ = live.topic()
        producer = live.producer()
        for _ in range(3):
            producer.append("orders", b"x", queue_id=0)
        assert live.store.queue_visible(queue) == 0
        with raises_status(_core.EMPTY, "offset 0"):
            read(live, queue, 0, 3)
        live.keeper.flush()
        producer.append("orders", b"x", queue_id=0)
        assert live.store.queue_visible(queue) == 3
        assert read(live, queue, 0, 4)[:2] == (3, 3)
        with raises_status(_core.EMPTY, "offset 3"):
            read(live, queue, 3, 4)


def test_units_in_files_are_read_like_those_in_memory() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for number in range(1000):
            live.producer().append("orders", b"%d" % number, queue_id=0)
        before = rows(live, queue)
        _, end, _, topic, queue_id, _ = live.store.queue(queue)
        folder = live.path / "consumequeue" / live.store.topic(topic)["name"] / str(queue_id)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(live.keeper.units_read(queue, 0, end))
        live.keeper.set_persisted(queue, end)
        live.keeper.frames_release(queue, 0, end // _core.FRAME_UNITS, 1.0)
        assert live.keeper.units_read(queue, 0, 1) == b"" and rows(live, queue) == before


# ---- deleted and damaged records ------------------------------------------------------------


def test_a_file_that_retention_unlinks_is_read_to_its_end_by_who_has_it() -> None:
    with LiveStore(files=3) as live:
        queue, *_ = live.topic()
        for _ in range(250):
            live.producer().append("orders", bytes(9000), queue_id=0)
        reader, late = live.attach(writable=False), live.attach(writable=False)
        columns = numbers("body")
        assert _core.ColumnReader(reader).columns(queue, 0, 0, 1, columns, "orders", "b")[:2] == (1, 1)
        (live.path / "commitlog" / f"{0:020d}").unlink()
        live.keeper.set_log_begin(FILE_BYTES)
        assert _core.ColumnReader(reader).columns(queue, 0, 1, 20, columns, "orders", "b", verify=True)[:2] == (20, 19)
        with raises_status(_core.GONE, "retention"):
            _core.ColumnReader(late).columns(queue, 0, 1, 20, columns, "orders", "b")
        live.keeper.set_offset_min(queue, 150)
        with raises_status(_core.GONE, "offset 1:"):
            _core.ColumnReader(reader).columns(queue, 0, 1, 20, columns, "orders", "b")


def test_damage_is_reported_where_it_is_and_what_was_before_it_comes() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        ends = [live.producer().append("orders", b"good", queue_id=0)[3] for _ in range(3)]
        live.keeper.flush()  # above the durable end nothing is damage yet
        with (live.path / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(ends[1] + 4)
            file.write(struct.pack(">I", 0x12345678))  # the third's magic
        assert read(live, queue, 0, 3)[:2] == (2, 2)
        with raises_status(_core.CORRUPT, f"log position {ends[1]}"):
            read(live, queue, 2, 3)


def test_a_flipped_bit_is_found_by_who_asks_for_it() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        live.producer().append("orders", b"good", queue_id=0)
        live.keeper.flush()
        path = live.path / "commitlog" / f"{0:020d}"
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(data.index(b"good"))
            file.write(b"gool")
        assert read(live, queue, 0, 1, verify=False)[:2] == (1, 1)
        assert read(live, queue, 0, 1, numbers("queue_offset"))[:2] == (1, 1)  # its unit is enough
        with raises_status(_core.CORRUPT):
            read(live, queue, 0, 1)
        with raises_status(_core.CORRUPT):
            read(live, queue, 0, 1, verify=True)


def test_a_queue_of_another_topic_is_not_believed() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        live.producer().append("orders", b"x", queue_id=0)
        with raises_status(_core.NO_TOPIC, "deleted"):
            _core.ColumnReader(live.store).columns(queue, 0, 0, 1, numbers("body"), "other", "b")
        with raises_status(_core.NO_QUEUE):
            _core.ColumnReader(live.store).columns(10**6, 0, 0, 1, numbers("body"), "orders", "b")


# ---- records in memory ------------------------------------------------------------


def test_bytes_of_records_become_the_same_columns() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for number in range(50):
            live.producer().append("orders", b"%d" % number, b"TAGS\1" + b"ab"[number % 2 :][:1], queue_id=0)
        data = live.log.pull(queue, 0, 1000, 1 << 30, None)[2]
        used, following, count, packed, capsule = _core.columns_decode(data, ALL, "orders", "broker-a")
        assert (used, following, count, packed) == (len(data), 50, 50, [])
        assert imported(ALL, capsule) == rows(live, queue)
        used, following, count, _, _ = _core.columns_decode(data, ALL, "orders", "b", rows_max=7)
        assert (following, count) == (7, 7) and _core.columns_decode(data[used:], ALL, "orders", "b")[1:3] == (50, 43)
        assert _core.columns_decode(data, ALL, "orders", "b", tags=["b"], verify=True)[1:3] == (50, 25)
        with raises_status(_core.CORRUPT, "the record at byte"):
            _core.columns_decode(data[:-1], ALL, "orders", "b")


def test_a_whole_log_file_is_read_to_its_blank_with_each_records_topic() -> None:
    with LiveStore(files=2) as live:
        live.topic("orders", 1), live.topic("bills", 1)
        for number in range(150):
            live.producer().append(("orders", "bills")[number % 2], bytes(9000), queue_id=0)
        data = (live.path / "commitlog" / f"{0:020d}").read_bytes()
        used, _, count, _, capsule = _core.columns_decode(data, numbers("topic", "store_size"), None, "b")
        found = imported(numbers("topic", "store_size"), capsule)
        assert [row["topic"] for row in found] == [("orders", "bills")[number % 2] for number in range(count)]
        assert (
            sum(row["store_size"] for row in found) == used < len(data)
            and data[used + 4 : used + 8].hex() == "cbd43194"
        )


SOURCES = tuple(map(str, sorted((BINDINGS / "core").rglob("*.c"))))
SANITIZED = """
import ctypes, random, sys
library = ctypes.CDLL(sys.argv[1])
records = [bytes.fromhex(text) for text in sys.argv[2:]]
drawn = random.Random(5)
whole = b"".join(records)
assert library.check_columns(whole, len(whole), 65536) == len(records)
assert library.check_columns(b"", 0, 1) == 0
for _ in range(4000):
    data = bytearray(b"".join(drawn.choices(records, k=3)))
    for _ in range(drawn.randrange(6)):
        data[drawn.randrange(len(data))] = drawn.choice([0, 1, 2, 255, drawn.randrange(256)])
    data = bytes(data[: drawn.randrange(len(data) + 1)]) if drawn.random() < 0.3 else bytes(data)
    assert library.check_columns(data, len(data), drawn.choice([1, 2, 9])) >= 0
"""


@pytest.mark.slow
def test_damaged_bytes_never_reach_outside_a_buffer() -> None:
    values = [b"", b"TAGS\1a\2KEYS\1k\2", b"a\1\xff\xfe\2a\1b\2" * 20, b"UNIQ_KEY\1\xe4\xbd\xa0\2x\1" + b"y" * 300]
    records = [
        _core.record_encode(
            body=b"b" * (number * 7),
            topic=b"orders",
            properties=value,
            queue_offset=number,
            log_position=number * 1000,
            sys_flag=1 if number % 2 else 0,
        )
        for number, value in enumerate(values * 2)
    ]
    check = str(Path(__file__).with_name("columns_check.c"))
    done = run_sanitized(SANITIZED, *SOURCES, check, arguments=[record.hex() for record in records])
    assert done.returncode == 0, done.stderr
