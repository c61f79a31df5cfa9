"""Leader and follower joined in memory: whatever the pieces, the follower's log becomes the leader's.

The records of these logs are only as long as they say: size 4 | bytes. A size of 0 before a magic word is a BLANK.
"""

from __future__ import annotations

import random
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmq.daemon.ha.follower import FollowerLink
from shmq.daemon.ha.leader import LeaderLink, LogSpan
from shmq.daemon.ha.stream import (
    FROM_BEGINNING,
    HEADER_BYTES,
    HEARTBEAT_MS,
    SHIPPED_BYTES_MAX,
    SILENCE_MS_MAX,
    pack_header,
    pack_report,
)

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


bodies = st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=12)


@settings(deadline=None)
@given(bodies, st.integers(0, 1 << 32))
def test_the_slave_gets_the_whole_log_in_any_pieces(sent: list[bytes], seed: int) -> None:
    master, slave = Log(), Log()
    for body in sent:
        master.append(body)
    follower = FollowerLink(0, 0, is_empty=True, wants_all=True)
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
    run_pair(master, slave, LeaderLink(0), FollowerLink(slave.end, 0), seed)
    assert slave.data == master.data


def test_a_report_of_zero_begins_at_the_last_file() -> None:
    leader = LeaderLink(0)
    leader.feed(pack_report(0), LogSpan(0, 2500, FILE_BYTES), 1)
    assert leader.shipped == 2000
    leader = LeaderLink(0)
    leader.feed(pack_report(FROM_BEGINNING), LogSpan(1000, 2500, FILE_BYTES), 1)
    assert leader.shipped == 1000


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


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ((101,), "the slave has the log up to 101"),
        ((40,), "retention has left it from 50"),
        ((60, 100), "was sent no more than 60"),
        ((60, 55), "had 60 before"),
        ((60, FROM_BEGINNING), "was sent no more"),
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


def test_a_slave_reports_again_after_a_while() -> None:
    follower = FollowerLink(70, 0)
    assert follower.take() == pack_report(70)
    follower.tick(HEARTBEAT_MS - 1)
    assert follower.take() == b""
    follower.tick(HEARTBEAT_MS)
    assert follower.take() == pack_report(70)


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_hostile_bytes_close_a_link_or_are_frames(master: bytes, slave: bytes) -> None:
    leader, follower = LeaderLink(0), FollowerLink(0, 0)
    leader.feed(slave, LogSpan(0, 100, FILE_BYTES), 1)
    follower.feed(master, 1)
    assert leader.closed or leader.shipped is None or 0 <= leader.shipped <= 100
    assert follower.closed or follower.pending()[1].nbytes <= max(len(master) - HEADER_BYTES, 0)
