"""Rules of the stored record: bytes equal an independent encoder's, damage is seen, hostile bytes stay harmless."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import zlib
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bindings.c_core import load_core, run_sanitized
from tests.tables.rows import every_row

SOURCES = ("record/record.c", "record/crc.c", "record/crc_portable.c", "record/crc_x86.c")
OK, EMPTY, CORRUPT = 0, 11, 12
START = 0xFFFFFFFF
ENGINES = (b"portable", b"pclmul", b"vpclmul")
U32, U64, POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
HOST = bytes([10, 1, 2, 3]) + struct.pack(">I", 10911)
HOST_V6 = bytes(range(1, 17)) + struct.pack(">I", 10911)
STORE_HOST = bytes([127, 0, 0, 1]) + struct.pack(">I", 65535)


class Spec(ctypes.Structure):
    _fields_ = [
        ("body", POINTER), ("body_bytes", U32), ("body_crc_raw", U32), ("topic", POINTER), ("topic_bytes", U32),
        ("properties", POINTER), ("properties_bytes", U32), ("queue_id", U32), ("flag", U32), ("sys_flag", U32),
        ("reconsume_times", U32), ("born_ms", U64), ("prepared_position", U64), ("born_host", ctypes.c_uint8 * 20),
        ("born_host_bytes", ctypes.c_uint8), ("store_host", ctypes.c_uint8 * 8), ("body_changes", ctypes.c_bool),
    ]  # fmt: skip


class Patch(ctypes.Structure):
    _fields_ = [
        ("record_bytes", U32), ("crc_raw", U32), ("behind_bytes", U32), ("shift", U32), ("longer", U32),
        ("described", ctypes.c_bool),
    ]  # fmt: skip


class View(ctypes.Structure):
    _fields_ = [
        ("record_bytes", U32), ("magic", U32), ("body_crc", U32), ("queue_id", U32), ("flag", U32),
        ("queue_offset", U64), ("log_position", U64), ("sys_flag", U32), ("born_ms", U64), ("store_ms", U64),
        ("reconsume_times", U32), ("prepared_position", U64), ("born_host", POINTER), ("born_host_bytes", U32),
        ("store_host", POINTER), ("store_host_bytes", U32), ("body", POINTER), ("body_bytes", U32),
        ("topic", POINTER), ("topic_bytes", U32), ("properties", POINTER), ("properties_bytes", U32),
    ]  # fmt: skip


@functools.cache
def core() -> ctypes.CDLL:
    """The library, which is compiled for the first test that calls it."""
    library = load_core(*SOURCES)
    library.shmq_record_bytes.restype = U32
    library.shmq_record_patch.argtypes = [POINTER, POINTER, U64, U64, U64]
    library.shmq_record_encode.argtypes = [POINTER, POINTER, POINTER]
    library.shmq_record_decode.argtypes = [POINTER, ctypes.c_size_t, POINTER]
    library.shmq_record_verify.argtypes = [POINTER, POINTER]
    library.shmq_property_find.restype = POINTER
    library.shmq_property_find.argtypes = [POINTER, ctypes.c_size_t, POINTER, ctypes.c_size_t, POINTER]
    library.shmq_crc32_raw.restype = U32
    library.shmq_crc32_raw.argtypes = [U32, POINTER, ctypes.c_size_t]
    return library


@dataclass(frozen=True)
class Stored:
    """What a test wants stored; late fields included."""

    body: bytes = b"hello"
    topic: bytes = b"TopicTest"
    properties: bytes = b""
    queue_id: int = 3
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    born_ms: int = 1_700_000_000_123
    prepared_position: int = 0
    queue_offset: int = 17
    log_position: int = 4096
    store_ms: int = 1_700_000_000_456


def python_encode(
    wanted: Stored, *, with_crc: bool = True, magic: int | None = None, hosts: tuple[bytes, bytes] = (HOST, STORE_HOST)
) -> bytes:
    """RocketMQ's record written from its field table with struct and zlib alone."""
    properties = wanted.properties
    if with_crc:
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
        properties += b"__CRC32#\x01??????????\x02"
    version = magic if magic is not None else (0xDAA320A7 if len(wanted.topic) <= 127 else 0xDAA320AB)
    rest = struct.pack(
        ">IIIIQQIQ", version, zlib.crc32(wanted.body) & 0x7FFFFFFF if wanted.body else 0, wanted.queue_id, wanted.flag,
        wanted.queue_offset, wanted.log_position, wanted.sys_flag, wanted.born_ms,
    )  # fmt: skip
    rest += hosts[0] + struct.pack(">Q", wanted.store_ms) + hosts[1]
    rest += struct.pack(">IQI", wanted.reconsume_times, wanted.prepared_position, len(wanted.body)) + wanted.body
    rest += struct.pack(">B" if version == 0xDAA320A7 else ">H", len(wanted.topic)) + wanted.topic
    rest += struct.pack(">H", len(properties)) + properties
    record = struct.pack(">I", 4 + len(rest)) + rest
    if with_crc:
        digits = f"{zlib.crc32(record[:-20]) & 0x7FFFFFFF:010d}"[::-1].encode()
        record = record[:-11] + digits + b"\x02"
    return record


