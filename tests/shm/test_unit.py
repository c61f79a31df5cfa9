"""The Python side's layout of a ConsumeQueue unit is the one the C core writes and reads."""

import struct

import numpy
import pytest

from shmq.bindings import _core
from shmq.shm.core import KeeperStore, tag_hash
from shmq.shm.unit import (
    PRE_BLANK,
    UNIT,
    UNIT_FIELDS,
    Unit,
    is_pre_blank,
    pack_unit,
    tag_codes_of,
    units_of,
    unpack_unit,
)
from tests.bindings.live_store import LiveStore

SOME = [Unit(0, 1, 0), Unit(1 << 40, 4 << 20, -1), Unit((1 << 62) + 7, 0x7FFFFFFE, -(1 << 63)), Unit(8, 90, 1 << 62)]
BYTES = b"".join(pack_unit(*unit) for unit in SOME)


def test_the_size_is_the_cores() -> None:
    assert UNIT.size == numpy.dtype(UNIT_FIELDS).itemsize == _core.UNIT_BYTES


def test_an_append_writes_the_units_that_are_unpacked_here() -> None:
    with LiveStore() as live:
        queue = live.topic("orders")[0]
        producer = live.producer()
        sizes, receipts = [], []
        for tag in ("fruit", "veg", None):
            end = live.store.log_end
            receipts.append(producer.send("orders", b"x" * 100, tag=tag, queue_id=0))
            sizes.append(live.store.log_end - end)
        found = list(units_of(live.store.units_stored(queue, 0, 3)))
    assert [unit.log_position for unit in found] == [receipt.log_position for receipt in receipts]
    assert [unit.record_bytes for unit in found] == sizes
    assert [unit.tag_code for unit in found] == [tag_hash("fruit"), tag_hash("veg"), 0]


def test_the_core_reads_the_units_that_are_packed_here() -> None:
    with LiveStore() as live:
        queues = live.topic("orders")
        sent = live.producer().send("orders", b"body", tag="fruit", queue_id=1)
        size = live.store.log_end - sent.log_position
        KeeperStore(live.store).units_restore(queues[1], 0, pack_unit(sent.log_position, size, tag_hash("fruit")))
        reader = _core.Reader(live.store)
        reader.assign("orders", queues[1], 1, 0)
        assert [bytes(message.view) for message in reader.poll(10, timeout=1.0)] == [b"body"]


def test_every_way_of_reading_agrees() -> None:
    assert list(units_of(BYTES)) == [unpack_unit(BYTES, index) for index in range(len(SOME))] == SOME
    assert tag_codes_of(BYTES) == [unit.tag_code for unit in SOME]
    assert [Unit(*row) for row in numpy.frombuffer(BYTES, UNIT_FIELDS).tolist()] == SOME


def test_the_pre_blank_is_rocketmqs() -> None:
    assert bytes.fromhex("00000000000000007fffffff0000000000000000") == PRE_BLANK
    assert is_pre_blank(*unpack_unit(PRE_BLANK)[:2])
    assert not any(is_pre_blank(*unit[:2]) for unit in SOME)


def test_half_a_unit_is_refused() -> None:
    with pytest.raises(struct.error):
        list(units_of(BYTES[:-1]))
