"""The stream's bytes in any pieces, and what no peer may say."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.daemon.ha.meeting import SIDE_BYTES_MAX
from shmq.daemon.ha.stream import (
    FRAME_BYTES_MAX,
    GREETING,
    MESSAGE,
    Frame,
    FrameReader,
    Report,
    ReportReader,
    pack_header,
    pack_hello,
    pack_long_header,
    pack_message,
    pack_progress,
    pack_report,
    pack_welcome,
)
from shmq.errors import ProtocolError


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


def placed(frames: Iterable[Frame]) -> list[tuple[int, int | None]]:
    """Each byte and its position, a heartbeat without."""
    return [(frame.log_position + at, byte) for frame in frames for at, byte in enumerate(list(frame.data) or [None])]


def test_the_bytes_are_those_of_rocketmq() -> None:
    assert pack_report(0x0102030405060708) == bytes(range(1, 9))
    assert pack_header(0x0102030405060708, 0x090A0B0C) == bytes(range(1, 13))
    assert pack_report(GREETING)[0] >= 0x80, "a stock master takes it for a position below 0, and acknowledges nothing"


@given(
    st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=300)), max_size=6), st.lists(st.integers(0, 9999))
)
def test_every_byte_comes_at_its_position_whatever_the_pieces(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(pack_header(position, len(body)) + body for position, body in frames)
    reader = FrameReader()
    come = [frame for piece in pieces(data, cuts) for frame in reader.feed(piece)]
    assert placed(come) == placed(Frame(*each) for each in frames)


@given(
    st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=300), st.booleans()), max_size=6),
    st.lists(st.integers(0, 9999)),
)
def test_behind_a_welcome_messages_come_whole_and_the_log_with_its_epoch(
    told: list[tuple[int, bytes, bool]], cuts: list[int]
) -> None:
    frames = [
        Frame(MESSAGE, body) if is_message and body else Frame(position, body, 7, 9)
        for position, body, is_message in told
    ]
    data = pack_welcome(b"me") + b"".join(
        pack_message(bytes(frame.data))
        if frame.log_position == MESSAGE
        else pack_long_header(frame.log_position, len(frame.data), frame.epoch, frame.confirmed) + frame.data
        for frame in frames
    )
    reader = FrameReader()
    greeting, *come = [frame for piece in pieces(data, cuts) for frame in reader.feed(piece)]
    assert greeting == Frame(GREETING, b"me")
    assert [frame for frame in come if frame.log_position == MESSAGE] == [
        frame for frame in frames if frame.log_position == MESSAGE
    ]
    assert placed(come) == placed(frames)
    assert all(frame[2:] == (7, 9) for frame in come if frame.log_position != MESSAGE)


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=9), st.lists(st.integers(0, 9999)))
def test_the_first_and_the_last_report_are_seen_whatever_the_pieces(reports: list[int], cuts: list[int]) -> None:
    reader = ReportReader()
    data = b"".join(map(pack_report, reports))
    seen = [report for piece in pieces(data, cuts) for report in reader.feed(piece)]
    assert seen[0] == Report(reports[0], None)
    assert seen[-1] == Report(reports[-1], None)


@pytest.mark.parametrize(
    ("position", "size"), [(-1, 0), (0, -1), (0, FRAME_BYTES_MAX + 1), (5, -(1 << 31)), (-(1 << 63), 12)]
)
def test_a_header_no_master_sends_is_refused(position: int, size: int) -> None:
    with pytest.raises(ProtocolError, match=str(size)):
        FrameReader().feed(pack_header(position, size))


@given(
    st.lists(st.tuples(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1)), min_size=1, max_size=9),
    st.lists(st.integers(0, 9999)),
)
def test_progress_is_seen_behind_a_greeting_whatever_the_pieces(
    reports: list[tuple[int, int]], cuts: list[int]
) -> None:
    told = [Report(max(report), min(report)) for report in reports]
    reader = ReportReader()
    data = pack_report(GREETING) + pack_hello(b"me") + b"".join(pack_progress(*report) for report in told)
    seen = [report for piece in pieces(data, cuts) for report in reader.feed(piece)]
    assert reader.is_greeted and (seen[0], seen[-1]) == (told[0], told[-1])


@pytest.mark.parametrize(("end", "flushed"), [(5, 6), (5, -1), (-1, -1)])
def test_progress_that_cannot_be_is_refused(end: int, flushed: int) -> None:
    with pytest.raises(ProtocolError):
        ReportReader().feed(pack_report(GREETING) + pack_hello(b"me") + pack_progress(end, flushed))


def test_a_greeting_in_the_middle_is_a_log_end_below_0() -> None:
    with pytest.raises(ProtocolError, match="below 0"):
        ReportReader().feed(pack_report(3) + pack_report(GREETING))


@pytest.mark.parametrize("size", [0, -1, SIDE_BYTES_MAX + 1])
def test_a_hello_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="says who it is"):
        ReportReader().feed(pack_report(GREETING) + size.to_bytes(4, "big", signed=True))


@given(st.binary(min_size=1, max_size=80), st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=90))))
def test_behind_the_welcome_a_frame_says_its_epoch(side: bytes, frames: list[tuple[int, bytes]]) -> None:
    data = pack_welcome(side) + b"".join(pack_long_header(at, len(body), 7, 5) + body for at, body in frames)
    reader = FrameReader()
    found = [frame for piece in pieces(data, [3, 17, 40]) for frame in reader.feed(piece)]
    assert found == [Frame(GREETING, side), *(Frame(at, body, 7, 5) for at, body in frames)]


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(ProtocolError, match="below 0"):
        ReportReader().feed(pack_report(3) + pack_report(-3))


@given(st.binary(max_size=400), st.lists(st.integers(0, 9999)))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes, cuts: list[int]) -> None:
    for reader in (FrameReader(), ReportReader()):
        try:
            for piece in pieces(data, cuts):
                reader.feed(piece)
        except ProtocolError:
            pass
