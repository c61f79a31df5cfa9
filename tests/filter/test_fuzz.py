"""Random expressions, numbers and programs: the same answers as the slow evaluator, and no access out of bounds."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shmq.errors import FilterSyntaxError
from shmq.filter.java_number import double_of, integer_of
from shmq.filter.translation import sql_program
from tests.bindings.c_core import BINDINGS, run_sanitized
from tests.filter import java_rules
from tests.filter.core_filter import SOURCES, Loaded, core, text_of
from tests.seed import SEED
from tests.tables.rows import every_row

WORDS = (
    *("a", "b", "A", "TAGS", "5", "5L", "0", "6.5", "1e2", "3000000000", "'5'", "'x'", "''", "'a''b'", "TRUE", "false"),
    *("NULL", "null", "AND", "or", "NOT", "IS", "IN", "BETWEEN", "CONTAINS", "StartsWith", "ENDSWITH", "(", ")", ","),
    *("=", "<>", "<", "<=", ">", ">=", "+", "-", "--x\n", "/* y */"),
)
TEXTS = st.one_of(
    st.sampled_from(["5", "6", "5.0", "x", "true", "a'b", "5x", "", "-5", "1e2", "NaN", "ü"]),
    st.text("0123456789.eE+-xpfd NaInty", max_size=12),
)
VALUES = st.one_of(st.none(), TEXTS)
COMPARISONS = st.builds(
    "{} {} {}".format,
    st.sampled_from(["a", "b", "5", "6.5", "'5'", "TRUE", "-a", "(a = 5)", "-3000000000"]),
    st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
    st.sampled_from(["a", "b", "5", "6.5", "'x'", "FALSE", "-5", "(b IS NULL)", "-(a > 5)"]),
)
LEAVES = st.one_of(
    COMPARISONS,
    st.sampled_from(["a", "b", "TRUE", "NULL", "a IS NULL", "b IN ('5', 'x')", "a NOT IN ('5')", "a CONTAINS '5'"]),
    st.sampled_from(["b NOT ENDSWITH 'x'", "a BETWEEN 1 AND 9", "b NOT BETWEEN a AND 7.5", "NOT a", "a = b = TRUE"]),
)
FORMS = ("({} AND {})", "({} OR {})", "({} AND {} OR {})", "NOT ({})", "({}) = ({})", "({}) IS NULL")


@st.composite
def trees(draw: st.DrawFn, depth: int = 3) -> str:
    """Conditions in conditions."""
    if not depth or draw(st.booleans()):
        return draw(LEAVES)
    form = draw(st.sampled_from(FORMS))
    return form.format(*(draw(trees(depth - 1)) for _ in range(form.count("{}"))))


def both_agree(expression: str, first: str | None, second: str | None) -> bool:
    try:
        expected = java_rules.parse(expression)
    except java_rules.Refused:
        with pytest.raises(FilterSyntaxError):
            sql_program(expression)
        return False
    properties = {name: value for name, value in (("a", first), ("b", second)) if value}
    loaded = Loaded(sql_program(expression))
    assert loaded.outcome(text_of(properties)) == java_rules.outcome(expected, properties), (expression, properties)
    return True


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), VALUES, VALUES)
@example("a = 5 AND NOT b IN ('x')", "5", "x")
@example("NOT a = b = TRUE", "5", "x")
def test_words_in_any_order_are_taken_or_refused_alike(expression: str, first: str | None, second: str | None) -> None:
    both_agree(expression, first, second)


@given(trees(), VALUES, VALUES)
def test_expressions_mean_the_same(expression: str, first: str | None, second: str | None) -> None:
    both_agree(expression, first, second)


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_a_syntax_error(text: str) -> None:
    try:
        assert Loaded(sql_program(text)).reason is None
    except FilterSyntaxError as error:
        assert error.msg and error.offset is not None and str(error)


# -- numbers


def core_double(text: bytes) -> float | None:
    value = ctypes.c_double()
    return value.value if core().shmq_text_double(text, len(text), ctypes.byref(value)) else None


def java_double(text: str) -> float | None:
    try:
        return java_rules.java_double(text)
    except java_rules.Thrown:
        return None


def same(left: float | None, right: float | None) -> bool:
    if left is None or right is None or math.isnan(left) or math.isnan(right):
        return (left is None) == (right is None) and (left is None or math.isnan(left) == math.isnan(right or 0.0))
    return struct.pack("<d", left) == struct.pack("<d", right)


NUMBERS = st.one_of(
    st.from_regex(r"\A *[+-]?[0-9]{0,25}\.?[0-9]{0,25}([eE][+-]?[0-9]{1,4})?[fFdD]? *\Z"),
    st.from_regex(r"\A[+-]?0[xX][0-9a-f]{0,18}\.?[0-9A-F]{0,18}[pP][+-]?[0-9]{1,4}[fFdD]?\Z"),
    st.floats(allow_nan=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False).map(float.hex),
    st.text("0123456789.eE+-xXpPfd \tNaInfity", max_size=20),
)


@given(NUMBERS)
@example("1" + "0" * 400)
@example("0." + "0" * 400 + "1e401")
@example("9007199254740993")
@example("9007199254740992." + "9" * 900)
@example("2.4703282292062327208e-324")
@example("0x1.fffffffffffff8p0")
@example("0x" + "f" * 60 + "p-200")
@example("1e2147483648")
@example("1e-99999999999")
@example("Infinity")
@example("-NaN")
@example("0x.p1")
@example(".")
@example("")
def test_doubles_are_read_as_java_reads_them(text: str) -> None:
    assert same(core_double(text.encode()), java_double(text)), text
    assert same(double_of(text), java_double(text)), text


def test_digits_beyond_what_is_kept_still_decide_the_rounding() -> None:
    half = "1." + "0" * 15 + "1110223024625156540423631668090820312500"  # 1 + 2^-53, exactly between two doubles
    assert core_double(half.encode()) == 1.0
    assert core_double((half + "0" * 1000 + "1").encode()) == math.nextafter(1.0, 2.0)
    assert core_double((half + "0" * 30_000).encode()) == 1.0


@given(st.one_of(st.integers(-(1 << 65), 1 << 65).map(str), st.text("0123456789+- ", max_size=12)))
@example("-9223372036854775808")
@example("9223372036854775808")
@example("+7")
@example("-")
def test_integers_are_read_as_java_reads_them(text: str) -> None:
    for bits in (31, 63):
        least, most = -(1 << bits), (1 << bits) - 1
        value = ctypes.c_int64()
        data = text.encode()
        found = core().shmq_text_integer(data, len(data), least, most, ctypes.byref(value))
        try:
            kind = java_rules.Integer if bits == 31 else java_rules.Long
            expected: int | None = int(java_rules.converted(text, kind))
        except java_rules.Thrown:
            expected = None
        assert (value.value if found else None) == expected == integer_of(text, least, most), text


# -- property text


@given(st.lists(st.tuples(st.text("ab\x01\x02", max_size=3), st.text("5x\x01\x02", max_size=3)), max_size=6))
def test_any_property_text_is_read_as_rocketmq_reads_it(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    properties = {}
    for pair in text.split("\x02"):
        name, separator, value = pair.partition("\x01")
        if name and separator and value:
            properties[name] = value
    for expression in ("a = '5'", "b = 'x'", "a IS NULL", "b = a", "aa CONTAINS 'x'"):
        expected = java_rules.outcome(java_rules.parse(expression), properties)
        assert Loaded(sql_program(expression)).outcome(text.encode()) == expected, (expression, text)


def test_work_is_bounded_whatever_an_expression_asks_for() -> None:
    needle = "x" * 3000 + "y"
    expression = " OR ".join([f"a CONTAINS '{needle}'"] * 2)
    value = "x" * 32_000
    loaded = Loaded(sql_program(expression))
    assert loaded.outcome(text_of({"a": value})) == 0
    chain = Loaded(sql_program(" OR ".join(["a=b"] * 1000)))
    assert chain.outcome(text_of({"a": "x", "b": "y"})) == 0
    assert chain.outcome(text_of({"a": value, "b": value + "y"})) == java_rules.FAILED  # given up, so no match


# -- programs

PROGRAMS = [
    sql_program("a = 5 AND b BETWEEN 1 AND 2.5 OR NOT (c IN ('x', 'y') AND d = 'z')"),
    sql_program("a CONTAINS 'x' OR b NOT STARTSWITH 'y' AND (a = b) = (c IS NULL) OR d = TRUE OR FALSE = d"),
    sql_program("-(a > 5) < b OR 'x' = c OR a <> 'x' OR 5 < a OR TRUE"),
]
TEXT = text_of({"a": "5", "b": "1.5", "c": "x", "d": "true"})


def mutated(source: random.Random, program: bytes) -> bytes:
    """Change a byte or two, mostly behind the names and to small numbers; else most programs fail the first check."""
    data = bytearray(program)
    for _ in range(source.choice((1, 1, 1, 2))):
        at = source.randrange(0 if source.random() < 0.1 else len(data) // 4, len(data))
        kind = source.randrange(8)
        if kind == 0:
            del data[at : at + source.randrange(1, 5)]
        elif kind == 1:
            data[at:at] = source.randbytes(source.randrange(1, 5))
        elif kind < 4:
            data[at] ^= 1 << source.randrange(8)
        else:
            data[at] = source.randrange(20)
    if len(data) >= 16 and source.random() < 0.7:  # let the lengths add up, so that the code is looked at
        names = int.from_bytes(data[8:12], "little")
        data[12:16] = max(0, len(data) - 16 - names).to_bytes(4, "little")
    return bytes(data)


@every_row(
    ("change", "reason"),
    [
        (lambda data: b"", "does not begin"),
        (lambda data: data[:15], "does not begin"),
        (lambda data: b"X" + data[1:], "does not begin"),
        (lambda data: data + b"\0", "add up"),
        (lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:], "add up"),
        (lambda data: data[:4] + b"\xff\xff" + data[6:], "too many names"),
        (lambda data: data[:6] + b"\xff\xff" + data[8:], "too deep"),
        (lambda data: data[:6] + b"\0\0" + data[8:], "grows beyond"),
        (lambda data: data + bytes(1 << 18), "too long"),
    ],
)
def test_a_program_is_checked_when_it_is_loaded(change: object, reason: str) -> None:
    assert reason in (Loaded(change(PROGRAMS[0])).reason or ""), reason  # type: ignore[operator]


def assembled(code: bytes, depth: int = 4) -> bytes:
    names = b"\x01\0a"
    return struct.pack("<IHHII", 0x014C5153, 1, depth, len(names), len(code)) + names + code


@every_row(
    ("code", "reason"),
    [
        (b"", "other than one"),
        (b"\x01\x01\x01\x01", "other than one"),
        (b"\x01\x03", "an instruction is not one"),
        (b"\x63", "an instruction is not one"),
        (b"\x03\x01\0", "an instruction is not one"),  # a name that does not exist
        (b"\x03\x00", "an instruction is not one"),  # cut
        (b"\x06\0\0\0\xff\xff", "an instruction is not one"),  # a text beyond the end
        (b"\x05\0\0\x09\0\0" + bytes(8), "an instruction is not one"),  # relation 9
        (b"\x0a", "takes more"),
        (b"\x01\x01\x0b", "takes more"),
        (b"\x01\x01" * 9, "grows beyond"),
        (b"\x01\x01\x0d\x00\x00\x00\x00", "a jump"),  # back
        (b"\x01\x01\x0d\x08\x00\x00\x00\x01\x01\x0b", "a jump"),  # into an operand
        (b"\x01\x01\x0d\x09\x00\x00\x00\x01\x01\x0b", "a jump"),  # to another depth
        (b"\x01\x01\x0d\xff\x00\x00\x00\x01\x01\x0b", "a jump"),  # beyond the end
        (b"\x01\x01\x12\x00\x01\x02\x02", "an instruction is not one"),  # a map that forgives a failure
    ],
)
def test_each_rule_of_a_program_is_checked(code: bytes, reason: str) -> None:
    assert reason in (Loaded(assembled(code)).reason or ""), reason


def test_a_program_by_hand_runs() -> None:
    assert Loaded(assembled(b"\x01\x01\x0d\x0a\x00\x00\x00\x03\x00\x00\x0b")).reason == (
        "a jump does not go forward to an instruction, with the same stack"
    )
    loaded = Loaded(assembled(b"\x01\x01\x0d\x0b\x00\x00\x00\x03\x00\x00\x0b"))
    assert loaded.reason is None
    assert (loaded.outcome(b""), loaded.outcome(b"a\x01x\x02")) == (1, 0)


def damage(rounds: int, seed: int) -> tuple[int, int]:
    """Load and run damaged programs over damaged text; how many were refused, how many ran."""
    source = random.Random(seed)
    refused = ran = 0
    for _ in range(rounds):
        loaded = Loaded(mutated(source, source.choice(PROGRAMS)))
        if loaded.reason is not None:
            refused += 1
            continue
        ran += 1
        for text in (TEXT, b"", mutated(source, TEXT), source.randbytes(20)):
            assert 0 <= loaded.outcome(text) <= 3
    return refused, ran


def test_damaged_programs_are_refused_or_run() -> None:
    refused, ran = damage(3000, SEED)
    assert refused > 300 and ran > 300, (SEED, refused, ran)


SANITIZED = """
import ctypes, sys
from tests.filter import core_filter
library = core_filter.declare(ctypes.CDLL(sys.argv[1]))
core_filter.core = lambda: library
from tests.filter import test_fuzz
test_fuzz.core = core_filter.core
refused, ran = test_fuzz.damage(4000, int(sys.argv[2]))
assert refused > 300 and ran > 300, (refused, ran)
long = ("1" * 5000, "0." + "0" * 5000 + "7e-9", "0x" + "f" * 5000 + "p9", "1e99999999")
for number in (*long, "1e", "-", "", "0x", " 5f "):
    data = number.encode()
    library.shmq_text_double(data, len(data), ctypes.byref(ctypes.c_double()))