def make_spec(wanted: Stored, host: bytes = HOST) -> tuple[Spec, list[object]]:
    """The C struct and the objects that keep its pointers alive."""
    kept = [ctypes.create_string_buffer(part, len(part)) for part in (wanted.body, wanted.topic, wanted.properties)]
    body, topic, properties = (ctypes.addressof(part) for part in kept)
    spec = Spec(
        body=body, body_bytes=len(wanted.body), topic=topic, topic_bytes=len(wanted.topic), properties=properties,
        properties_bytes=len(wanted.properties), queue_id=wanted.queue_id, flag=wanted.flag, sys_flag=wanted.sys_flag,
        reconsume_times=wanted.reconsume_times, born_ms=wanted.born_ms, prepared_position=wanted.prepared_position,
    )  # fmt: skip
    spec.born_host[: len(host)] = host
    spec.born_host_bytes = len(host)
    spec.store_host[:] = STORE_HOST
    return spec, list(kept)


def c_encode(wanted: Stored, *, body_in_place: bool = False, host: bytes = HOST) -> bytes:
    spec, _kept = make_spec(wanted, host)
    size = int(core().shmq_record_bytes(ctypes.byref(spec)))
    out = ctypes.create_string_buffer(b"\xa5" * (size + 64), size + 64)
    if body_in_place:
        ctypes.memmove(ctypes.addressof(out) + 80 + len(host), wanted.body, len(wanted.body))
        spec.body_crc_raw = core().shmq_crc32_raw(START, wanted.body, len(wanted.body))
        spec.body = None
    patch = Patch()
    core().shmq_record_encode(out, ctypes.byref(spec), ctypes.byref(patch))
    assert patch.record_bytes == size
    core().shmq_record_patch(out, ctypes.byref(patch), wanted.queue_offset, wanted.log_position, wanted.store_ms)
    assert out.raw[size:] == b"\xa5" * 64, "bytes behind the record were written"
    return out.raw[:size]


def decode(data: bytes) -> tuple[int, View]:
    view = View()
    return int(core().shmq_record_decode(data, len(data), ctypes.byref(view))), view


def verified(data: bytes) -> bool:
    status, view = decode(data)
    return status == OK and int(core().shmq_record_verify(data, ctypes.byref(view))) == OK


stored = st.builds(
    Stored,
    body=st.binary(max_size=600),
    topic=st.binary(min_size=1, max_size=140),
    properties=st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=30))).map(
        lambda pairs: b"\x02".join(key + b"\x01" + value for key, value in pairs)
    ),
    queue_id=st.integers(0, START),
    flag=st.integers(0, START),
    sys_flag=st.integers(0, START).map(lambda flag: flag & ~48),
    reconsume_times=st.integers(0, START),
    born_ms=st.integers(0, (1 << 64) - 1),
    prepared_position=st.integers(0, (1 << 64) - 1),
    queue_offset=st.integers(0, (1 << 64) - 1),
    log_position=st.integers(0, (1 << 64) - 1),
    store_ms=st.integers(0, (1 << 64) - 1),
)


