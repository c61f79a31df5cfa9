"""Pulling records as bytes, one record by position, and waiting for many queues: over real units, files and threads."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import FILE_BYTES, SIZES, LiveStore, raises_status, until
from tests.tables.rows import every_row

ALL = (1000, 1 << 30, None)  # count_max, bytes_max, tags
HASHES = {tag: _core.tag_hash(tag) for tag in ("a", "b", "c")}


def log_bytes(live: LiveStore) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((live.path / "commitlog").iterdir()))


def split(body: bytes) -> list[dict[str, Any]]:
    """The records of an answer, each proven."""
    records = []
    while body:
        fields = _core.record_decode(body)
        assert _core.record_verify(body[: fields["record_bytes"]])
        records.append(fields)
        body = body[fields["record_bytes"] :]
    return records


def persist(live: LiveStore, queue: int) -> Path:
    """Play the keeper: every unit goes to its file, every full frame leaves memory."""
    _, end, _, topic, queue_id, _ = live.store.queue(queue)
    folder = live.path / "consumequeue" / live.store.topic(topic)["name"] / str(queue_id)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{0:020d}"
    path.write_bytes(live.keeper.units_read(queue, 0, end))
    live.keeper.set_persisted(queue, end)
    live.keeper.frames_release(queue, 0, end // _core.FRAME_UNITS, 1.0)
    return path


# ---- what is in an answer ----------------------------------------------------------------------------------------


def test_records_come_as_they_are_in_the_log() -> None:
    with LiveStore() as live:
        first, second, *_ = live.topic()
        producer = live.producer()
        spans = []
        for number in range(20):  # two queues in turn, so no two records of one lie back to back
            _, at, _, end = producer.append("orders", b"%d" % number * 50, queue_id=number % 2)
            spans.append((at, end))
        log = log_bytes(live)
        for queue, start in ((first, 0), (second, 1)):
            expected = b"".join(log[at:end] for at, end in spans[start::2])
            assert live.log.pull(queue, 0, *ALL) == (10, 10, expected)
        assert live.log.pull(first, 7, *ALL)[:2] == (10, 3)
        assert live.log.pull(first, 10, *ALL) == (10, 0, b"")
        assert live.log.pull(first, 11, *ALL) == (11, 0, b"")


def test_records_back_to_back_and_over_file_ends_come_too() -> None:
    with LiveStore(files=3) as live:
        queue, *_ = live.topic()
        producer = live.producer()
        bodies = [bytes([number % 251]) * 9000 for number in range(250)]
        for body in bodies:
            producer.append("orders", body, queue_id=0)
        assert live.figures.stats()["rolled"] == 2
        next_offset, count, body = live.log.pull(queue, 0, *ALL)  # more than is copied with the GIL held
        assert (next_offset, count) == (250, 250)
        assert [fields["body"] for fields in split(body)] == bodies


def test_limits_end_an_answer_but_the_first_record_goes_always() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        sizes = []
        for _ in range(6):
            _, at, _, end = live.producer().append("orders", bytes(1000), queue_id=0)
            sizes.append(end - at)
        assert live.log.pull(queue, 0, 4, 1 << 30, None)[:2] == (4, 4)
        assert live.log.pull(queue, 0, 1000, 0, None)[:2] == (1, 1)
        assert live.log.pull(queue, 0, 1000, sum(sizes[:3]), None)[:2] == (3, 3)
        assert live.log.pull(queue, 0, 1000, sum(sizes[:3]) - 1, None)[:2] == (2, 2)
        assert live.log.pull(queue, 0, 1000, 1 << 30, None, 5)[:2] == (5, 5)
        assert live.log.pull(queue, 0, 0, 1 << 30, None) == (0, 0, b"")
        assert live.log.pull(queue, 0, 1 << 70, 1 << 70, None, 1 << 70)[:2] == (6, 6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=300),
    st.sets(st.sampled_from(["a", "b", "c"])),
    st.integers(1, 40),
    st.integers(1, 200),
)
def test_tags_choose_and_an_answer_says_how_far_it_looked(
    tags: list[str], wanted: set[str], count_max: int, scan_max: int
) -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        producer = live.producer()
        for number, tag in enumerate(tags):
            producer.append("orders", b"%d" % number, b"TAGS\1" + tag.encode() if tag else b"", queue_id=0)
        expected = [number for number, tag in enumerate(tags) if tag in wanted]
        offset, found = 0, []
        while offset < len(tags):
            answer = live.log.pull(queue, offset, count_max, 1 << 30, tuple(map(HASHES.get, wanted)), scan_max)  # type: ignore[arg-type]
            looked, count, body = answer
            assert offset < looked <= offset + scan_max and count <= count_max
            found += [int(fields["body"]) for fields in split(body)]
            offset = looked
        assert found == expected


def test_a_tag_is_what_the_unit_says_with_all_its_bits() -> None:
    codes = (1, -1, (1 << 31) - 1, -(1 << 31), 0)
    with LiveStore() as live:
        queue, *_ = live.topic()
        producer = live.producer()
        for code in codes:
            producer.append("orders", b"%d" % code, b"TAGS\1a", queue_id=0, tag_code=code)
        for code in codes:
            (fields,) = split(live.log.pull(queue, 0, 1000, 1 << 30, [code])[2])
            assert int(fields["body"]) == code
        assert live.log.pull(queue, 0, 1000, 1 << 30, [1 << 32, (1 << 32) - 1, 1 << 31])[:2] == (5, 0)
        many = [*range(2, 500), (1 << 31) - 1]
        assert live.log.pull(queue, 0, 1000, 1 << 30, many)[:2] == (5, 1)
        assert live.log.pull(queue, 0, 1000, 1 << 30, ())[:2] == (5, 0)


@every_row("code", [1 << 40, -(1 << 40), (1 << 63) - 1, -(1 << 62), 1 << 31, -(1 << 31) - 1])
def test_a_unit_whose_hash_no_tag_has_hides_no_record(code: int) -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        producer = live.producer()
        for each in (7, code, 8):
            producer.append("orders", b"%d" % each, b"TAGS\1a", queue_id=0, tag_code=each)
        found = split(live.log.pull(queue, 0, 1000, 1 << 30, [7])[2])
        assert [int(fields["body"]) for fields in found] == [7, code]
        assert live.log.pull(queue, 0, 1000, 1 << 30, ())[:2] == (3, 0)


def test_i7_nothing_is_seen_before_it_is_durable_with_sync_flush() -> None:
    with LiveStore(flush_sync=True) as live:
        queue, *_ = live.topic()
        _, at, _, _ = live.producer().append("orders", b"x", queue_id=0)
        assert live.log.pull(queue, 0, *ALL) == (0, 0, b"")
        assert live.log.record_bytes_at(at) is None
        live.keeper.flush()
        assert live.log.pull(queue, 0, *ALL)[:2] == (1, 1)
        assert live.log.record_bytes_at(at) is not None


# ---- old, deleted and damaged records ----------------------------------------------------------------------------


def test_units_in_files_are_read_like_those_in_memory() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for number in range(1000):
            live.producer().append("orders", b"%d" % number, queue_id=0)
        before = live.log.pull(queue, 0, *ALL)
        persist(live, queue)
        assert live.keeper.units_read(queue, 0, 1) == b""
        assert before[:2] == (800, 800) and before == live.log.pull(queue, 0, *ALL)
        assert live.log.pull(queue, 0, *ALL, 5000)[:2] == (1000, 1000)
        assert [int(fields["body"]) for fields in split(live.log.pull(queue, 795, *ALL)[2])] == list(range(795, 1000))


def test_below_the_first_offset_left_the_answer_is_that_one() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for _ in range(10):
            live.producer().append("orders", b"x", queue_id=0)
        live.keeper.set_offset_min(queue, 6)
        assert live.log.pull(queue, 2, *ALL) == (6, 0, b"")
        assert live.log.pull(queue, 6, *ALL)[:2] == (10, 4)


def test_records_that_retention_deletes_are_passed_over() -> None:
    with LiveStore(files=3) as live:
        queue, *_ = live.topic()
        ends = [live.producer().append("orders", bytes(9000), queue_id=0)[3] for _ in range(250)]
        left = sum(end > FILE_BYTES for end in ends)
        (live.path / "commitlog" / f"{0:020d}").unlink()
        live.keeper.set_log_begin(FILE_BYTES)
        fresh = live.attach(writable=True)  # its mappings do not know the deleted file
        assert _core.BrokerLog(fresh).pull(queue, 0, *ALL)[:2] == (250, left)
        assert _core.BrokerLog(fresh).record_bytes_at(0) is None


def damage(live: LiveStore, position: int) -> None:
    live.keeper.flush()  # above the durable end nothing is damage yet
    with (live.path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")


def test_a_damaged_record_ends_an_answer_and_is_named_when_it_is_the_first() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        at = [live.producer().append("orders", b"x" * 100, b"TAGS\1a", queue_id=0)[1] for _ in range(5)]
        damage(live, at[2])
        assert live.log.pull(queue, 0, *ALL)[:2] == (2, 2)
        with raises_status(_core.CORRUPT, f"offset 2: the bytes at log position {at[2]}"):
            live.log.pull(queue, 2, *ALL)
        assert live.log.pull(queue, 3, *ALL)[:2] == (5, 2)
        assert live.log.pull(queue, 2, 1000, 1 << 30, [HASHES["b"]])[:2] == (5, 0)  # it is not asked for
        assert live.log.record_bytes_at(at[2]) is None


def test_a_record_that_names_another_queue_offset_is_damaged() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        at = live.producer().append("orders", b"x" * 100, queue_id=0)[1]
        damage(live, at + 20)
        with raises_status(_core.CORRUPT):
            live.log.pull(queue, 0, *ALL)


def test_units_that_are_nowhere_are_named() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for _ in range(300):
            live.producer().append("orders", b"x", queue_id=0)
        persist(live, queue).unlink()
        with raises_status(_core.CORRUPT, "from offset 0 on"):
            live.log.pull(queue, 0, *ALL)
        assert live.log.pull(queue, 204, *ALL)[:2] == (300, 96)


def test_a_scribbled_unit_is_damage_not_a_crash() -> None:
    with LiveStore() as live:
        queue, *_ = live.topic()
        for _ in range(300):
            live.producer().append("orders", b"x" * 30, queue_id=0)
        path = persist(live, queue)
        good = path.read_bytes()
        for position, size in (
            (FILE_BYTES - 4, 100),
            (0, 0xFFFFFFFF),
            (1 << 63, 200),
            ((1 << 64) - 1, 200),
            (1, 200),
            (0, 3),
        ):
            path.write_bytes(struct.pack(">QIq", position, size, 0) + good[20:])
            try:
                assert live.log.pull(queue, 0, *ALL) == (0, 0, b"")  # it seems not to be visible yet
            except _core.CoreError as error:
                assert error.args[0] == _core.CORRUPT


@every_row(
    "args",
    [
        (-1, 0, 1, 1, None),
        (SIZES["queue_max"], 0, 1, 1, None),
        (0, -1, 1, 1, None),
        (0, 0, -1, 1, None),
        (0, 0, 1, -1, None),
        (0, 0, 1, 1, None, -1),
        (0, 0, 1, 1, 7),
        (0, 0, 1, 1, ["a"]),
        (0, 0, 1, 1, [1 << 64]),
        (0, 0, 1, 1),
        ("0", 0, 1, 1, None),
    ],
)
def test_a_wrong_pull_is_refused(args: Any) -> None:
    with LiveStore() as live:
        live.topic()
        with pytest.raises((_core.CoreError, TypeError, OverflowError)):
            live.log.pull(*args)


# ---- one record --------------------------------------------------------------------------------------------------


def test_one_record_is_found_by_its_position_and_nothing_else_is() -> None:
    with LiveStore() as live:
        live.topic()
        _, at, _, end = live.producer().append("orders", b"x" * 300, queue_id=0)
        record = log_bytes(live)[at:end]
        assert live.log.record_bytes_at(at) == live.log.record_bytes_at(at, end - at) == record
        for position, size in ((at + 1, 0), (at, end - at + 1), (end, 0), (1 << 62, 0), (1 << 63, 0)):
            assert live.log.record_bytes_at(position, size) is None


# ---- waiting -----------------------------------------------------------------------------------------------------


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    return thread, answers


def asleep(live: LiveStore, slot: int) -> bool:
    return any((number, state) == (slot, 2) for number, state, *_ in live.figures.clients())


def test_a_wait_ends_at_once_when_there_is_something() -> None:
    with LiveStore() as live:
        queues = live.topic()
        live.use_client()
        live.producer().append("orders", b"x", queue_id=3)
        assert live.log.wait_queues(queues, [0, 0, 0, 0], 60.0) is True
        assert live.log.wait_queues(queues, [0, 0, 0, 1], 0.0) is False
        assert live.log.wait_queues([], [], 0.0) is False
        assert live.log.queues_risen(queues, [0, 0, 0, 0]) == queues[3:]
        assert live.log.queues_risen([*queues, 1 << 30], [0, 0, 0, 1, 0]) == []


def test_an_append_of_another_store_ends_the_sleep() -> None:
    with LiveStore() as live:
        queues = live.topic()
        slot = live.use_client()
        other = live.attach(writable=True)
        for number in range(20):
            thread, answers = in_thread(lambda wanted=number: live.log.wait_queues(queues, [wanted] * 4, 60.0))
            until(lambda: asleep(live, slot))
            live.producer(other).append("orders", b"x", queue_id=number % 4)
            for queue_id in range(4):
                if queue_id != number % 4:
                    live.producer(other).append("orders", b"x", queue_id=queue_id)
            thread.join(30)
            assert answers == [True]


def test_wake_self_ends_the_sleep_or_the_next_one() -> None:
    with LiveStore() as live:
        queues = live.topic()
        slot = live.use_client()
        thread, answers = in_thread(lambda: live.log.wait_queues(queues, [0] * 4, 60.0))
        until(lambda: asleep(live, slot))
        live.log.wake_self()
        thread.join(30)
        assert answers == [True]
        assert live.log.wait_queues(queues, [0] * 4, 0.0) is False
        live.log.wake_self()
        live.log.wake_self()
        assert live.log.wait_queues(queues, [0] * 4, 60.0) is True
        assert live.log.wait_queues(queues, [0] * 4, 0.0) is False


def test_no_wake_of_many_is_lost() -> None:
    """Each round needs the wake of that round: a lost one would leave the sleeper for a minute."""
    with LiveStore() as live:
        queues = live.topic()
        live.use_client()
        turn = threading.Semaphore(0)
        woken: list[bool] = []

        def sleep() -> None:
            for _ in range(2000):
                turn.release()
                woken.append(live.log.wait_queues(queues, [0] * 4, 60.0))

        thread, _ = in_thread(sleep)
        for _ in range(2000):
            turn.acquire()
            live.log.wake_self()
        deadline = time.monotonic() + 30
        thread.join(30)
        assert time.monotonic() < deadline and woken == [True] * 2000


def test_the_durable_end_is_waited_for_too() -> None:
    with LiveStore(flush_sync=True) as live:
        queues = live.topic()
        slot = live.use_client()
        end = live.producer().append("orders", b"x", queue_id=0)[3]
        assert live.log.wait_queues([], [], 0.0, safe_end=end) is False
        thread, answers = in_thread(lambda: live.log.wait_queues(queues, [5] * 4, 60.0, safe_end=end))
        until(lambda: asleep(live, slot))
        live.keeper.flush()
        thread.join(30)
        assert answers == [True]
        assert live.log.wait_queues([], [], 60.0, safe_end=end) is True


def test_waiting_needs_a_client_slot_and_as_many_offsets_as_queues() -> None:
    with LiveStore() as live:
        queues = live.topic()
        with raises_status(_core.BAD_ARGUMENT, "use_client"):
            live.log.wait_queues(queues, [0] * 4, 0.1)
        live.use_client()
        with raises_status(_core.BAD_ARGUMENT, "4 queues and 1 offsets"):
            live.log.wait_queues(queues, [0], 0.1)
        with raises_status(_core.BAD_ARGUMENT):
            live.log.wait_queues([-1], [0], 0.1)
        with pytest.raises(TypeError):
            live.log.wait_queues(7, [0], 0.1)  # type: ignore[arg-type]


def test_closing_the_store_during_a_wait_takes_nothing_away_under_its_feet() -> None:
    with LiveStore() as live:
        queues = live.topic()
        other = live.attach(writable=True)
        slot = live.use_client(other)
        thread, answers = in_thread(lambda: _core.BrokerLog(other).wait_queues(queues, [0] * 4, 60.0))
        until(lambda: asleep(live, slot))
        other.close()
        live.producer().append("orders", b"x", queue_id=0)
        thread.join(30)
        assert answers == [True]
        with raises_status(_core.BAD_ARGUMENT, "closed"):
            _core.BrokerLog(other).wake_self()


def test_trimmed_records_are_those_of_a_broker_without_record_checksums() -> None:
    with LiveStore() as live:
        queue = live.topic()[0]
        for properties in (None, {"colour": "red"}):
            live.producer().send("orders", b"body", queue_id=0, properties=properties)
        whole, trimmed = (
            live.log.pull(queue, 0, 10, 1 << 20, None, 800, None, is_trimmed) for is_trimmed in (False, True)
        )
        assert trimmed[:2] == whole[:2] == (2, 2) and len(whole[2]) - len(trimmed[2]) == 2 * len("__CRC32#.0123456789.")
        left, found = trimmed[2], []
        while left:
            found.append(_core.record_decode(left))
            left = left[found[-1]["record_bytes"] :]
        assert [each["properties"] for each in found] == [b"", b"colour\x01red\x02"]
        assert [each["body"] for each in found] == [b"body"] * 2
        assert live.log.record_bytes_at(found[1]["log_position"], 0, True) == trimmed[2][found[0]["record_bytes"] :]