"""


@pytest.mark.slow
def test_damaged_programs_stay_within_bounds_under_sanitizers() -> None:
    done = run_sanitized(SANITIZED, *SOURCES, arguments=[str(SEED)])
    assert done.returncode == 0, f"seed {SEED}\n{done.stdout}{done.stderr[-4000:]}"


# What a missing check would let through; each has to be noticed by the damage above.
MUTANTS = {
    "name": ("return take(in, 2) < name_count;", "return take(in, 2) < name_count + 60000u;"),
    "text": ("take_text(in, take(in, 2));", "take_text(in, take(in, 2) ? 1 : 0);"),
    "jump": ("|| depths[step.target] != depths[at]", "|| depths[step.target] > 99u + depths[at]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_damage_notices_a_missing_check(name: str, tmp_path: Path) -> None:
    old, new = MUTANTS[name]
    text = (BINDINGS / "core" / "filter" / "filter.c").read_text()
    assert text.count(old) == 1
    (tmp_path / "filter.c").write_text(text.replace(old, new))
    sources = [str(tmp_path / "filter.c"), *SOURCES[1:]]
    for seed in range(5):
        if run_sanitized(SANITIZED, *sources, arguments=[str(seed)]).returncode != 0:
            return
    pytest.fail("five runs passed without the check")