def test_golden_bytes_written_by_hand() -> None:
    head = bytes.fromhex(
        "00000081 daa320a7 3610a686 00000003 00000000 0000000000000011 0000000000001000 00000000"
        "0000018bcfe5687b 0a010203 00002a9f 0000018bcfe569c8 7f000001 0000ffff 00000000 0000000000000000 00000005"
    )
    tail = b"hello" + b"\x09TopicTest" + b"\x00\x18K\x01v\x02" + b"__CRC32#\x013270514150\x02"
    assert c_encode(Stored(properties=b"K\x01v")) == head + tail


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_encodes_what_the_field_table_says(engine: bytes) -> None:
    if core().shmq_crc32_force(engine) != 0:
        pytest.skip(f"this processor has no {engine.decode()}")
    noise = random.Random(6)
    try:
        for length in [*range(0, 300), 4095, 65_536, 70_001, 4 << 20]:
            wanted = Stored(
                body=noise.randbytes(length), properties=b"TAGS\x01a" * (length % 3), topic=b"t" * (1 + length % 127)
            )
            expected = python_encode(wanted)
            assert c_encode(wanted) == expected, length
            assert c_encode(wanted, body_in_place=True) == expected, length
    finally:
        for name in ENGINES:
            core().shmq_crc32_force(name)


@given(stored)
def test_encoding_equals_the_independent_encoder(wanted: Stored) -> None:
    assert c_encode(wanted) == python_encode(wanted)


@given(stored, st.booleans())
def test_decoding_returns_what_was_encoded(wanted: Stored, body_in_place: bool) -> None:
    data = c_encode(wanted, body_in_place=body_in_place)
    longer = data + b"more"  # the view points into it
    status, view = decode(longer)
    assert status == OK
    found = Stored(
        body=ctypes.string_at(view.body, view.body_bytes),
        topic=ctypes.string_at(view.topic, view.topic_bytes),
        properties=ctypes.string_at(view.properties, view.properties_bytes)[:-20].removesuffix(b"\x02"),
        **{
            name: getattr(view, name)
            for name in (
                "queue_id", "flag", "sys_flag", "reconsume_times", "born_ms", "prepared_position", "queue_offset",
                "log_position", "store_ms",
            )
        },
    )  # fmt: skip
    assert found == Stored(**{**wanted.__dict__, "properties": wanted.properties.removesuffix(b"\x02")})
    assert ctypes.string_at(view.born_host, view.born_host_bytes) == HOST
    assert ctypes.string_at(view.store_host, view.store_host_bytes) == STORE_HOST
    assert view.record_bytes == len(data)
    assert verified(data)


@pytest.mark.parametrize("host", [HOST, HOST_V6], ids=["IPv4", "IPv6"])
def test_the_checksum_is_right_on_both_sides_of_where_the_table_of_multipliers_ends(host: bytes) -> None:
    for body_bytes in range(3_860, 4_010):
        wanted = Stored(body=bytes(body_bytes), queue_offset=START, log_position=1 << 40, store_ms=1_700_000_000_123)
        assert verified(c_encode(wanted, host=host)), body_bytes


def written_digits(raw: int) -> bytes:
    record = ctypes.create_string_buffer(108)
    patch = Patch(record_bytes=108, crc_raw=raw ^ START, shift=0x80000000)
    core().shmq_record_patch(record, ctypes.byref(patch), 0, 0, 0)
    return record.raw[97:107]


@every_row(
    "raw",
    [0, 9, 10, 99, 9_999, 10_000, 12_345_678, 99_999_999, 100_000_000, 2_147_483_647, 1_999_999_999, 2_000_000_010],
)
def test_digits_are_written_least_significant_first_and_zero_padded(raw: int) -> None:
    assert written_digits(raw) == f"{raw:010d}"[::-1].encode()


@given(st.integers(0, 0x7FFFFFFF))
def test_digits_of_any_number(raw: int) -> None:
    assert written_digits(raw) == f"{raw:010d}"[::-1].encode()


