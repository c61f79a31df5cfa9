"""Counters are in shared memory: they outlive their writer, and a reader trusts no byte of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from shmq.errors import SegmentError
from shmq.shm.access import access_rights
from shmq.shm.counter_reader import Block, open_counters
from shmq.shm.counters import (
    BLOCK_HEAD_BYTES,
    BRIDGE,
    KEEPER,
    PAGE_BYTES,
    WRITER_BYTES,
    counters_name,
    create_counters,
    open_counter_writer,
    remove_counters,
)
from shmq.shm.instance import Instance
from shmq.shm.liveness import boot_id, own_mark, pid_namespace

BOUNDS = (10, 100)


@pytest.fixture
def instance() -> Iterator[Instance]:
    generation = int.from_bytes(os.urandom(7)) | 1
    made = Instance(
        "counted", generation, "sysv", (0, 0, 0), (0, 0, 0), 1, "/", os.geteuid(), 0o600, boot_id(), pid_namespace()
    )
    create_counters(made, access_rights(), bridges=2)
    yield made
    remove_counters(made)


def blocks(instance: Instance) -> dict[int, Block]:
    reader = open_counters(instance)
    try:
        return {block.writer: block for block in reader.blocks()}
    finally:
        reader.close()


def words(instance: Instance, writer: int) -> dict[str, tuple[int, ...]]:
    return {entry.family: entry.words for entry in blocks(instance)[writer].entries}


def test_a_total_outlives_its_writer_and_the_next_one_goes_on(instance: Instance) -> None:
    first = open_counter_writer(instance, BRIDGE)
    first.counter("shmq_requests", topic="orders").add(3)
    first.histogram("shmq_latency", BOUNDS).observe(10)
    first.close()
    second = open_counter_writer(instance, BRIDGE)
    second.counter("shmq_requests", topic="orders").add(2)
    second.histogram("shmq_latency", BOUNDS).observe(101, times=4)
    second.close()
    assert words(instance, BRIDGE) == {"shmq_requests": (5,), "shmq_latency": (1, 0, 4, 414)}
    [entry, _] = blocks(instance)[BRIDGE].entries
    assert entry.labels == (("topic", "orders"),)
    assert blocks(instance)[BRIDGE].mark == own_mark()


def test_each_writer_has_a_block_of_its_own(instance: Instance) -> None:
    for writer in (KEEPER, BRIDGE, BRIDGE + 1):
        opened = open_counter_writer(instance, writer)
        opened.counter("shmq_rounds").add(writer + 1)
        opened.close()
    assert [words(instance, writer)["shmq_rounds"] for writer in range(3)] == [(1,), (2,), (3,)]
    with pytest.raises(SegmentError, match="no block 3"):
        open_counter_writer(instance, BRIDGE + 2)


def test_more_bridges_after_a_restart_find_room_and_lose_nothing(instance: Instance) -> None:
    opened = open_counter_writer(instance, KEEPER)
    opened.counter("shmq_rounds").add(7)
    opened.close()
    create_counters(instance, access_rights(), bridges=3)
    open_counter_writer(instance, BRIDGE + 2).close()
    assert words(instance, KEEPER) == {"shmq_rounds": (7,)}


def test_what_finds_no_room_is_counted_as_refused_and_harms_no_counter(instance: Instance) -> None:
    writer = open_counter_writer(instance, BRIDGE)
    writer.counter("kept").add()
    for number in range(WRITER_BYTES // 1000 + 10):
        writer.counter("wide", topic=f"{number:0990}").add()
    writer.counter("x" * 2000).add()
    writer.close()
    block = blocks(instance)[BRIDGE]
    assert block.refused > 10 and block.entries[0].words == (1,)
    assert len(block.entries) + block.refused == WRITER_BYTES // 1000 + 12


def test_unused_room_takes_no_memory(instance: Instance) -> None:
    open_counter_writer(instance, BRIDGE).close()
    status = os.stat(f"/dev/shm{counters_name(instance)}")
    assert status.st_size > 3 * WRITER_BYTES and status.st_blocks * 512 < 200_000


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, struct.pack("=Q", 1 << 63)),  # more used than there is
        (0, struct.pack("=Q", BLOCK_HEAD_BYTES + 3)),
        (BLOCK_HEAD_BYTES, struct.pack("=II", 0, 1)),
        (BLOCK_HEAD_BYTES, struct.pack("=II", 8, 1 << 31)),
        (BLOCK_HEAD_BYTES, struct.pack("=II", 1 << 31, 1)),
    ],
)
def test_a_block_that_makes_no_sense_is_left_out_and_begun_anew(instance: Instance, at: int, data: bytes) -> None:
    for writer in (KEEPER, BRIDGE):
        opened = open_counter_writer(instance, writer)
        opened.counter("shmq_rounds").add()
        opened.close()
    descriptor = os.open(f"/dev/shm{counters_name(instance)}", os.O_RDWR)
    os.pwrite(descriptor, data, PAGE_BYTES + BRIDGE * WRITER_BYTES + at)
    os.close(descriptor)
    assert list(blocks(instance)) == [KEEPER]
    opened = open_counter_writer(instance, BRIDGE)
    opened.counter("shmq_rounds").add(9)
    opened.close()
    assert words(instance, BRIDGE) == {"shmq_rounds": (9,)}


def test_the_counters_of_another_generation_or_owner_are_refused(instance: Instance) -> None:
    with pytest.raises(SegmentError, match="could not be opened"):
        open_counters(instance._replace(generation=instance.generation ^ 2))
    with pytest.raises(SegmentError, match="is not the broker's"):
        open_counters(instance._replace(uid=instance.uid + 1))
    os.chmod(f"/dev/shm{counters_name(instance)}", 0o644)
    with pytest.raises(SegmentError, match="mode 0644"):
        open_counters(instance)


def test_they_are_readable_by_who_may_attach_and_writable_by_the_broker_alone(instance: Instance) -> None:
    mode = os.stat(f"/dev/shm{counters_name(instance)}").st_mode & 0o777
    assert mode == access_rights().read_mode
