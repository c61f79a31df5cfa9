"""The extension is what its stub says, and its tables, positions and records keep their rules."""

from __future__ import annotations

import ast
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, SIZES, STORE_HOST, LiveStore, raises_status, until
from tests.tables.rows import every_row

STUB = Path(__file__).resolve().parents[2] / "bindings" / "_core.pyi"
CLASSES = ["Store", "Receipt", "Producer", "Sender", "Slot", "Message", "Reader"]
SPECIAL = {"__enter__", "__exit__", "__iter__", "__next__"}


def stub_names(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def stub_class(name: str) -> ast.ClassDef:
    tree = ast.parse(STUB.read_text())
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


# ---- the stub ----------------------------------------------------------------------------------------------------


def test_the_module_has_exactly_the_names_of_the_stub() -> None:
    binary = {name for name in dir(_core) if not name.startswith("__")}
    assert binary == stub_names(ast.parse(STUB.read_text()).body)


@every_row("name", CLASSES)
def test_each_class_has_exactly_the_names_of_the_stub(name: str) -> None:
    kind = getattr(_core, name)
    binary = {entry for entry in vars(kind) if not entry.startswith("__") or entry in SPECIAL}
    assert binary == stub_names(stub_class(name).body) - {"__init__"}


@every_row("name", CLASSES)
def test_no_class_can_be_subclassed_or_changed(name: str) -> None:
    kind = getattr(_core, name)
    with pytest.raises(TypeError):
        type("Sub", (kind,), {})
    with pytest.raises(TypeError):
        kind.anything = 1


@pytest.mark.parametrize("name", ["Receipt", "Slot", "Message"])
def test_results_cannot_be_made_by_hand(name: str) -> None:
    with pytest.raises(TypeError, match="cannot create"):
        getattr(_core, name)()


def test_status_numbers_are_those_of_the_header() -> None:
    names = ("BROKER_BUSY", "LOG_FULL", "TIMED_OUT", "CORRUPT", "BAD_ARGUMENT", "RETIRED")
    checks = [f'_Static_assert(SHMQ_{name} == {getattr(_core, name)}, "{name}");' for name in names]
    compiler = [
        os.environ.get("CC", "cc"),
        "-std=c11",
        "-D_GNU_SOURCE",
        f"-I{STUB.parent}",
        "-fsyntax-only",
        "-xc",
        "-",
    ]
    program = "\n".join(['#include "shmq.h"', *checks])
    done = subprocess.run(compiler, input=program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- functions ---------------------------------------------------------------------------------------------------


@given(st.binary(max_size=5000))
def test_crc32_is_zlibs(data: bytes) -> None:
    assert _core.crc32(data) == _core.crc32(memoryview(data)) == zlib.crc32(data)


@pytest.mark.parametrize(("tag", "value"), [("", 0), ("a", 97), ("TagA", 2598919), ("f5a5a608", 0), ("水果", 885224)])
def test_tag_hash_is_javas(tag: str, value: int) -> None:
    expected = 0
    for unit in memoryview(tag.encode("utf-16-le")).cast("H"):
        expected = (expected * 31 + unit) & 0xFFFFFFFF
    expected -= (expected & 0x80000000) << 1
    assert _core.tag_hash(tag) == expected
    if value:
        assert expected == value


def test_process_start_tells_living_from_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert _core.process_start(child.pid) > 0
    assert _core.process_start(os.getpid()) > 0
    child.communicate(b"\n")
    assert _core.process_start(child.pid) == 0
    assert _core.process_start(1 << 40) == 0


def test_layout_takes_keywords_only_and_refuses_nonsense() -> None:
    assert all(size % 64 == 0 for size in _core.layout_bytes(**SIZES))
    with pytest.raises(TypeError):
        _core.layout_bytes(*SIZES.values())  # type: ignore[call-arg]
    with raises_status(_core.BAD_ARGUMENT):
        _core.layout_bytes(**SIZES | {"queue_max": 0})


def test_a_record_reads_back_as_it_was_written() -> None:
    record = _core.record_encode(
        body=b"hello",
        topic=b"orders",
        properties=b"TAGS\1fruit\2",
        queue_id=3,
        queue_offset=7,
        log_position=1 << 33,
        flag=9,
        born_ms=11,
        store_ms=12,
        reconsume_times=2,
        prepared_position=5,
        store_host=STORE_HOST,
    )
    fields = _core.record_decode(b"junk" + record, 4)
    assert fields["record_bytes"] == len(record)
    assert (fields["body"], fields["topic"], fields["store_host"]) == (b"hello", b"orders", STORE_HOST)
    assert fields["properties"].startswith(b"TAGS\1fruit\2__CRC32#\1")
    numbers = ("queue_id", "queue_offset", "log_position", "flag", "born_ms", "store_ms", "reconsume_times")
    assert [fields[name] for name in numbers] == [3, 7, 1 << 33, 9, 11, 12, 2]
    assert fields["prepared_position"] == 5


@given(st.integers(min_value=0, max_value=7), st.data())
def test_one_flipped_bit_before_the_crc_never_passes_verification(bit: int, data: st.DataObject) -> None:
    record = bytearray(_core.record_encode(body=b"hello", topic=b"orders", properties=b"a\1b\2"))
    assert _core.record_verify(record)
    at = data.draw(st.integers(min_value=0, max_value=len(record) - 21))
    record[at] ^= 1 << bit
    try:
        assert not _core.record_verify(record)
    except _core.CoreError as error:
        assert error.args[0] in (_core.CORRUPT, _core.EMPTY)


def test_decoding_outside_the_bytes_is_refused() -> None:
    record = _core.record_encode(body=b"hello", topic=b"orders")
    for position in (-1, len(record) + 1, 1 << 40):
        with raises_status(_core.BAD_ARGUMENT):
            _core.record_decode(record, position)
    for size in range(4, len(record)):
        with raises_status(_core.CORRUPT):
            _core.record_decode(record[:size])
    with raises_status(_core.EMPTY):
        _core.record_decode(bytes(100))
    with raises_status(_core.TOO_LARGE):
        _core.record_encode(body=b"", topic=b"x" * 128)
    with raises_status(_core.BAD_ARGUMENT, "8 bytes"):
        _core.record_encode(body=b"", topic=b"x", born_host=b"123")


# ---- the store ---------------------------------------------------------------------------------------------------


def test_the_head_says_what_it_was_formatted_with() -> None:
    with LiveStore() as live:
        head = live.store.head
        assert {key: head[key] for key in SIZES} == SIZES
        assert head["store_path"] == str(live.path)
        assert head["store_host"] == STORE_HOST
        assert head["abi"] == _core.ABI
        assert live.store.writable is True
        assert live.store.client_slot == -1
        assert live.store.allocated_end == FILE_BYTES


def test_unformatted_or_short_segments_are_refused() -> None:
    descriptors = [os.memfd_create("empty") for _ in range(3)]
    try:
        with raises_status(_core.SYSTEM):
            _core.Store(*descriptors, writable=True)
        for descriptor in descriptors:
            os.ftruncate(descriptor, 1 << 16)
        with raises_status(_core.CORRUPT):
            _core.Store(*descriptors, writable=True)
        layout = {**SIZES, "generation": 1, "store_host": STORE_HOST, "broker_name": "b", "store_path": "/nowhere"}
        with raises_status(_core.BAD_ARGUMENT, "too small"):
            _core.Store(*descriptors, writable=True, format=layout)
        del layout["queue_max"]
        with raises_status(_core.BAD_ARGUMENT, "queue_max"):
            _core.Store(*descriptors, writable=True, format=layout)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_a_closed_store_refuses_every_call() -> None:
    with LiveStore() as live:
        live.topic()
        producer, reader = live.producer(), live.reader()
        producer.send("orders", b"x")
        live.store.close()
        live.store.close()
        for call in (
            live.figures.stats,
            live.store.topics,
            lambda: live.store.log_end,
            lambda: producer.send("orders", b"x"),
            lambda: producer.send_batch("orders", [b"x"]),
            lambda: reader.poll(),
            lambda: next(reader),
        ):
            with raises_status(_core.BAD_ARGUMENT, "closed"):
                call()
        reader.wake()
        reader.close()


def test_a_read_only_store_reads_but_changes_nothing() -> None:
    with LiveStore() as live:
        live.topic()
        live.producer().send("orders", b"x")
        store = live.attach(writable=False)
        assert [message.body for message in live.reader(store=store).poll()] == [b"x"]
        for call in (
            lambda: _core.KeeperStore(store),
            lambda: _core.BrokerTables(store),
            lambda: _core.BrokerLog(store),
            lambda: store.wait_durable(1, 0.0),
            lambda: _core.Producer(store, resolve=store.topic_find),
        ):
            with raises_status(_core.READ_ONLY):
                call()


def test_close_waits_for_a_call_that_is_inside_without_the_gil() -> None:
    with LiveStore() as live:
        store = live.attach(writable=True)
        slept: list[bool] = []
        thread = threading.Thread(target=lambda: slept.append(_core.KeeperStore(store).keep_flushed(20)[0]))
        thread.start()
        other = live.attach(writable=True)
        log_full = _core.Producer(other, resolve=other.topic_find)
        live.topic()
        _core.KeeperStore(other).set_allocated_end(0)

        def ring() -> bool:
            _core.KeeperStore(other).keeper_beat()  # no bell is rung for a dead keeper
            with raises_status(_core.LOG_FULL):
                log_full.send("orders", b"x", timeout=0.001)
            return not thread.is_alive()

        store.close()
        until(ring)
        assert slept == [True]


# ---- topics, groups, offsets, clients ----------------------------------------------------------------------------


def test_a_topic_has_its_queues_and_keeps_its_entry() -> None:
    with LiveStore() as live:
        store = live.store
        version = store.table_version
        index = live.tables.topic_put("orders", read_queues=4, write_queues=2, perm=6, kind=1)
        assert store.table_version > version
        entry = store.topic(index)
        assert (entry["name"], entry["read_queues"], entry["write_queues"], entry["kind"]) == ("orders", 4, 2, 1)
        assert len(entry["queues"]) == 4
        assert store.topic_find("orders") == index
        assert store.topic_find("nothing") == -1
        assert store.queue(entry["queues"][3])[3:5] == (index, 3)
        assert store.queue_index(index, 3) == entry["queues"][3]
        with raises_status(_core.NO_QUEUE):
            store.queue_index(index, 4)
        assert [topic["index"] for topic in store.topics()] == [index]
        live.tables.topic_delete("orders")
        assert store.topic_find("orders") == -1
        assert store.topics() == []
        for call in (
            lambda: store.topic(99),
            lambda: live.tables.set_topic_born(99, 0),
            lambda: store.queue_index(99, 0),
        ):
            with raises_status(_core.NO_TOPIC):
                call()
        with raises_status(_core.NO_QUEUE):
            store.queue(SIZES["queue_max"])


def test_a_store_host_counts_for_producers_made_later() -> None:
    with LiveStore() as live:
        live.topic()
        before = live.producer()
        host = bytes((10, 0, 0, 7, 0, 0, 0x2A, 0x9F))
        live.tables.set_store_host(host)
        assert live.producer().send("orders", b"x").message_id.startswith("0A00000700002A9F")
        assert before.send("orders", b"x").message_id.startswith(STORE_HOST.hex().upper())
        assert live.store.head["store_host"] == host
        with raises_status(_core.BAD_ARGUMENT):
            live.tables.set_store_host(b"short")


def test_the_settings_of_a_group_are_its_own_until_it_is_deleted() -> None:
    with LiveStore() as live:
        store, reader = live.store, live.attach(writable=False)
        group, other = live.tables.group_put("billing"), live.tables.group_put("other")
        assert store.group_settings(group) == b""
        live.tables.group_set(group, b"first")
        live.tables.group_set(group, b"x" * _core.GROUP_SETTINGS_BYTES_MAX)
        assert reader.group_settings(group) == b"x" * _core.GROUP_SETTINGS_BYTES_MAX
        live.tables.group_set(group, b"second")
        assert (reader.group_settings(group), reader.group_settings(other)) == (b"second", b"")
        live.tables.group_delete("billing")
        assert live.tables.group_put("billing") == group and store.group_settings(group) == b""
        with raises_status(_core.BAD_ARGUMENT):
            live.tables.group_set(group, b"x" * (_core.GROUP_SETTINGS_BYTES_MAX + 1))
        with raises_status(_core.BAD_ARGUMENT):
            live.tables.group_set(7, b"")
        assert store.group_settings(7) == store.group_settings(1 << 32) == b""


def test_a_late_member_of_a_deleted_group_cannot_move_its_offset() -> None:
    with LiveStore() as live:
        (queue, *_) = live.topic()
        live.use_client()
        store = live.store
        slot = live.tables.offset_put(live.tables.group_put("billing"), queue)
        assert store.offset_take(slot)
        reader = _core.Reader(store)
        reader.assign("orders", queue, 0, 0, slot)
        live.producer().send("orders", b"x", queue_id=0)
        (message,) = reader.poll()
        live.tables.group_delete("billing")
        assert live.tables.offset_put(live.tables.group_put("billing"), queue) == slot
        message.ack()
        assert store.offset_get(slot) == -1 and store.offset_owner(slot) == -1
        reader.close()


def test_the_entry_of_a_deleted_group_goes_to_another_name_only_when_there_is_no_other() -> None:
    with LiveStore(group_max=3) as live:
        (queue, *_) = live.topic()
        store, mask = live.store, live.store.head["group_mask"]
        first = live.tables.group_put("first")
        slot = live.tables.offset_put(first, queue)
        store.offset_set(slot, 5)
        live.tables.group_delete("first")
        assert live.tables.group_put("second") != first
        third = live.tables.group_put("third")
        assert third not in (first, store.group_find("second"))
        store.offset_set(slot, 5)  # as a member did that looked before the group was deleted
        fourth = live.tables.group_put("fourth")
        assert fourth != first and fourth & mask == first & mask
        next_slot = live.tables.offset_put(fourth, queue)
        assert len(store.offsets()) == 1 and store.offset_get(next_slot) == store.offset_get(slot) == -1
        with raises_status(_core.TABLE_FULL):
            live.tables.group_put("fifth")


def test_the_number_of_a_group_is_of_no_use_once_another_name_has_its_entry() -> None:
    with LiveStore(group_max=1) as live:
        (queue, *_) = live.topic()
        first = live.tables.group_put("first")
        live.tables.group_set(first, b"of the first")
        live.tables.group_delete("first")
        second = live.tables.group_put("second")
        assert live.store.groups() == [(second, "second")] and live.store.group_settings(second) == b""
        live.tables.group_set(second, b"of the second")
        assert live.store.group_settings(first) == b""
        with raises_status(_core.BAD_ARGUMENT):
            live.tables.group_set(first, b"of the first")
        with raises_status(_core.BAD_ARGUMENT):
            live.tables.offset_put(first, queue)
        assert live.store.group_settings(second) == b"of the second" and live.store.offsets() == []
        live.tables.group_delete("second")
        assert live.tables.group_put("first") not in (first, second)


NUMBER_AT = 268  # struct shmq_group


def test_an_entry_whose_last_number_is_given_is_no_groups_any_more() -> None:
    with LiveStore(group_max=1) as live, mmap.mmap(live.descriptors[2], 0) as words:
        live.tables.group_put("first")
        live.tables.group_delete("first")
        at = words.find(b"first") - 8
        last = (1 << 31) - 1 & ~live.store.head["group_mask"]
        struct.pack_into("=I", words, at + NUMBER_AT, last - live.store.head["group_mask"] - 1)
        assert live.tables.group_put("last") == last
        live.tables.group_delete("last")
        with raises_status(_core.TABLE_FULL):
            live.tables.group_put("one more")
        assert live.tables.group_put("last") == last


def test_the_counts_of_all_queues_and_offsets_are_read_at_once() -> None:
    with LiveStore() as live:
        queues = live.topic(queues=3)
        producer = live.producer()
        for _ in range(5):
            producer.send("orders", b"x", queue_id=1)
        counts = struct.unpack("=6Q", live.figures.queue_counts())
        assert counts == (0, 0, 5, live.store.queue(queues[1])[5], 0, 0)
        assert live.figures.offset_counts() == b""
        group = live.tables.group_put("billing")
        live.tables.offset_put(group, queues[0])
        live.store.offset_set(live.tables.offset_put(group, queues[2]), 4)
        assert struct.unpack("=4Q", live.figures.offset_counts()) == (
            0,
            group << 32 | queues[0],
            5,
            group << 32 | queues[2],
        )


def test_groups_and_offsets_read_back() -> None:
    with LiveStore() as live:
        store, (queue, *_) = live.store, live.topic()
        group = live.tables.group_put("billing")
        assert live.tables.group_put("billing") == group == store.group_find("billing")
        assert store.groups() == [(group, "billing")]
        slot = live.tables.offset_put(group, queue)
        assert live.tables.offset_put(group, queue) == slot
        assert store.offset_get(slot) == -1
        store.offset_set(slot, 7)
        assert store.offset_get(slot) == 7
        ((found, in_group, of_queue, committed, owner, updated_ms),) = store.offsets()
        assert (found, in_group, of_queue, committed, owner) == (slot, group, queue, 7, -1)
        assert updated_ms > 0
        with raises_status(_core.BAD_ARGUMENT):
            store.offset_get(SIZES["offset_max"])
        for name in ("", "x" * 256, "a\0b"):
            with raises_status(_core.BAD_ARGUMENT):
                live.tables.group_put(name)


def test_a_queue_has_one_live_owner_and_the_dead_lose_it() -> None:
    with LiveStore() as live:
        (queue, *_) = live.topic()
        slot = live.tables.offset_put(live.tables.group_put("g"), queue)
        with raises_status(_core.BAD_ARGUMENT, "use_client"):
            live.store.offset_take(slot)
        mine = live.use_client()
        assert live.store.offset_take(slot)
        assert live.store.offset_owner(slot) == mine
        other = live.attach(writable=True)
        theirs = live.use_client(other)
        assert not other.offset_take(slot)
        other.offset_leave(slot)
        assert live.store.offset_owner(slot) == mine
        live.store.offset_leave(slot)
        assert other.offset_take(slot)
        assert live.store.offset_owner(slot) == theirs
        live.tables.client_drop(theirs)
        assert live.store.offset_owner(slot) == -1
        assert live.store.offset_take(slot)


def taken(live: LiveStore, slot: int) -> tuple[int, bool]:
    """What is shown of a slot, and whether a local member shows it."""
    word = live.taken_word(slot)
    return word & ~(1 << 63), bool(word >> 63)


def test_how_far_a_member_was_handed_messages_is_shown_while_it_owns_the_queue() -> None:
    with LiveStore() as live:
        (queue, *_) = live.topic()
        producer = live.producer()
        for number in range(6):
            producer.send("orders", b"x", queue_id=0, tag="odd" if number % 2 else "even")
        slot = live.tables.offset_put(live.tables.group_put("g"), queue)
        live.use_client()
        assert live.store.offset_take(slot) and taken(live, slot) == (0, False)
        reader = _core.Reader(live.store, tags=["odd"])
        reader.assign("orders", queue, 0, 0, slot)
        first, second = reader.poll(2)
        assert taken(live, slot) == (4, True)
        live.tables.offset_show(slot, 6)  # an owned queue is shown by its owner alone
        assert taken(live, slot) == (4, True)
        first.ack()
        second.ack()
        assert taken(live, slot) == (4, True) and live.store.offset_get(slot) == 4
        reader.seek(queue, 1)
        assert taken(live, slot) == (1, True)
        reader.poll(1)
        reader.revoke(queue)  # perhaps in a forked child: it says nothing of its parent's
        assert taken(live, slot) == (2, True)
        live.store.offset_leave(slot)
        assert taken(live, slot) == (0, False)


def test_a_client_without_a_slot_is_shown_once_the_owner_is_gone() -> None:
    with LiveStore() as live:
        (queue, *_) = live.topic()
        slot = live.tables.offset_put(live.tables.group_put("g"), queue)
        live.tables.offset_show(slot, 3)
        assert taken(live, slot) == (3, False)
        mine = live.use_client()
        assert live.store.offset_take(slot) and taken(live, slot) == (0, False)
        live.tables.client_drop(mine)
        live.tables.offset_show(slot, 5)
        assert taken(live, slot) == (5, False) and live.store.offset_owner(slot) == -1
        live.tables.offset_free(slot)
        assert taken(live, slot) == (0, False)
        with raises_status(_core.BAD_ARGUMENT):
            live.tables.offset_show(SIZES["offset_max"], 1)


def test_record_sizes_are_counted_by_bounds_with_their_sum() -> None:
    units = b"".join(struct.pack(">QIq", 0, size, 0) for size in (1, 10, 11, 100, 101, 5000))
    assert _core.unit_sizes(units, (10, 100)) == [2, 2, 2, 5223]
    assert _core.unit_sizes(units + b"cut short", ()) == [6, 5223]
    assert _core.unit_sizes(b"", (10, 100)) == [0, 0, 0, 0]
    with raises_status(_core.BAD_ARGUMENT):
        _core.unit_sizes(units, range(33))
    with pytest.raises(OverflowError):
        _core.unit_sizes(units, (-1,))


def test_an_owner_whose_process_died_is_no_owner() -> None:
    with LiveStore() as live:
        (queue, *_) = live.topic()
        slot = live.tables.offset_put(live.tables.group_put("g"), queue)
        live.use_client()
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        other = live.attach(writable=True)
        theirs = live.tables.client_put(child.pid, _core.process_start(child.pid), 1)
        other.use_client(theirs, live.tables.client_generation(theirs))
        assert other.offset_take(slot)
        assert not live.store.offset_take(slot)
        child.communicate(b"\n")
        assert live.store.offset_take(slot)


def test_clients_are_listed_with_what_they_did() -> None:
    with LiveStore() as live:
        live.topic()
        slot = live.use_client()
        for _ in range(3):
            live.producer().send("orders", b"x")
        first, second, _third = live.reader().poll()
        first.ack()
        first.ack()
        second.ack()
        ((found, _, pid, start, role, received, sent, beat_ns, settled),) = live.figures.clients()
        assert (found, pid, start, role) == (slot, os.getpid(), _core.process_start(os.getpid()), 3)
        assert (received, sent, settled) == (3, 3, 2)
        assert beat_ns > 0
        for wrong in (-1, SIZES["client_max"]):
            with pytest.raises((OverflowError, _core.CoreError)):
                live.store.use_client(wrong, 1)


# ---- the keeper's side -------------------------------------------------------------------------------------------


def test_scan_walks_records_over_file_ends() -> None:
    with LiveStore(files=3) as live:
        live.topic()
        producer = live.producer()
        sent = [producer.send("orders", bytes(10_000), tag="fruit") for _ in range(250)]
        assert live.figures.stats()["rolled"] == 2
        position, found, stop = live.keeper.scan(0, live.store.log_end, 10_000)
        assert (position, stop) == (live.store.log_end, "")
        assert [(item[0], item[3], item[4]) for item in found] == [
            (receipt.log_position, receipt.queue_id, receipt.offset) for receipt in sent
        ]
        assert {(item[2], item[6], item[7]) for item in found} == {(b"orders", _core.tag_hash("fruit"), 0)}
        part, few, _ = live.keeper.scan(0, live.store.log_end, 7)
        assert (len(few), part) == (7, sent[7].log_position)
        assert live.keeper.scan(live.store.log_end, FILE_BYTES * 3, 10) == (live.store.log_end, [], "zero")
        assert live.keeper.scan(FILE_BYTES * 3, FILE_BYTES * 4, 10) == (FILE_BYTES * 3, [], "blank-end")


def test_scan_stops_at_the_first_damaged_record() -> None:
    with LiveStore() as live:
        live.topic()
        first, second = live.producer().send("orders", b"a" * 100), live.producer().send("orders", b"b" * 100)
        path = next((live.path / "commitlog").iterdir())
        with path.open("r+b") as file:
            file.seek(second.log_position + 88)
            file.write(b"X")
        position, found, stop = live.keeper.scan(0, live.store.log_end, 10)
        assert (position, [item[0] for item in found]) == (second.log_position, [first.log_position])
        assert stop.startswith("corrupt: ")


def test_flush_raises_the_durable_end() -> None:
    with LiveStore() as live:
        live.topic()
        live.producer().send("orders", b"x")
        assert live.store.durable_end < live.store.log_end
        assert live.keeper.flush() == live.store.durable_end == live.store.log_end
        live.store.wait_durable(live.store.log_end, 0.0)
        with raises_status(_core.TIMED_OUT):
            live.keeper.keeper_beat()
            live.store.wait_durable(live.store.log_end + 1, 0.01)


def test_units_come_back_after_a_restart() -> None:
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        producer = live.producer()
        for i in range(500):
            producer.send("orders", b"%d" % i)
        assert live.figures.dirty_queues(10) == [(queue, 0, 500)]
        units = live.keeper.units_read(queue, 0, 1000)
        assert len(units) == 500 * _core.UNIT_BYTES
        with LiveStore() as again:
            (same,) = again.topic(queues=1)
            again.keeper.units_restore(same, 0, units)
            assert again.keeper.units_read(same, 100, 3) == units[2000:2060]
            assert again.store.queue(same)[1] == 500
            again.keeper.set_persisted(same, 500)
            assert again.figures.dirty_queues(10) == []
            assert again.keeper.frames_release(same, 0, 2, 1.0) == 2
            assert again.keeper.units_read(same, 0, 10) == b""
            with raises_status(_core.BAD_ARGUMENT):
                again.keeper.units_restore(same, 500, b"short")


def test_search_time_finds_the_first_message_at_or_after_a_time() -> None:
    with LiveStore() as live:
        (queue,) = live.topic(queues=1)
        producer = live.producer()
        receipts: list[_core.Receipt] = []

        def clock_moved() -> bool:
            receipts.append(producer.send("orders", b"x"))
            return len({receipt.store_ms for receipt in receipts}) > 4

        until(clock_moved)
        times = [receipt.store_ms for receipt in receipts]
        for time_ms in sorted(set(times)):
            assert live.store.search_time(queue, time_ms) == times.index(time_ms)
        for before in (0, -1, -(1 << 31), -(1 << 63), -(1 << 70)):
            assert live.store.search_time(queue, before) == 0
        for behind in (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 70):
            assert live.store.search_time(queue, behind) == len(times)
        assert live.store.search_time(queue, times[-1] + 1) == len(times)


def test_message_at_reads_one_record() -> None:
    with LiveStore() as live:
        live.topic()
        receipt = live.producer().send("orders", b"hello", key="k")
        message = live.store.message_at(receipt.log_position)
        assert (message.body, message.key, message.offset) == (b"hello", "k", receipt.offset)
        assert live.store.message_at(receipt.log_position, message.record_bytes).body == b"hello"
        message.ack()
        assert message.settled
        with raises_status(_core.CORRUPT):
            live.store.message_at(receipt.log_position + 1)
        with raises_status(_core.CORRUPT):
            live.store.message_at(receipt.log_position, 5)
        with raises_status(_core.GONE):
            live.store.message_at(live.store.log_end)


def test_the_keeper_sleeps_until_a_writer_rings() -> None:
    with LiveStore() as live:
        assert live.keeper.keep_flushed(0.0)[0] is False
        live.topic()
        live.keeper.set_allocated_end(0)
        live.keeper.keeper_beat()
        with raises_status(_core.LOG_FULL, "allocated up to 0"):
            live.producer().send("orders", b"x", timeout=0.01)
        assert live.keeper.keep_flushed(20.0)[0] is True
        assert live.keeper.keep_flushed(0.0)[0] is False


def test_a_signal_ends_the_keepers_sleep() -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with LiveStore() as live:
        before = signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(Stop):
                live.keeper.keep_flushed(60.0)
        finally:
            signal.signal(signal.SIGALRM, before)


def test_a_read_only_or_retired_store_says_why() -> None:
    with LiveStore() as live:
        live.topic()
        producer = live.producer()
        live.keeper.set_read_only(4)
        assert live.store.read_only == 4
        with raises_status(_core.READ_ONLY, "disk is full"):
            producer.send("orders", b"x")
        live.keeper.set_read_only(0)
        producer.send("orders", b"x")
        with raises_status(_core.BAD_ARGUMENT):
            live.keeper.set_read_only(10)
        live.keeper.set_retired()
        assert live.store.retired
        with raises_status(_core.RETIRED):
            producer.send("orders", b"x")


def test_lost_files_are_final_and_say_more_than_the_flush_that_failed_for_them() -> None:
    with LiveStore(flush_sync=True) as live:
        live.topic()
        producer = live.producer()
        live.keeper.keeper_beat()
        end = producer.append("orders", b"x", b"", queue_id=0)[3]
        for reason, then in ((1, 1), (9, 9), (0, 9), (1, 9), (4, 9)):
            live.keeper.set_read_only(reason)
            assert live.store.read_only == then
        with raises_status(_core.READ_ONLY, "removed or replaced"):
            producer.send("orders", b"x")
        for wait in (live.keeper.flush, lambda: live.store.wait_durable(end, 60.0)):  # no file that went is flushed
            with raises_status(_core.READ_ONLY):
                wait()
        assert live.store.durable_end < end


def test_repair_leaves_a_free_lock_free() -> None:
    with LiveStore() as live:
        before = live.figures.stats()
        live.keeper.repair(1.0)
        after = live.figures.stats()
        assert after["lock_count"] == before["lock_count"] + 1
        assert after["lock_tid"] == 0


def test_populate_is_harmless_anywhere_in_the_log() -> None:
    with LiveStore() as live:
        live.keeper.populate(0, FILE_BYTES)
        live.keeper.populate(FILE_BYTES - 1, 1 << 20)
        with raises_status(_core.SYSTEM):
            live.keeper.populate(FILE_BYTES, 1)