def test_a_second_patch_replaces_the_first() -> None:
    wanted = Stored(body=b"x" * 256)
    spec, _kept = make_spec(wanted)
    out = ctypes.create_string_buffer(core().shmq_record_bytes(ctypes.byref(spec)))
    patch = Patch()
    core().shmq_record_encode(out, ctypes.byref(spec), ctypes.byref(patch))
    core().shmq_record_patch(out, ctypes.byref(patch), 1 << 63, START, 5)
    core().shmq_record_patch(out, ctypes.byref(patch), wanted.queue_offset, wanted.log_position, wanted.store_ms)
    assert out.raw == python_encode(wanted)


def test_the_flags_of_ipv6_hosts_say_what_the_hosts_are_not_what_the_caller_says() -> None:
    assert c_encode(Stored(sys_flag=1 | 16 | 32)) == python_encode(Stored(sys_flag=1))
    expected = python_encode(Stored(sys_flag=1 | 16), hosts=(HOST_V6, STORE_HOST))
    assert c_encode(Stored(sys_flag=1 | 32), host=HOST_V6) == expected


@given(stored, st.booleans())
def test_an_ipv6_born_host_makes_the_record_twelve_bytes_longer(wanted: Stored, body_in_place: bool) -> None:
    flagged = replace(wanted, sys_flag=wanted.sys_flag | 16)
    record = c_encode(wanted, body_in_place=body_in_place, host=HOST_V6)
    assert record == python_encode(flagged, hosts=(HOST_V6, STORE_HOST))
    assert len(record) == len(c_encode(wanted)) + 12


def test_a_spec_that_cannot_be_stored_has_no_size_and_writes_nothing() -> None:
    for wanted in (
        Stored(properties=b"p" * 32_747),
        Stored(properties=b"p" * 32_768),
        Stored(topic=b"t" * 32_768),
        Stored(body=bytes((4 << 20) + 1)),
    ):
        spec, _kept = make_spec(wanted)
        out = ctypes.create_string_buffer(b"\xa5" * 4096, 4096)
        patch = Patch(1, 1, 1)
        assert core().shmq_record_bytes(ctypes.byref(spec)) == 0
        core().shmq_record_encode(out, ctypes.byref(spec), ctypes.byref(patch))
        core().shmq_record_patch(out, ctypes.byref(patch), 1, 2, 3)
        assert out.raw == b"\xa5" * 4096
    assert verified(c_encode(Stored(properties=b"p" * 32_746, body=bytes(4 << 20))))


@every_row("born_v6", [False, True])
@every_row("store_v6", [False, True])
@every_row("with_crc", [False, True])
@every_row("topic", [b"t", b"t" * 127, b"t" * 128, b"t" * 300])
def test_records_of_other_brokers_are_read(born_v6: bool, store_v6: bool, with_crc: bool, topic: bytes) -> None:
    hosts = (bytes(range(20)) if born_v6 else HOST, bytes(range(20, 40)) if store_v6 else STORE_HOST)
    wanted = Stored(topic=topic, properties=b"K\x01v", sys_flag=16 * born_v6 + 32 * store_v6)
    data = python_encode(wanted, with_crc=with_crc, hosts=hosts)
    status, view = decode(data)
    assert status == OK and verified(data)
    assert ctypes.string_at(view.born_host, view.born_host_bytes) == hosts[0]
    assert ctypes.string_at(view.store_host, view.store_host_bytes) == hosts[1]
    assert ctypes.string_at(view.topic, view.topic_bytes) == topic
    assert ctypes.string_at(view.body, view.body_bytes) == wanted.body
    assert view.store_ms == wanted.store_ms


def test_every_flipped_bit_is_seen_except_in_the_key_of_the_crc_property() -> None:
    data = c_encode(Stored(body=b"payload of some length", properties=b"TAGS\x01a\x02KEYS\x01k"))
    key = range(len(data) - 20, len(data) - 11)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        assert not verified(bytes(damaged)) or bit >> 3 in key, bit


@given(stored, st.data())
def test_a_flipped_bit_of_any_record_is_seen(wanted: Stored, data: st.DataObject) -> None:
    record = bytearray(c_encode(wanted))
    bit = data.draw(st.integers(0, 8 * (len(record) - 20) - 1))
    record[bit >> 3] ^= 1 << (bit & 7)
    assert not verified(bytes(record))


