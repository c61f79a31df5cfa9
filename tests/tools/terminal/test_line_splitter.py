"""Lines are the same however the stream was cut, and none is lost or invented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmq.errors import MessageTooLarge, UsageError
from shmq.tools.terminal.line_splitter import LineSplitter
from tests.tables.rows import every_row


def split(pieces: list[bytes], delimiter: bytes = b"\n", line_bytes_max: int = 1000) -> list[bytes]:
    splitter = LineSplitter(delimiter, line_bytes_max=line_bytes_max)
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.finish()


@every_row(
    ("stream", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n", [b""]),
        (b"a\n\nb\n\n", [b"a", b"", b"b", b""]),
        (b"a\r\n", [b"a\r"]),
    ],
)
def test_a_delimiter_ends_a_line_and_empty_lines_count(stream: bytes, lines: list[bytes]) -> None:
    assert split([stream]) == lines


@given(st.lists(st.binary(max_size=20)), st.sampled_from([b"\n", b"\0", b"--", b"\r\n"]))
def test_any_cut_gives_the_same_lines_and_every_byte_comes_out(pieces: list[bytes], delimiter: bytes) -> None:
    stream = b"".join(pieces)
    lines = split(pieces, delimiter)
    assert lines == split([stream], delimiter)
    joined = delimiter.join(lines)
    assert stream in (joined, joined + delimiter)


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    splitter = LineSplitter(b"\n", line_bytes_max=10)
    assert splitter.feed(b"whole\n" + b"x" * 11) == [b"whole"]
    with pytest.raises(MessageTooLarge):
        splitter.feed(b"x")


def test_an_empty_delimiter_is_refused() -> None:
    with pytest.raises(UsageError):
        LineSplitter(b"", line_bytes_max=10)
