"""Rules of the CRC core: every engine equals zlib, the register is linear, the tag hash is Java's."""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bindings.c_core import load_core, run_sanitized
from tests.tables.rows import every_row

SOURCES = ("record/crc.c", "record/crc_portable.c", "record/crc_x86.c")
ENGINES = ("portable", "pclmul", "vpclmul")
START = 0xFFFFFFFF
POLYNOMIAL = 0xEDB88320
LENGTHS = [
    *range(0, 301),
    511,
    512,
    513,
    1023,
    4095,
    4096,
    4097,
    4163,
    4352,
    5000,
    65_535,
    65_536,
    1 << 20,
    (1 << 20) + 77,
]


@functools.cache
def core() -> ctypes.CDLL:
    """The library, which is compiled for the first test that calls it."""
    library = load_core(*SOURCES)
    library.shmq_crc32.restype = ctypes.c_uint32
    library.shmq_crc32.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.shmq_crc32_raw.restype = ctypes.c_uint32
    library.shmq_crc32_raw.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t]
    library.shmq_crc32_copy_raw.restype = ctypes.c_uint32
    library.shmq_crc32_copy_raw.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    library.shmq_crc32_shift.restype = ctypes.c_uint32
    library.shmq_crc32_shift.argtypes = [ctypes.c_uint64]
    library.shmq_crc32_multiply.restype = ctypes.c_uint32
    library.shmq_crc32_multiply.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
    library.shmq_tag_hash.restype = ctypes.c_int32
    library.shmq_tag_hash.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.shmq_crc32_force.argtypes = [ctypes.c_char_p]
    return library


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    if core().shmq_crc32_force(request.param.encode()) != 0:
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    for name in ENGINES:
        core().shmq_crc32_force(name.encode())


def zlib_raw(state: int, data: bytes) -> int:
    return zlib.crc32(data, state ^ START) ^ START


def multiply(left: int, right: int) -> int:
    """Product of two reflected polynomials modulo P, one bit at a time."""
    product = 0
    for bit in range(31, -1, -1):
        if right >> bit & 1:
            product ^= left
        left = (left >> 1) ^ (POLYNOMIAL if left & 1 else 0)
    return product


def power(exponent: int) -> int:
    """x^exponent modulo P by squaring."""
    result, base = 0x80000000, 0x40000000
    while exponent:
        if exponent & 1:
            result = multiply(result, base)
        base = multiply(base, base)
        exponent >>= 1
    return result


def test_an_unknown_engine_is_refused() -> None:
    assert core().shmq_crc32_force(b"abacus") == -1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has other engines")
def test_the_processor_of_this_machine_is_given_more_than_the_portable_engine() -> None:
    flags = Path("/proc/cpuinfo").read_text()
    assert (core().shmq_crc32_force(b"pclmul") == 0) == ("pclmulqdq" in flags)
    assert (core().shmq_crc32_force(b"vpclmul") == 0) == ("vpclmulqdq" in flags and "avx512_vbmi" in flags)


def test_every_length_at_unaligned_addresses_equals_zlib(engine: str) -> None:
    noise = random.Random(1).randbytes((1 << 20) + 256)
    buffer = ctypes.create_string_buffer(noise, len(noise))
    base = ctypes.addressof(buffer)
    for length in LENGTHS:
        for misalignment in (0, 1, 3, 8, 15, 17, 63) if length < 8192 else (0, 5):
            data = noise[misalignment : misalignment + length]
            assert core().shmq_crc32(base + misalignment, length) == zlib.crc32(data), (length, misalignment)
            assert core().shmq_crc32_raw(0x12345678, base + misalignment, length) == zlib_raw(0x12345678, data)


def test_copying_copies_exactly_and_computes_the_same(engine: str) -> None:
    noise = random.Random(2).randbytes((1 << 20) + 256)
    source = ctypes.create_string_buffer(noise, len(noise))
    target = ctypes.create_string_buffer(len(noise) + 256)
    for length in LENGTHS:
        for to_at, from_at in ((64, 0), (65, 3), (88, 32), (127, 1)):
            ctypes.memset(target, 0xA5, len(target))
            found = core().shmq_crc32_copy_raw(
                START, ctypes.addressof(target) + to_at, ctypes.addressof(source) + from_at, length
            )
            data = noise[from_at : from_at + length]
            assert found == zlib_raw(START, data), (length, to_at, from_at)
            everything = memoryview(target)
            assert everything[to_at : to_at + length].tobytes() == data
            assert set(everything[:to_at].tobytes()) <= {0xA5}
            assert set(everything[to_at + length : to_at + length + 128].tobytes()) <= {0xA5}


def test_no_engine_touches_a_neighbouring_page(engine: str) -> None:
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    area = mmap.mmap(-1, 3 * page)
    pin = ctypes.c_char.from_buffer(area)
    base = ctypes.addressof(pin)
    noise = random.Random(3).randbytes(page)
    area[page : 2 * page] = noise
    assert libc.mprotect(base, page, 0) == 0
    assert libc.mprotect(base + 2 * page, page, 0) == 0
    copy = ctypes.create_string_buffer(page)
    for length in range(0, 301):
        for at in (0, page - length):
            expected = zlib_raw(START, noise[at : at + length])
            assert core().shmq_crc32_raw(START, base + page + at, length) == expected
            assert core().shmq_crc32_copy_raw(START, copy, base + page + at, length) == expected
            assert core().shmq_crc32_copy_raw(START, base + page + at, copy, length) == expected
    assert libc.mprotect(base, 3 * page, mmap.PROT_READ | mmap.PROT_WRITE) == 0
    del pin
    area.close()