@pytest.mark.parametrize("tail", [b"999999999 \x02", b"          \x02", b"9999999999\x02", b"0000000000\x03"])
def test_a_record_crc_that_is_not_a_number_is_corrupt(tail: bytes) -> None:
    assert not verified(c_encode(Stored())[:-11] + tail)


def test_the_body_crc_is_checked_without_a_record_crc() -> None:
    data = bytearray(python_encode(Stored(), with_crc=False))
    assert verified(bytes(data))
    data[88] ^= 1
    assert not verified(bytes(data))


def test_zero_and_blank_are_empty_and_fragments_are_corrupt() -> None:
    blank = struct.pack(">II", 5000, 0xCBD43194)
    assert decode(bytes(4))[0] == EMPTY
    assert decode(bytes(200))[0] == EMPTY
    assert decode(blank)[0] == EMPTY
    assert decode(blank + b"old bytes")[0] == EMPTY
    assert decode(b"")[0] == CORRUPT
    assert decode(bytes(3))[0] == CORRUPT
    assert decode(blank[:7])[0] == CORRUPT
    assert decode(struct.pack(">II", 100, 0xDAA320A8) + bytes(92))[0] == CORRUPT


@given(stored, st.data())
def test_a_truncated_record_is_corrupt(wanted: Stored, data: st.DataObject) -> None:
    record = c_encode(wanted)
    assert decode(record[: data.draw(st.integers(0, len(record) - 1))])[0] == CORRUPT


@every_row("difference", [-1, 1, 12, 1 << 20])
@every_row("field", ["total", "body", "topic", "properties"])
def test_a_length_that_contradicts_the_others_is_corrupt(field: str, difference: int) -> None:
    wanted = Stored(properties=b"K\x01v")
    data = bytearray(python_encode(wanted) + bytes(64))
    at = {"total": 0, "body": 84, "topic": 93, "properties": 94 + len(wanted.topic)}[field]
    width = {"total": 4, "body": 4, "topic": 1, "properties": 2}[field]
    value = int.from_bytes(data[at : at + width], "big") + difference
    data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "big")
    assert decode(bytes(data))[0] == (CORRUPT if value < 1 << 8 * width else OK)


@pytest.mark.parametrize(("at", "width"), [(0, 4), (84, 4), (93, 1), (94 + 9, 2)])
def test_lengths_java_would_read_as_negative_are_corrupt(at: int, width: int) -> None:
    data = bytearray(python_encode(Stored()))
    data[at] |= 0x80
    assert decode(bytes(data) + bytes(1 << 17))[0] == CORRUPT


def find(properties: bytes, key: bytes) -> bytes | None:
    size = ctypes.c_size_t()
    text = ctypes.create_string_buffer(properties, len(properties))
    address = core().shmq_property_find(text, len(properties), key, len(key), ctypes.byref(size))
    return ctypes.string_at(address, size.value) if address else None


@every_row(
    ("properties", "key", "value"),
    [
        (b"", b"TAGS", None),
        (b"TAGS\x01a", b"TAGS", b"a"),
        (b"TAGS\x01a\x02", b"TAGS", b"a"),
        (b"XTAGS\x01a\x02TAGS\x01b\x01c", b"TAGS", b"b\x01c"),
        (b"TAGS\x01a\x02TAGS\x01b", b"TAGS", b"b"),  # the later one, as in RocketMQ's map
        (b"TAGS\x01a\x02TAGS\x01", b"TAGS", b"a"),  # an empty value is no pair
        (b"TAGS", b"TAGS", None),
        (b"TAGS\x02\x01", b"TAGS", None),
        (b"\x01a", b"", None),
        (b"TAGSX\x01a", b"TAGS", None),
        (b"\x02\x02K\x01v\x02\x02", b"K", b"v"),
    ],
)
def test_properties_are_found_as_rocketmq_reads_them(properties: bytes, key: bytes, value: bytes | None) -> None:
    assert find(properties, key) == value


@given(
    st.lists(
        st.tuples(st.sampled_from([b"A", b"AB", b"B"]), st.binary(max_size=4).map(lambda v: v.replace(b"\x02", b"")))
    )
)
def test_property_find_equals_a_dictionary(pairs: list[tuple[bytes, bytes]]) -> None:
    text = b"\x02".join(key + b"\x01" + value for key, value in pairs)
    table = {key: value for key, value in pairs if value}
    for key in (b"A", b"AB", b"B"):
        assert find(text, key) == table.get(key)


SANITIZED = """
import ctypes, random, sys
core = ctypes.CDLL(sys.argv[1])
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
core.shmq_record_decode.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
core.shmq_record_verify.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
core.shmq_property_find.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p]
view = ctypes.create_string_buffer(256)
size = ctypes.c_size_t()
noise = random.Random(7)
accepted = 0
def check(data):
    global accepted
    address = libc.malloc(max(len(data), 1))
    ctypes.memmove(address, data, len(data))
    if core.shmq_record_decode(address, len(data), view) == 0:
        accepted += 1
        core.shmq_record_verify(address, view)
    core.shmq_property_find(address, len(data), b"TAGS", 4, ctypes.byref(size))
    libc.free(address)
records = [bytes.fromhex(text) for text in sys.argv[2:]]
for record in records:
    for length in range(len(record) + 1):
        check(record[:length])
    for at in range(len(record)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, record[at] ^ 0x30):
            check(record[:at] + bytes([value]) + record[at + 1:])
    for _ in range(3000):
        damaged = bytearray(record[: noise.randrange(1, len(record) + 1)])
        for _ in range(noise.randrange(1, 6)):
            damaged[noise.randrange(len(damaged))] = noise.randrange(256)
        if noise.random() < 0.5 and len(damaged) > 4:
            damaged[:4] = len(damaged).to_bytes(4, "big")
        check(bytes(damaged))
for _ in range(2000):
    check(noise.randbytes(noise.randrange(200)))
assert accepted > 100, accepted
print("done")
"""


@pytest.mark.slow
def test_hostile_bytes_are_never_read_out_of_bounds_under_sanitizers() -> None:
    v6 = python_encode(Stored(sys_flag=48, properties=b"TAGS\x01a"), hosts=(bytes(20), bytes(20)), magic=0xDAA320AB)
    records = [
        python_encode(Stored(properties=b"TAGS\x01a\x02KEYS\x01k")),
        v6,
        python_encode(Stored(body=b"")),
        python_encode(Stored(), with_crc=False),
    ]
    done = run_sanitized(SANITIZED, *SOURCES, arguments=[record.hex() for record in records])
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr


ENCODE_SANITIZED = """
import ctypes, sys
core = ctypes.CDLL(sys.argv[1])
import importlib.util
spec = importlib.util.spec_from_file_location("rules", sys.argv[2])
rules = importlib.util.module_from_spec(spec)
sys.modules["rules"] = rules
spec.loader.exec_module(rules)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
for name in ("shmq_record_bytes", "shmq_record_encode", "shmq_record_patch"):
    getattr(core, name).argtypes = getattr(rules.core(), name).argtypes
for length in [*range(300), 5000]:
    wanted = rules.Stored(body=bytes(length), properties=b"TAGS" * (length % 40), topic=b"t" * (1 + length % 200))
    c_spec, kept = rules.make_spec(wanted)
    size = core.shmq_record_bytes(ctypes.byref(c_spec))
    out = libc.malloc(size)
    patch = rules.Patch()
    core.shmq_record_encode(out, ctypes.byref(c_spec), ctypes.byref(patch))
    core.shmq_record_patch(out, ctypes.byref(patch), wanted.queue_offset, wanted.log_position, wanted.store_ms)
    assert ctypes.string_at(out, size) == rules.python_encode(wanted), length
    libc.free(out)
print("done")
"""


@pytest.mark.slow
def test_encoding_stays_inside_its_buffer_under_sanitizers() -> None:
    done = run_sanitized(ENCODE_SANITIZED, *SOURCES, arguments=[__file__])
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr
