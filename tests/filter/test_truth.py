"""Every small expression means in the core what RocketMQ's rules say, re-derived in java_rules.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

import pytest

from shmq.errors import FilterSyntaxError
from shmq.filter.translation import sql_program
from tests.filter import java_rules
from tests.filter.core_filter import Loaded, text_of
from tests.tables.rows import every_row

RELATIONS = ("=", "<>", "<", "<=", ">", ">=")
# One of each kind of operand, and each kind of text a property can hold for it.
OPERANDS = (
    *("a", "b", "5", "5L", "3000000000", "5.0", "1E3", "'5'", "'x'", "'true'", "TRUE", "FALSE", "NULL"),
    *("-5", "-a", "- -5", "+5", "-TRUE", "-NULL", "-(a = b)", "-(a < b)", "(a = 5)", "(a > 5)", "(NOT a)"),
    *("(a IS NULL)", "-'x'", "-3000000000", "(b)", "((5))", "(NULL)", "('x')", "'0x1p2'", "'NaN'", "''"),
)
VALUES = (None, "5", "6", "x", "5.0", "true", "TRUE", "3000000000", "-5", "NaN", " 5 ", "99999999999999999999")
Case = tuple[dict[str, str], bytes]
"""Properties, and their text in a record."""


def cases(pairs: Iterable[tuple[str | None, str | None]]) -> list[Case]:
    pairs = (zip("ab", pair, strict=True) for pair in pairs)
    found = [{name: value for name, value in pair if value is not None} for pair in pairs]
    return [(each, text_of(each)) for each in found]


EVERY_PAIR = cases(product(VALUES, VALUES))
EVERY_VALUE = cases(zip(VALUES, reversed(VALUES), strict=True))


def cases_of(expression: str) -> list[Case]:
    """Every pair of values where the expression names both properties, else every value beside some other."""
    return EVERY_PAIR if {"a", "b"} <= set(re.findall(r"\w+", expression)) else EVERY_VALUE


def compared(expression: str, cases: list[Case] | None = None) -> bool:
    """Compare both sides on the cases, those of the expression unless told; whether the expression is one."""
    try:
        expected = java_rules.parse(expression)
    except java_rules.Refused:
        with pytest.raises(FilterSyntaxError):
            print(expression, sql_program(expression))
        return False
    loaded = Loaded(sql_program(expression))
    assert loaded.reason is None, (expression, loaded.reason)
    wrong = {
        text: (outcome, wanted)
        for case, text in (cases_of(expression) if cases is None else cases)
        if (outcome := loaded.outcome(text)) != (wanted := java_rules.outcome(expected, case))
    }
    assert not wrong, (expression, wrong)
    return True


@every_row("relation", RELATIONS)
def test_each_relation_of_each_two_operands(relation: str) -> None:
    accepted = sum(compared(f"{left} {relation} {right}") for left, right in product(OPERANDS, OPERANDS))
    assert 100 < accepted < len(OPERANDS) ** 2


@pytest.mark.parametrize("form", ["IS NULL", "IS NOT NULL", "= a = b", "= TRUE", "<> b = TRUE"])
def test_each_suffix_of_each_operand(form: str) -> None:
    assert sum(compared(f"{operand} {form}") for operand in OPERANDS)


@every_row("negated", ["", "NOT "])
@every_row("word", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
def test_parts_of_each_operand(word: str, negated: str) -> None:
    for operand, text in product(OPERANDS, ("5", "x", "", "ru", "true", "E")):
        assert compared(f"{operand} {negated}{word} '{text}'")


@pytest.mark.parametrize("negated", ["", "NOT "])
def test_lists_of_each_operand(negated: str) -> None:
    for operand in OPERANDS:
        is_one = compared(f"{operand} {negated}IN ('5', 'x', 'TRUE')")
        assert is_one == (operand in ("a", "b", "(b)"))
    assert compared(f"a {negated}IN (' 5 ')")


@pytest.mark.parametrize("negated", ["", "NOT "])
def test_ranges_of_all_bounds(negated: str) -> None:
    bounds = ("1", "5", "7", "5.0", "7.5", "-1", "-9", "3000000000", "b", "NULL", "TRUE", "'5'", "-b", "-(a = 5)")
    accepted = 0
    for value, low, high in product(("a", "5", "-a", "TRUE", "'5'"), bounds, bounds):
        accepted += compared(f"{value} {negated}BETWEEN {low} AND {high}")
    assert accepted > 100


# One condition of each truth, and one that fails.
LEAVES = {"FALSE": 0, "TRUE": 1, "(missing = 1)": 2, "(a = 1)": 3, "a": 0, "missing": 2, "NOT a": 1}


@every_row("words", list(product(("AND", "OR"), repeat=3)))
def test_junctions_of_all_truths(words: tuple[str, ...]) -> None:
    case = cases([("text", None)])
    for leaves in product(LEAVES, repeat=2):
        assert compared(f"{leaves[0]} {words[0]} {leaves[1]}", case)
    for leaves in product(list(LEAVES)[:4], repeat=4):
        first, second, third, fourth = leaves
        assert compared(f"{first} {words[0]} {second} {words[1]} {third} {words[2]} {fourth}", case)
        assert compared(f"{first} {words[0]} ({second} {words[1]} NOT ({third} {words[2]} {fourth}))", case)


def test_the_leaves_are_what_they_are_called() -> None:
    for leaf, truth in LEAVES.items():
        assert Loaded(sql_program(leaf)).outcome(text_of({"a": "text"})) == truth


def test_and_is_kleenes_table() -> None:
    table = {
        (first, second): Loaded(sql_program(f"{first} AND {second}")).outcome(b"")
        for first, second in product(("FALSE", "TRUE", "NULL"), repeat=2)
    }
    assert table == {
        ("FALSE", "FALSE"): 0, ("FALSE", "TRUE"): 0, ("FALSE", "NULL"): 0,
        ("TRUE", "FALSE"): 0, ("TRUE", "TRUE"): 1, ("TRUE", "NULL"): 2,
        ("NULL", "FALSE"): 0, ("NULL", "TRUE"): 2, ("NULL", "NULL"): 2,
    }  # fmt: skip


@every_row(
    ("expression", "properties", "matches"),
    [
        ("region = 'eu' AND qty BETWEEN 1 AND 10", {"region": "eu", "qty": "10"}, True),
        ("region = 'eu' AND qty BETWEEN 1 AND 10", {"region": "eu", "qty": "11"}, False),
        ("region = 'eu' AND qty BETWEEN 1 AND 10", {"region": "eu"}, False),
        ("qty > 5", {"qty": "5.5"}, False),  # no Integer: the broker logs an error and leaves the message out
        ("qty > 5 OR region = 'eu'", {"qty": "many", "region": "eu"}, False),
        ("region = 'eu' OR qty > 5", {"qty": "many", "region": "eu"}, True),  # decided before it comes to that
        ("qty > 5.0", {"qty": "5.5"}, True),
        ("NOT region = 'eu'", {"region": "us"}, False),  # (NOT region) = 'eu'
        ("NOT (region = 'eu')", {"region": "us"}, True),
        ("region <> 'eu'", {}, False),
        ("region IS NULL", {}, True),
        ("TAGS = 'fruit'", {"TAGS": "fruit"}, True),
        ("KEYS CONTAINS 'o-4'", {"KEYS": "o-41 o-42"}, True),
        ("name = 'it''s' -- said he", {"name": "it's"}, True),
        ("/* why */ name STARTSWITH 'ä'", {"name": "ärger"}, True),
        ("$x_1 = 'y'", {"$x_1": "y"}, True),
        ("a = 'x'", {"A": "x"}, False),
    ],
)
def test_what_users_write(expression: str, properties: dict[str, str], matches: bool) -> None:
    assert (Loaded(sql_program(expression)).outcome(text_of(properties)) == 1) is matches