def test_multiply_equals_the_schoolbook_product(engine: str) -> None:
    noise = random.Random(4)
    edges = [0, 1, 0x80000000, 0x40000000, POLYNOMIAL, START]
    pairs = [(a, b) for a in edges for b in edges] + [
        (noise.getrandbits(32), noise.getrandbits(32)) for _ in range(500)
    ]
    for left, right in pairs:
        assert core().shmq_crc32_multiply(left, right) == multiply(left, right), (hex(left), hex(right))


def test_shift_is_the_power_of_x_for_every_magnitude(engine: str) -> None:
    lengths = [
        *range(0, 600),
        65_535,
        65_536,
        65_537,
        (1 << 24) - 1,
        1 << 24,
        (1 << 32) - 1,
        1 << 32,
        (1 << 40) + 3,
        (1 << 64) - 1,
    ]
    for length in lengths:
        assert core().shmq_crc32_shift(length) == power(8 * length), length


@given(state=st.integers(0, START), zeros=st.integers(0, 5000))
def test_shift_and_multiply_append_zero_bytes(state: int, zeros: int) -> None:
    assert core().shmq_crc32_multiply(state, core().shmq_crc32_shift(zeros)) == zlib_raw(state, bytes(zeros))


@given(head=st.binary(max_size=700), tail=st.binary(max_size=700))
def test_registers_of_two_parts_combine_to_that_of_the_whole(head: bytes, tail: bytes) -> None:
    first = core().shmq_crc32_raw(START, head, len(head))
    moved = core().shmq_crc32_multiply(first, core().shmq_crc32_shift(len(tail)))
    assert moved ^ core().shmq_crc32_raw(0, tail, len(tail)) == zlib_raw(START, head + tail)
    assert core().shmq_crc32_raw(first, tail, len(tail)) == zlib_raw(START, head + tail)


def java_hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[at : at + 2], "big")) & START
    return value - (1 << 32) if value >> 31 else value


def tag_hash(data: bytes) -> int:
    return int(core().shmq_tag_hash(data, len(data)))


@every_row(
    ("text", "expected"),
    [("", 0), ("a", 97), ("TagA", 2598919), ("TagB", 2598920), ("hello", 99162322), ("polygenelubricants", -(1 << 31))],
)
def test_tag_hash_has_javas_known_answers(text: str, expected: int) -> None:
    assert tag_hash(text.encode()) == expected


@given(st.text(max_size=60))
def test_tag_hash_is_javas_over_utf16_units(text: str) -> None:
    assert tag_hash(text.encode()) == java_hash(text)


@every_row(
    ("data", "decoded"),
    [
        (b"\x80", "�"),
        (b"\xff\xfea", "��a"),
        (b"\xc0\x80", "��"),  # overlong
        (b"\xed\xa0\x80", "���"),  # a surrogate in UTF-8
        (b"\xf4\x90\x80\x80", "����"),  # above U+10FFFF
        (b"a\xe2\x82", "a��"),  # cut short
        (b"\xf0\x9f\x98", "���"),
        (b"\xe2A\x82", "�A�"),
        ("😀".encode(), "😀"),
    ],
)
def test_each_byte_that_is_not_utf8_counts_as_one_replacement_character(data: bytes, decoded: str) -> None:
    assert tag_hash(data) == java_hash(decoded)


SANITIZED = """
import ctypes, random, sys, zlib
core = ctypes.CDLL(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
core.shmq_crc32.restype = ctypes.c_uint32
core.shmq_crc32.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
core.shmq_crc32_copy_raw.restype = ctypes.c_uint32
core.shmq_crc32_copy_raw.argtypes = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
core.shmq_tag_hash.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
noise = random.Random(5)
for name in (b"portable", b"pclmul", b"vpclmul"):
    if core.shmq_crc32_force(name):
        continue
    for length in [*range(1, 301), 4097, 9000]:
        data = noise.randbytes(length)
        source, target = libc.malloc(length), libc.malloc(length)
        ctypes.memmove(source, data, length)
        assert core.shmq_crc32(source, length) == zlib.crc32(data), (name, length)
        assert core.shmq_crc32_copy_raw(0xFFFFFFFF, target, source, length) ^ 0xFFFFFFFF == zlib.crc32(data)
        assert ctypes.string_at(target, length) == data
        core.shmq_tag_hash(source, length)
        libc.free(source)
        libc.free(target)
for text in (b"\\xf0", b"\\xf0\\x9f", b"\\xf0\\x9f\\x98", b"\\xe2\\x82", b"a\\xc3"):
    source = libc.malloc(len(text))
    ctypes.memmove(source, text, len(text))
    core.shmq_tag_hash(source, len(text))
    libc.free(source)
print("done")
"""


@pytest.mark.slow
def test_no_engine_reads_or_writes_outside_its_buffers_under_sanitizers() -> None:
    done = run_sanitized(SANITIZED, *SOURCES)
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr
