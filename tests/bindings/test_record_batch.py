"""Many records with one call: the same that a walk says which decodes and verifies one after the other."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, LiveStore, raises_status

BASE = 7 * FILE_BYTES
TOPICS = (b"orders", b"payments", b"a-topic-of-more-than-eight-letters", b"p\xc3\xa4yments")
WATCHED = (b"payments",)
PAIR, NAME = "\x02", "\x01"

records = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.integers(0, 2),  # queue id
        st.integers(-1, 3),  # how far the queue offset goes on: back, again, on, over a gap
        st.binary(max_size=60),
        st.sampled_from(["", "a", "fruit", "水果"]),
        st.sampled_from(["", "k", "k1 k2", "  k1  k2 k3 " + "w " * 12]),
        st.booleans(),  # with a unique key
        st.sampled_from([0, 0, 0, 4, 8, 12, 1]),  # sysFlag
    ),
    max_size=40,
)


def encoded(rows: list[Any]) -> list[bytes]:
    """Records that follow each other from BASE on."""
    found: list[bytes] = []
    offsets: dict[tuple[bytes, int], int] = {}
    at = BASE
    for topic, queue_id, step, body, tag, keys, is_unique, sys_flag in rows:
        offset = offsets[topic, queue_id] = max(0, offsets.get((topic, queue_id), 0) + step)
        pairs = {"TAGS": tag, "KEYS": keys, "UNIQ_KEY": f"unique-{at}" if is_unique else ""}
        text = "".join(f"{name}{NAME}{value}{PAIR}" for name, value in pairs.items() if value)
        found.append(
            _core.record_encode(
                body=body,
                topic=topic,
                properties=text.encode(),
                queue_id=queue_id,
                queue_offset=offset,
                log_position=at,
                sys_flag=sys_flag,
                store_ms=1_700_000_000_000 + at,
            )
        )
        at += len(found[-1])
    return found


def walked(data: bytes, count: int) -> list[dict[str, Any]]:
    """Fields of the whole records at the begin, one after the other."""
    found: list[dict[str, Any]] = []
    at = 0
    while at < len(data) and len(found) < count:
        try:
            fields = _core.record_decode(data, at)
        except _core.CoreError:
            break
        end = at + fields["record_bytes"]
        is_cut = fields["properties"] and data[end - 1] == 0
        if fields["log_position"] != BASE + at or not _core.record_verify(data, at) or is_cut:
            break
        found.append(fields)
        at = end
    return found


def properties_of(fields: dict[str, Any]) -> dict[str, str]:
    pairs = fields["properties"].decode().split(PAIR)
    return {name: value for name, _, value in (pair.partition(NAME) for pair in pairs) if value}


def unit_of(fields: dict[str, Any]) -> bytes:
    tag = properties_of(fields).get("TAGS")
    return struct.pack(">qiq", fields["log_position"], fields["record_bytes"], _core.tag_hash(tag) if tag else 0)


def keys_of(fields: dict[str, Any]) -> list[bytes]:
    if fields["sys_flag"] & 12 == 12:
        return []
    properties = properties_of(fields)
    unique = properties.get("UNIQ_KEY")
    keys = [*([unique] if unique else []), *(word for word in properties.get("KEYS", "").split(" ") if word)]
    topic = fields["topic"].decode()
    return [struct.pack(">Iq", _core.index_hash(topic, key), fields["log_position"]) for key in keys]


def is_watched(fields: dict[str, Any]) -> bool:
    return fields["topic"] in WATCHED or fields["sys_flag"] & 12 != 0


def is_text(fields: dict[str, Any]) -> bool:
    """Whether its names can be those of text: damage of its CRC makes a record look like another writer's."""
    try:
        return bool(fields["topic"].decode() + fields["properties"].decode())
    except UnicodeDecodeError:
        return False


def check(batch: _core.RecordBatch, found: list[dict[str, Any]]) -> None:
    """Compare a batch with the fields of the records it went over."""
    if not all(map(is_text, found)):
        assert (batch.records, batch.record_bytes) == (len(found), sum(fields["record_bytes"] for fields in found))
        return
    assert (batch.records, batch.record_bytes) == (len(found), sum(fields["record_bytes"] for fields in found))
    assert batch.position == BASE + batch.record_bytes
    assert batch.store_ms == (found[-1]["store_ms"] if found else 0)
    assert batch.watched == [(fields["log_position"], fields["record_bytes"]) for fields in found if is_watched(fields)]
    assert batch.keys == b"".join(key for fields in found for key in keys_of(fields))
    queues: dict[tuple[bytes, int], list[tuple[int, bytes, int]]] = {}
    for fields in found:
        if not fields["sys_flag"] & 4:
            rows = queues.setdefault((fields["topic"], fields["queue_id"]), [])
            rows.append((fields["queue_offset"], unit_of(fields), fields["store_ms"]))
    told: dict[tuple[bytes, int], list[tuple[int, bytes, int]]] = {}
    for run in batch.runs:
        units = [run.units[at : at + 20] for at in range(0, len(run.units), 20)]
        times = struct.unpack(f"={len(units)}Q", run.store_ms) if run.store_ms is not None else None
        assert units and (times is not None) == (run.topic in WATCHED)
        known = queues[run.topic, run.queue_id]
        rows = told.setdefault((run.topic, run.queue_id), [])
        assert not rows or run.queue_offset != rows[-1][0] + 1, "it would have been one run"
        for index, unit in enumerate(units):
            stored_ms = times[index] if times is not None else known[len(rows)][2]
            rows.append((run.queue_offset + index, unit, stored_ms))
    assert told == queues


@given(records, st.integers(1, 50))
def test_a_batch_says_what_each_record_says(rows: list[Any], count: int) -> None:
    data = b"".join(encoded(rows))
    batch = _core.record_batch(data, BASE, count, WATCHED, True)
    check(batch, walked(data, count))
    assert batch.stop == ""


@given(records, st.data())
def test_it_stops_in_front_of_the_first_record_that_is_not_whole(rows: list[Any], draw: st.DataObject) -> None:
    data = bytearray(b"".join(encoded(rows)))
    for _ in range(draw.draw(st.integers(0, 3))):
        if data:
            at = draw.draw(st.integers(0, len(data) - 1))
            data[at] ^= draw.draw(st.integers(1, 255))
    if data and draw.draw(st.booleans()):  # the end of the properties, and the record CRC with it
        at = draw.draw(st.integers(0, len(data)))
        data[at:] = bytes(len(data) - at)
    del data[draw.draw(st.integers(0, len(data))) :]
    batch = _core.record_batch(data, BASE, 1000, WATCHED, True)
    check(batch, walked(bytes(data), 1000))


def test_what_ends_a_batch_is_said() -> None:
    record = encoded([(b"orders", 0, 0, b"body", "", "", False, 0)])[0]
    blank = struct.pack(">iI", 100, 0xCBD43194)
    assert _core.record_batch(record + blank, BASE, 10, (), False).stop == "blank"
    assert _core.record_batch(record + bytes(100), BASE, 10, (), False).stop == "zero"
    assert _core.record_batch(record + record, BASE, 10, (), False).stop == "corrupt: the record names another position"
    assert _core.record_batch(record[:-30], BASE, 10, (), False).stop.startswith("corrupt: the lengths")
    assert _core.record_batch(b"", BASE, 10, None) == (BASE, 0, 0, 0, [], [], b"", "")


def test_without_topics_records_are_only_checked() -> None:
    data = b"".join(encoded([(b"payments", 0, 1, b"body", "tag", "key", True, 8)] * 3))
    batch = _core.record_batch(data, BASE, 10, None)
    assert (batch.records, batch.runs, batch.watched, batch.keys) == (3, [], [], b"")


def test_senseless_arguments_are_refused() -> None:
    for count, topics in ((0, ()), (1 << 30, ()), (1, [b"orders"]), (1, ("orders",)), (1, (b"t",) * 17)):
        with raises_status(_core.BAD_ARGUMENT):
            _core.record_batch(b"", 0, count, topics)  # type: ignore[arg-type]


def test_a_batch_of_a_store_ends_with_its_file() -> None:
    with LiveStore(files=3) as live:
        live.topic()
        producer = live.producer()
        for number in range(250):
            producer.send("orders", bytes(10_000), tag=f"tag{number}")
        position, end = 0, live.store.log_end
        _, wanted, _ = live.keeper.scan(0, end, 10_000)
        units: dict[int, list[bytes]] = {}
        stops = []
        while position < end:
            batch = live.keeper.scan_batch(position, end, 10_000, ())
            position = batch.position
            stops.append(position)
            for run in batch.runs:
                known = units.setdefault(run.queue_id, [])
                assert run.queue_offset == len(known)
                known += [run.units[at : at + 20] for at in range(0, len(run.units), 20)]
        assert stops == [FILE_BYTES, 2 * FILE_BYTES, end]
        assert units == {
            queue_id: [struct.pack(">qiq", row[0], row[1], row[6]) for row in wanted if row[3] == queue_id]
            for queue_id in {row[3] for row in wanted}
        }
        assert live.keeper.scan_batch(end, 3 * FILE_BYTES, 10, ()).stop == "zero"
        assert live.keeper.scan_batch(3 * FILE_BYTES, 4 * FILE_BYTES, 10, ()).stop == "blank-end"
        assert live.keeper.scan_batch(end, end, 10, ())[:2] == (end, 0)
        with pytest.raises(TypeError):
            live.keeper.scan_batch(0, end, 10)  # type: ignore[call-arg]
