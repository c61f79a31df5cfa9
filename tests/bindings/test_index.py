"""The key index in C: RocketMQ's file byte for byte, filled from a real log, whole wherever its filler was killed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.bindings import _core
from tests.bindings.live_store import LiveStore

SLOTS, ENTRIES = 16, 64
HEAD = struct.Struct(">qqqqii")
ENTRY = struct.Struct(">iqii")


def java_hash(text: str) -> int:
    """String.hashCode, said again in Python."""
    units = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def key_hash(topic: str, key: str) -> int:
    return max(0, abs(java_hash(f"{topic}#{key}")) if java_hash(f"{topic}#{key}") != -(1 << 31) else 0)


def new_file(slots: int = SLOTS, entries: int = ENTRIES) -> bytearray:
    return bytearray(_core.index_bytes(slots, entries))


def entries_of(data: bytearray) -> list[tuple[int, int, int, int]]:
    """(hash, log position, seconds, previous) of every committed entry."""
    count = HEAD.unpack_from(data)[5]
    return [ENTRY.unpack_from(data, 40 + 4 * SLOTS + 20 * number) for number in range(1, max(count, 1))]


def find(data: bytearray, topic: str, key: str, **values: int) -> list[int]:
    wanted = {"begin_ms": 0, "end_ms": 1 << 62, "count": 64, "steps": 1000} | values
    positions, following = _core.index_find(data, SLOTS, ENTRIES, _core.index_hash(topic, key), **wanted)
    looks = 0
    while following:
        looks += 1
        assert looks <= ENTRIES, "a search that does not end"
        rest, following = _core.index_find(data, SLOTS, ENTRIES, _core.index_hash(topic, key), **wanted, next=following)
        positions += rest
    return positions


class Log:
    """A store whose log is followed into one index file."""

    def __init__(self, live: LiveStore) -> None:
        self.store, self.keeper = live.store, live.keeper
        live.tables.topic_put("orders", read_queues=1, write_queues=1)
        self.producer = _core.Producer(self.store, resolve=self.store.topic_find)

    def send(self, body: bytes = b"x", **values: object) -> int:
        return self.producer.send("orders", body, queue_id=0, **values).log_position

    def follow(self, data: bytearray | None, position: int = 0, room: int = ENTRIES) -> tuple[int, int, int, int, int]:
        end = self.store.log_end
        if data is None:
            return self.keeper.index_follow(position, end, end)
        return self.keeper.index_follow(position, end, end, data, SLOTS, ENTRIES, room)


@pytest.fixture
def log():
    with LiveStore(files=2) as live:
        yield Log(live)


@given(st.text(max_size=20), st.text(max_size=40))
def test_the_hash_is_javas_of_topic_and_key_made_positive(topic: str, key: str) -> None:
    clean = [text.encode(errors="replace").decode() for text in (topic, key)]
    assert _core.index_hash(*clean) == key_hash(*clean)


def test_a_file_is_what_rocketmq_writes(log: Log) -> None:
    data = new_file()
    first = log.send(key="a")
    log.send(b"no key", tag="t")
    second = log.send(keys=["b", "a"], properties={"colour": "red"})
    reached = log.follow(data)
    assert reached == (log.store.log_end, _core.INDEX_DONE, reached[2], 3, 2)
    begin_ms, end_ms, begin, end, slots_used, count = HEAD.unpack_from(data)
    assert (begin, end, count) == (first, second, 4)
    assert (begin_ms, end_ms) == (log.store.message_at(first).store_ms, log.store.message_at(second).store_ms)
    a, b = key_hash("orders", "a"), key_hash("orders", "b")
    assert [entry[:3] for entry in entries_of(data)] == [(a, first, 0), (b, second, 0), (a, second, 0)]
    assert [entry[3] for entry in entries_of(data)] == [0, 0 if a % SLOTS != b % SLOTS else 1, 1]
    assert slots_used == len({a % SLOTS, b % SLOTS})
    assert struct.unpack_from(">i", data, 40 + 4 * (a % SLOTS))[0] == 3


def test_every_key_is_found_newest_first_and_no_other_one(log: Log) -> None:
    data = new_file()
    placed: dict[str, list[int]] = {}
    for number in range(20):
        words = {f"k{number % 7}", f"w{number}"}
        position = log.send(keys=sorted(words))
        for word in words:
            placed.setdefault(word, []).insert(0, position)
    log.follow(data)
    for word, positions in placed.items():
        assert find(data, "orders", word) == positions
        assert find(data, "orders", word, count=2) == positions[:2]
    assert find(data, "orders", "none") == []
    assert find(data, "other", "k1") == []


def test_a_search_looks_at_no_more_entries_than_it_may(log: Log) -> None:
    data = new_file()
    positions = [log.send(key="same") for _ in range(10)]
    log.follow(data)
    wanted = {"begin_ms": 0, "end_ms": 1 << 62, "count": 64, "steps": 3}
    hash_code = _core.index_hash("orders", "same")
    found, following = _core.index_find(data, SLOTS, ENTRIES, hash_code, **wanted)
    assert found == positions[:-4:-1]
    assert _core.index_find(data, SLOTS, ENTRIES, hash_code, **wanted, next=following)[0] == positions[-4:-7:-1]
    assert find(data, "orders", "same", steps=3) == positions[::-1]


def test_a_time_range_is_kept_in_whole_seconds(log: Log) -> None:
    data = new_file()
    log.send(key="a")
    log.follow(data)
    begin_ms = HEAD.unpack_from(data)[0]
    assert find(data, "orders", "a", begin_ms=begin_ms, end_ms=begin_ms)
    assert not find(data, "orders", "a", begin_ms=begin_ms + 1)
    assert not find(data, "orders", "a", end_ms=begin_ms - 1)


def test_records_without_keys_are_passed_and_need_no_file(log: Log) -> None:
    for number in range(100):
        log.send(bytes(number * 37 % 700), **({"tag": "t"} if number % 3 else {}))
    assert log.follow(None)[:2] == (log.store.log_end, _core.INDEX_DONE)
    position = log.send(key="k")
    assert log.follow(None)[:2] == (position, _core.INDEX_NO_FILE)


def test_a_body_that_looks_like_a_bare_record_hides_no_keys(log: Log) -> None:
    data = new_file()
    bare = b"\x00\x14__CRC32#\x010123456789\x02"
    position = log.send(bare, key="k")
    log.send(b"x", properties={"p": "\x00\x14"}, key="k2")
    log.follow(data)
    assert find(data, "orders", "k") == [position]
    assert find(data, "orders", "k2")


def test_the_log_is_followed_over_the_end_of_a_file(log: Log) -> None:
    data = new_file()
    for _ in range(9):
        log.send(bytes(140_000))
    position = log.send(key="behind")
    assert position > log.store.head["file_bytes"]
    assert log.follow(data)[0] == log.store.log_end
    assert find(data, "orders", "behind") == [position]


def test_a_walk_may_stop_at_any_border_and_go_on(log: Log) -> None:
    whole, parts = new_file(), new_file()
    for number in range(30):
        log.send(key=f"k{number % 5}")
    log.follow(whole)
    position, end = 0, log.store.log_end
    while position < end:
        position = log.keeper.index_follow(position, position + 1, end, parts, SLOTS, ENTRIES, ENTRIES)[0]
    assert parts == whole


def test_nothing_is_stored_where_no_block_is_reserved_nor_beyond_the_last_entry(log: Log) -> None:
    data = new_file()
    positions = [log.send(keys=["a", "b"]) for _ in range(40)]
    reached = log.follow(data, room=6)
    assert reached[:2] == (positions[2], _core.INDEX_NO_ROOM)
    assert not any(data[40 + 4 * SLOTS + 20 * 6 :])
    reached = log.follow(data, reached[0])
    assert reached[:2] == (positions[31], _core.INDEX_FULL)
    assert HEAD.unpack_from(data)[5] == ENTRIES - 1


def test_a_record_with_more_keys_than_a_file_holds_does_not_stop_the_index(log: Log) -> None:
    data = new_file()
    log.send(keys=[f"k{number}" for number in range(200)])
    assert log.follow(data)[1] == _core.INDEX_DONE
    assert HEAD.unpack_from(data)[5] == ENTRIES


def test_following_again_changes_nothing(log: Log) -> None:
    data = new_file()
    for number in range(10):
        log.send(keys=["a", f"k{number}"])
    log.follow(data)
    before = bytes(data)
    assert log.follow(data)[1] == _core.INDEX_DONE
    assert data == before


def test_a_filler_killed_between_two_stores_is_redone_to_the_same_bytes(log: Log) -> None:
    """What a kill leaves: any first stores of one record, in program order, on top of the file before it."""
    before = new_file()
    for number in range(6):
        log.send(keys=["a", f"k{number}"])
    start = log.follow(before)[0]
    log.send(keys=["a", "b", "c", "a1", "a2"])
    after = bytearray(before)
    log.follow(after, start)
    changed = [at for at in range(0, len(after), 4) if before[at : at + 4] != after[at : at + 4]]
    entries_at = 40 + 4 * SLOTS
    stores = sorted((at for at in changed if at >= entries_at), key=lambda at: at)
    slots = [at for at in changed if 40 <= at < entries_at]
    # Entry by entry, each followed by its slot, which takes the number of the entry.
    order: list[tuple[int, bytes]] = []
    first = HEAD.unpack_from(before)[5]
    for number in range(first, HEAD.unpack_from(after)[5]):
        at = entries_at + 20 * number
        order += [(word, bytes(after[word : word + 4])) for word in range(at, at + 20, 4)]
        slot = 40 + 4 * (ENTRY.unpack_from(after, at)[0] % SLOTS)
        order.append((slot, number.to_bytes(4, "big")))
    assert {at for at, _ in order} >= {*stores, *slots}
    for cut in range(len(order) + 1):
        killed = bytearray(before)
        for at, word in order[:cut]:
            killed[at : at + 4] = word
        assert log.follow(killed, start)[1] == _core.INDEX_DONE
        assert killed[entries_at:] == after[entries_at:], cut
        assert killed[:entries_at] == after[:entries_at], cut


def test_damage_stops_the_walk_where_it_is(log: Log) -> None:
    log.send(key="a")
    position = log.send(key="b")
    log.send(key="c")
    path = f"{log.store.head['store_path']}/commitlog/{0:020d}"
    with open(path, "r+b") as file:
        file.seek(position + 4)
        file.write(b"\0\0\0\1")
    assert log.follow(new_file())[:2] == (position, _core.INDEX_DAMAGE)


@given(st.binary(min_size=_core.index_bytes(4, 8), max_size=_core.index_bytes(4, 8)))
def test_a_file_of_any_bytes_is_searched_without_harm(data: bytes) -> None:
    try:
        _core.index_head(data, 4, 8)
    except _core.CoreError as error:
        assert error.args[0] == _core.CORRUPT
        return
    whole = {"begin_ms": 0, "end_ms": 1 << 62, "count": 64}
    found, following = _core.index_find(data, 4, 8, 1, **whole, steps=1000)
    assert len(found) <= 8 and following == 0
    pieces, following = _core.index_find(data, 4, 8, 1, **whole, steps=1)
    for _ in range(8):
        if following:
            more, following = _core.index_find(data, 4, 8, 1, **whole, steps=1, next=following)
            pieces += more
    assert (pieces, following) == (found, 0)
    for number in (1, 7, 8, 1 << 31):
        assert len(_core.index_find(data, 4, 8, 1, **whole, steps=1000, next=number)[0]) <= 8


@pytest.mark.parametrize(("slots", "entries"), [(0, 64), (16, 1), (16, 65), (1 << 31, 64)])
def test_a_file_of_another_shape_is_refused(slots: int, entries: int) -> None:
    with pytest.raises(_core.CoreError):
        _core.index_head(new_file(), slots, entries)
