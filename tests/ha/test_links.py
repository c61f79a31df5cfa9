"""Leader and follower joined in memory: whatever the pieces, the follower's log becomes the leader's.

The records of these logs are only as long as they say: size 4 | bytes. A size of 0 before a magic word is a BLANK.
"""

from __future__ import annotations

import random
from struct import Struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.daemon.ha.leader import LeaderLink, LogSpan
from shmq.daemon.ha.meeting import LastRecord, Side, State, side_bytes
from shmq.daemon.ha.slave.follower import FollowerLink
from shmq.daemon.ha.stream import (
    GREETING,
    HEADER_BYTES,
    HEARTBEAT_MS,
    REFUSAL,
    SHIPPED_BYTES_MAX,
    SILENCE_MS_MAX,
    pack_header,
    pack_hello,
    pack_long_header,
    pack_progress,
    pack_refusal,
    pack_report,
    pack_welcome,
)
from shmq.store.lineage.epochs import Epoch
from tests.tables.rows import every_row

FILE_BYTES = 1000
_SIZE = Struct(">I")
_BLANK = 0xFFFFFFFF


class Log:
    """Files of FILE_BYTES one behind the other; a record never reaches over the end of its file."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = begin
        self.data = bytearray()

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    @property
    def span(self) -> LogSpan:
        return LogSpan(self.begin, self.end, FILE_BYTES)

    def append(self, body: bytes) -> None:
        room = FILE_BYTES - self.end % FILE_BYTES
        if len(body) + 2 * _SIZE.size > room:
            self.data += (_SIZE.pack(_BLANK) + bytes(FILE_BYTES))[:room]
        self.data += _SIZE.pack(len(body) + _SIZE.size) + body

    def replicate(self, data: memoryview) -> None:
        """Append the whole records of `data`."""
        at = 0
        while len(data) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            if size == _BLANK:
                self.data += _SIZE.pack(_BLANK)
                self.data += bytes(-self.end % FILE_BYTES)
                at += FILE_BYTES  # what is behind belongs to the padding, which is not looked at
                continue
            if size > len(data) - at:
                break
            self.data += data[at : at + size]
            at += size

    def read(self, position: int, size: int) -> bytes:
        return bytes(self.data[position - self.begin : position - self.begin + size])


def replicate(follower: FollowerLink, log: Log, now_ms: int) -> None:
    position, data = follower.pending()
    assert position == log.end
    with data:
        before = bytes(data)
        # The padding may not have come yet, so records behind a BLANK are the next call's.
        log.replicate(memoryview(before[: FILE_BYTES - position % FILE_BYTES]))
    follower.applied(log.end, now_ms)


def ship(leader: LeaderLink, log: Log, now_ms: int) -> bytes:
    shipment = leader.next_shipment(log.span, now_ms)
    return b"" if shipment is None else shipment.header + log.read(shipment.log_position, shipment.size_bytes)


def run_pair(master: Log, slave: Log, leader: LeaderLink, follower: FollowerLink, seed: int) -> None:
    """Carry bytes in random pieces until the slave has what the master has."""
    choice, to_slave, to_master = random.Random(seed), b"", b""
    for now_ms in range(100_000):
        to_slave += ship(leader, master, now_ms)
        to_master += follower.take()
        cut = choice.randint(0, 40)
        follower.feed(to_slave[:cut], now_ms)
        to_slave = to_slave[cut:]
        replicate(follower, slave, now_ms)
        cut = choice.randint(0, 12)
        leader.feed(to_master[:cut], master.span, now_ms)
        to_master = to_master[cut:]
        follower.tick(now_ms)
        leader.tick(now_ms)
        assert not leader.closed and not follower.closed, (leader.closed, follower.closed)
        if leader.acknowledged == master.end == slave.end:
            return
    raise AssertionError((leader.acknowledged, slave.end, master.end))


def welcome(file_bytes: int, begin: int, end: int, prompt: bool) -> bytes:
    return pack_welcome(side_bytes(Side(file_bytes=file_bytes, begin=begin, end=end, prompt=prompt)))


def hello(end: int, **facts: Any) -> bytes:
    return pack_hello(side_bytes(Side(end=end, **facts)))


bodies = st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=12)


@settings(deadline=None)
@given(bodies, st.integers(0, 1 << 32))
def test_the_slave_gets_the_whole_log_in_any_pieces(sent: list[bytes], seed: int) -> None:
    master, slave = Log(), Log()
    for body in sent:
        master.append(body)
    follower = FollowerLink(0, 0, is_empty=True, greets=True)
    run_pair(master, slave, LeaderLink(0), follower, seed)
    assert slave.data == master.data


@settings(deadline=None)
@given(bodies, bodies, st.integers(0, 1 << 32))
def test_a_slave_that_comes_again_goes_on_where_it_was(first: list[bytes], then: list[bytes], seed: int) -> None:
    master, slave = Log(), Log()
    for body in first:
        master.append(body)
    slave.data[:] = master.data
    for body in then:
        master.append(body)
    run_pair(master, slave, LeaderLink(0), FollowerLink(slave.end, 0, greets=seed % 2 == 0), seed)
    assert slave.data == master.data


def test_a_report_of_zero_begins_at_the_last_file() -> None:
    leader = LeaderLink(0)
    leader.feed(pack_report(0), LogSpan(0, 2500, FILE_BYTES), 1)
    assert leader.shipped == 2000


def test_a_slave_of_ours_that_has_nothing_gets_everything() -> None:
    leader, span = LeaderLink(0, is_prompt=True), LogSpan(1000, 2500, FILE_BYTES)
    leader.feed(pack_report(GREETING), span, 1)
    answer = leader.next_shipment(span, 1)
    assert answer == (welcome(FILE_BYTES, 1000, 2500, True), 2500, 0)
    assert leader.next_shipment(span, 2) is None, "where to begin is the slave's to say"
    leader.feed(hello(0, empty=True) + pack_progress(0, 0), span, 3)
    assert leader.shipped == 1000


def test_a_slave_says_what_is_on_its_disk_only_once_it_is() -> None:
    follower = FollowerLink(100, 0, flushed=60, greets=True)
    assert follower.take() == pack_report(GREETING)
    follower.feed(welcome(FILE_BYTES, 0, 500, True), 1)
    assert follower.take() == hello(100) + pack_progress(100, 60)
    follower.feed(pack_long_header(100, 10, 0, 90) + bytes(10), 2)
    assert follower.confirmed == 90
    follower.applied(110, 2)
    assert follower.take() == b"", "one report for each flush"
    follower.flushed(105, 3)
    follower.flushed(104, 3)
    assert follower.take() == pack_progress(110, 105)
    follower.flushed(400, 4)
    assert follower.take() == pack_progress(110, 110), "no more than was shipped"


def test_a_stock_master_is_known_by_its_heartbeat() -> None:
    follower = FollowerLink(100, 0, greets=True)
    follower.tick(HEARTBEAT_MS)
    assert follower.take() == pack_report(GREETING), "nothing else is said before the answer"
    follower.feed(pack_header(GREETING, 0), 1)
    assert follower.is_stock and "stock RocketMQ" in follower.closed


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (pack_header(100, 4) + b"data", "with its log at 100"),
        (welcome(2 * FILE_BYTES, 0, 100, False), "--file-size 2000"),
    ],
)
def test_another_answer_to_a_greeting_is_refused(answer: bytes, why: str) -> None:
    follower = FollowerLink(100, 0, me=Side(file_bytes=FILE_BYTES, end=100), greets=True)
    follower.feed(answer, 1)
    assert why in f"{follower.closed} {follower.cure}" and not follower.is_stock


def test_a_frame_never_reaches_into_the_next_file() -> None:
    span = LogSpan(0, 5 << 20, 1 << 20)
    leader = LeaderLink(0)
    leader.feed(pack_report((1 << 20) - 10), span, 1)
    first, second = leader.next_shipment(span, 1), leader.next_shipment(span, 1)
    assert first is not None and second is not None
    assert (first.log_position, first.size_bytes) == ((1 << 20) - 10, 10)
    assert (second.log_position, second.size_bytes) == (1 << 20, SHIPPED_BYTES_MAX)


def test_a_master_is_silent_before_the_first_report_and_sends_heartbeats_after_it() -> None:
    span = LogSpan(0, 100, FILE_BYTES)
    leader = LeaderLink(0)
    assert leader.next_shipment(span, 10 * HEARTBEAT_MS) is None
    leader.feed(pack_report(100), span, 1)
    assert leader.next_shipment(span, HEARTBEAT_MS - 1) is None
    beat = leader.next_shipment(span, HEARTBEAT_MS)
    assert beat is not None and beat.size_bytes == 0 and beat.header == pack_header(100, 0)
    assert leader.next_shipment(span, HEARTBEAT_MS + 1) is None


@every_row(
    ("reports", "why"),
    [
        ((101,), "the slave has the log up to 101"),
        ((40,), "retention has left it from 50"),
        ((60, 100), "was sent no more than 60"),
        ((60, 55), "had 60 before"),
        ((60, GREETING), "below 0"),
        ((-1,), "below 0"),
    ],
)
def test_a_slave_that_says_what_cannot_be_is_given_up(reports: tuple[int, ...], why: str) -> None:
    leader = LeaderLink(0)
    for report in reports:
        leader.feed(pack_report(report), LogSpan(50, 100, FILE_BYTES), 1)
    assert why in leader.closed
    assert leader.next_shipment(LogSpan(50, 100, FILE_BYTES), 1) is None


def test_a_slave_that_retention_overtakes_is_given_up() -> None:
    leader = LeaderLink(0)
    leader.feed(pack_report(500), LogSpan(0, 5000, FILE_BYTES), 1)
    assert leader.next_shipment(LogSpan(1000, 5000, FILE_BYTES), 1) is None
    assert "retention" in leader.closed


@pytest.mark.parametrize("position", [99, 101, 0])
def test_a_frame_that_does_not_follow_is_refused(position: int) -> None:
    follower = FollowerLink(100, 0)
    follower.feed(pack_header(position, 4) + b"data", 1)
    assert f"ships its log from {position}" in follower.closed
    assert follower.pending()[1].nbytes == 0


def test_an_empty_slave_says_where_the_masters_log_begins() -> None:
    follower = FollowerLink(0, 0, is_empty=True)
    assert follower.take() == pack_report(0)
    follower.feed(pack_header(4000, 4) + b"data", 1)
    assert follower.begins_at == 4000
    assert follower.closed


def test_both_ends_give_a_silent_peer_up() -> None:
    leader, follower = LeaderLink(0), FollowerLink(0, 0)
    for end in (leader, follower):
        end.tick(SILENCE_MS_MAX)
        assert not end.closed
        end.tick(SILENCE_MS_MAX + 1)
        assert "silent" in end.closed


def test_a_master_that_lives_and_never_ships_the_last_record_is_given_up() -> None:
    last = LastRecord(300, bytes(200))
    follower = FollowerLink(500, 0, last=last)  # of a stock master whose log is shorter
    for at in range(0, SILENCE_MS_MAX + 1, HEARTBEAT_MS):
        follower.feed(pack_header(300, 0), at)
        follower.tick(at)
    assert follower.is_met and not follower.is_proven and not follower.closed
    follower.feed(pack_header(300, 0), SILENCE_MS_MAX + 1)
    follower.tick(SILENCE_MS_MAX + 1)
    assert "does not ship the record at 300" in follower.closed and follower.cure
    assert follower.state is not None and follower.state.is_refusal
    slow = FollowerLink(500, 0, last=last)
    for at in range(100):
        slow.feed(pack_header(300 + at, 1) + bytes(1), at * HEARTBEAT_MS)
        slow.tick(at * HEARTBEAT_MS)
    assert not slow.closed, "a part of it has come"


def test_a_slave_reports_again_after_a_while() -> None:
    follower = FollowerLink(70, 0)
    assert follower.take() == pack_report(70)
    follower.tick(HEARTBEAT_MS - 1)
    assert follower.take() == b""
    follower.tick(HEARTBEAT_MS)
    assert follower.take() == pack_report(70)


def test_a_slave_whose_log_parts_from_the_masters_is_not_shipped_a_byte() -> None:
    epochs = (Epoch(0, 0), Epoch(1, 60))
    leader, span = LeaderLink(0, me=Side(epochs=epochs)), LogSpan(0, 100, FILE_BYTES)
    leader.feed(pack_report(GREETING) + hello(80) + pack_progress(80, 80), span, 1)
    assert leader.state is State.PARTED and "up to 60" in leader.closed
    assert leader.next_shipment(span, 2) is None


def test_a_slave_learns_where_to_cut_and_says_who_it_is_all_the_same() -> None:
    side = Side(file_bytes=FILE_BYTES, end=100, epochs=(Epoch(0, 0), Epoch(1, 60)))
    follower = FollowerLink(80, 0, greets=True)
    assert follower.take() == pack_report(GREETING)
    follower.feed(pack_welcome(side_bytes(side)), 1)
    assert (follower.state, follower.cut_at) == (State.PARTED, 60)
    assert follower.take().startswith(hello(80))


def test_a_frame_of_another_epoch_than_was_announced_is_refused() -> None:
    follower = FollowerLink(100, 0, greets=True)
    follower.feed(welcome(FILE_BYTES, 0, 500, False), 1)
    follower.feed(pack_long_header(100, 4, 1, 0) + b"data", 2)
    assert "epoch 1" in follower.closed


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_hostile_bytes_close_a_link_or_are_frames(master: bytes, slave: bytes) -> None:
    leader, follower = LeaderLink(0), FollowerLink(0, 0)
    leader.feed(slave, LogSpan(0, 100, FILE_BYTES), 1)
    follower.feed(master, 1)
    assert leader.closed or leader.shipped is None or 0 <= leader.shipped <= 100
    assert follower.closed or follower.pending()[1].nbytes <= max(len(master) - HEADER_BYTES, 0)


def test_the_last_record_is_held_against_the_masters_before_anything_is_taken() -> None:
    master, slave = Log(), Log()
    for body in (b"one", b"two", b"three"):
        master.append(body)
    for body in (b"one", b"tWo"):
        slave.append(body)
    follower = FollowerLink(slave.end, 0, last=LastRecord(7, slave.read(7, 7)))
    assert follower.take() == pack_report(7), "from its last record on"
    for at in range(7, master.end):
        follower.feed(pack_header(at, 1) + master.read(at, 1), 1)
    assert "another one on the master: these are two logs" in follower.closed and follower.cure
    assert follower.pending()[1].nbytes == 0 and not follower.is_proven
    assert REFUSAL.to_bytes(8, "big", signed=True) not in follower.take(), "a stock master would read a log position"


def test_a_slave_that_takes_nothing_sends_its_master_the_reason_with_the_cure() -> None:
    master, slave = Log(), Log()
    for log, body in ((master, b"one"), (slave, b"oNe")):
        log.append(body)
    last = LastRecord(0, slave.read(0, slave.end))
    leader, follower = LeaderLink(0), FollowerLink(slave.end, 0, greets=True, last=last)
    to_slave = b""
    for now_ms in range(20):
        leader.feed(follower.take(), master.span, now_ms)
        to_slave += ship(leader, master, now_ms)
        follower.feed(to_slave, now_ms)
        to_slave = b""
    assert "two logs" in follower.closed and leader.shipped is not None
    assert leader.closed == f"the slave takes nothing of this master: {follower.closed}"
    assert leader.cure == follower.cure != ""


@given(bodies, bodies, st.integers(0, 1 << 32))
def test_a_slave_with_the_same_last_record_goes_on_behind_it(first: list[bytes], then: list[bytes], seed: int) -> None:
    master, slave, last = Log(), Log(), 0
    for body in first:
        last = master.end
        master.append(body)
    slave.data[:] = master.data
    if slave.read(last, 4) == _SIZE.pack(_BLANK):
        last += FILE_BYTES - last % FILE_BYTES
    for body in then:
        master.append(body)
    tail = LastRecord(last, slave.read(last, slave.end - last))
    run_pair(master, slave, LeaderLink(0), FollowerLink(slave.end, 0, greets=seed % 2 == 0, last=tail), seed)
    assert slave.data == master.data


def test_a_slave_ahead_of_its_master_takes_nothing_even_if_that_has_grown_since() -> None:
    follower = FollowerLink(500, 0, greets=True, last=LastRecord(300, bytes(200)))
    follower.feed(welcome(FILE_BYTES, 0, 400, False), 1)
    assert follower.state is State.AHEAD and "lost its end" in follower.closed and follower.cure
    assert follower.take().endswith(hello(500) + pack_progress(300, 0)), "so the master refuses it, and says why"
    follower.feed(pack_long_header(500, 4, 0, 0) + b"data", 2)
    assert follower.pending()[1].nbytes == 0


def test_a_refusal_is_understood_before_and_behind_the_welcome() -> None:
    for greeting in (b"", welcome(FILE_BYTES, 0, 400, False)):
        follower = FollowerLink(100, 0, greets=True)
        follower.feed(greeting + pack_refusal("why", "what to do"), 1)
        assert (follower.closed, follower.cure) == ("the master refuses this slave: why", "what to do")


@pytest.mark.parametrize("text", [b"why\nwhat to do", b"why", b"", b"\xff\x1b[2J\n\n\n"])
def test_a_slave_repeats_why_it_was_refused(text: bytes) -> None:
    follower = FollowerLink(100, 0, greets=True)
    follower.feed(REFUSAL.to_bytes(8, "big", signed=True) + len(text).to_bytes(4, "big") + text, 1)
    assert follower.closed.startswith("the master refuses this slave: ") and follower.closed.isprintable()
    assert not follower.is_met
