"""Framing: cuts, limits, lies."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import ProtocolError, UsageError
from shmq.protocol.codes import Codec
from shmq.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX, Frame, FrameDecoder, encode_frame
from tests.tables.rows import every_row

FRAMES = st.builds(
    Frame, st.sampled_from(Codec), st.binary(min_size=1, max_size=200), st.binary(max_size=300), st.just(0)
)


def drain(decoder: FrameDecoder) -> list[Frame | str]:
    """Everything the decoder has to say, the break as its text."""
    events: list[Frame | str] = []
    try:
        while (frame := decoder.take()) is not None:
            events.append(frame)
    except ProtocolError as error:
        events.append(str(error))
    return events


def events_of(data: bytes, cuts: list[int]) -> list[Frame | str]:
    decoder = FrameDecoder()
    events: list[Frame | str] = []
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        decoder.feed(data[start:end])
        events += drain(decoder)
        if events and isinstance(events[-1], str):
            break
    return events


def test_a_frame_is_the_bytes_of_the_reference() -> None:
    # L = 4 + 2 + 3 = 9; codec 1 in the top byte, H = 2 below it.
    golden = bytes.fromhex("00000009 01000002") + b"hh" + b"bdy"
    assert encode_frame(Codec.BINARY, b"hh", b"bdy") == golden
    decoder = FrameDecoder()
    decoder.feed(golden)
    assert decoder.take() == Frame(Codec.BINARY, b"hh", b"bdy")
    assert decoder.take() is None
    assert decoder.buffered_bytes == 0


def test_an_absent_body_and_an_empty_body_are_the_same_frame() -> None:
    decoder = FrameDecoder()
    decoder.feed(bytes.fromhex("00000005 00000001") + b"{")
    assert decoder.take() == Frame(Codec.JSON, b"{", b"")


@given(st.lists(FRAMES, max_size=5), st.data())
def test_any_cut_of_the_bytes_gives_the_same_frames(frames: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(*frame[:3]) for frame in frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert events_of(stream, cuts) == frames


@given(st.lists(FRAMES, max_size=2), st.data())
def test_every_single_byte_is_a_legal_cut(frames: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(*frame[:3]) for frame in frames)
    assert events_of(stream, list(range(len(stream)))) == frames


@given(st.lists(FRAMES, max_size=3), st.binary(min_size=8, max_size=40), st.data())
def test_any_cut_of_a_broken_stream_gives_the_same_events(
    frames: list[Frame], garbage: bytes, data: st.DataObject
) -> None:
    stream = b"".join(encode_frame(*frame[:3]) for frame in frames) + garbage
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert events_of(stream, cuts) == events_of(stream, [])


@given(st.binary(max_size=400))
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes) -> None:
    events = events_of(data, [])
    consumed = sum(8 + len(event.header) + len(event.body) for event in events if isinstance(event, Frame))
    assert consumed <= len(data)


LENGTHS = [-(2**31), -2, -1, 0, 3, FRAME_BYTES_MAX + 1, 2**31 - 1]


@every_row("frame_bytes", LENGTHS)
def test_a_lying_frame_length_is_refused_at_its_prefix(frame_bytes: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">iI", frame_bytes, 2))
    with pytest.raises(ProtocolError, match=str(frame_bytes)):
        decoder.take()
    assert decoder.buffered_bytes == 0


@every_row(
    ("frame_bytes", "header_bytes"),
    [(4, 0), (10, 0), (4, 1), (10, 7), (100, 97), (FRAME_BYTES_MAX, HEADER_BYTES_MAX + 1), (FRAME_BYTES_MAX, 0xFFFFFF)],
)
def test_a_lying_header_length_is_refused_at_its_prefix(frame_bytes: int, header_bytes: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">iI", frame_bytes, header_bytes))
    with pytest.raises(ProtocolError, match=f"header of {header_bytes} bytes"):
        decoder.take()


@pytest.mark.parametrize("codec", [2, 3, 127, 128, 255])
def test_an_unknown_header_encoding_is_refused(codec: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">iI", 100, codec << 24 | 20))
    with pytest.raises(ProtocolError, match=f"encoding {codec}"):
        decoder.take()


def test_a_promise_of_four_megabytes_costs_eight_bytes() -> None:
    decoder = FrameDecoder()
    decoder.feed(struct.pack(">iI", FRAME_BYTES_MAX, 100))
    assert decoder.take() is None
    assert decoder.buffered_bytes == 8


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    header = b"h" * HEADER_BYTES_MAX
    body = bytes(FRAME_BYTES_MAX - 4 - len(header))
    decoder = FrameDecoder()
    decoder.feed(encode_frame(Codec.JSON, header, body))
    frame = decoder.take()
    assert frame is not None and len(frame.body) == len(body)
    with pytest.raises(UsageError, match="frame of"):
        encode_frame(Codec.JSON, header, body + b"x")
    with pytest.raises(UsageError, match="header of"):
        encode_frame(Codec.JSON, header + b"x", b"")
    with pytest.raises(UsageError, match="header of 0"):
        encode_frame(Codec.JSON, b"", b"")


@given(st.lists(FRAMES, max_size=6), st.data())
def test_a_frame_that_is_too_long_costs_its_header_and_the_next_one_is_whole(
    frames: list[Frame], data: st.DataObject
) -> None:
    limit = 150
    stream = b"".join(encode_frame(*frame[:3]) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = FrameDecoder(frame_bytes_max=limit, skipped_bytes_max=1000)
    taken: list[Frame | str] = []
    for start, end in pairwise([0, *cuts, len(stream)]):
        decoder.feed(stream[start:end])
        taken += drain(decoder)
        assert decoder.buffered_bytes <= 8 + max(limit, 200)
    expected = [
        frame
        if 4 + len(frame.header) + len(frame.body) <= limit
        else frame._replace(body=b"", skipped_bytes=len(frame.body))
        for frame in frames
    ]
    assert taken == expected
    assert decoder.is_between_frames and decoder.unfinished_bytes == 0 and decoder.missing_bytes == 0


def test_a_frame_beyond_what_is_skipped_is_refused_at_its_prefix() -> None:
    decoder = FrameDecoder(frame_bytes_max=100, skipped_bytes_max=200)
    decoder.feed(struct.pack(">iI", 201, 2))
    with pytest.raises(ProtocolError, match="201"):
        decoder.take()


def test_the_limit_of_a_stream_may_be_raised_between_two_frames() -> None:
    frame = encode_frame(Codec.JSON, b"h", bytes(96))  # L is 101
    decoder = FrameDecoder(frame_bytes_max=101)
    decoder.feed(frame)
    assert decoder.take() == Frame(Codec.JSON, b"h", bytes(96))
    decoder.frame_bytes_max = 100
    decoder.feed(frame)
    with pytest.raises(ProtocolError, match="frame of 101 bytes; 100 are allowed"):
        decoder.take()


def test_a_spent_decoder_keeps_nothing_and_keeps_refusing() -> None:
    decoder = FrameDecoder()
    decoder.feed(bytes(8))
    for _ in range(3):
        with pytest.raises(ProtocolError):
            decoder.take()
        decoder.feed(bytes(1000))
        assert decoder.buffered_bytes == 0
