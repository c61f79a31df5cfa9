"""What is no expression is refused with the place of the fault; what lies behind `where=` is loaded when it is used."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest

import shmq
from shmq.errors import FilterSyntaxError
from shmq.filter.compiler import DEPTH_MAX
from shmq.filter.program import CHARACTERS_MAX, NAMES_MAX
from shmq.filter.sql import sql_filter, with_tags
from shmq.filter.translation import sql_program
from tests.tables.rows import every_row

# The expression, the faulty part between «», a word of the reason or the hint.
WRONG = [
    ("«»", "empty"),
    ("«»   ", "empty"),
    ("a =«»", "a value is expected"),
    ("a =  -- and then?«»", "a value is expected"),
    ("a = 1 «b» = 2", "AND, OR or the end"),
    ("a = 1«)»", "AND, OR or the end"),
    ("(a = 1«»", "the parenthesis is not closed"),
    ("(a«»", "the parenthesis is not closed"),
    ("a «LIKE» 'x%'", "CONTAINS"),
    ('a = «"»x"', "single quotes"),
    ("a «!»= 1", "<>"),
    ("a =«=» 1", "single ="),
    ("a = 1 «+» 2", "no arithmetic"),
    ("a «%» 2 = 1", "no arithmetic"),
    ("a = «'»x", "closing quote"),
    ("a«.»b = 1", "letters, digits, _ and $"),
    ("«ü» = 1", "nothing begins with"),
    ("«AND» = 1", "a value is expected"),
    ("a = «OR» b", "a value is expected"),
    ("a NOT «b»", "BETWEEN or CONTAINS"),
    ("a IS «5»", "NOT or NULL"),
    ("a BETWEEN 1 «OR» 2", "AND"),
    ("a IN («)»", "a text in single quotes"),
    ("a IN («5»)", "a text in single quotes"),
    ("a IN ('5' «'6'»)", ") or ,"),
    ("a IN «'5'»", "("),
    ("a CONTAINS «5»", "a text in single quotes"),
    ("a = 0«1»", "AND, OR or the end"),
    ("a = «9223372036854775808»", "is above"),
    ("a = «" + "9" * 5000 + "»", "is above"),
    ("a > «0.0»", "is below"),
    ("a > «1E999»", "is above"),
    ("a > «'x'»", "texts have no order"),
    ("«'x'» < a", "texts have no order"),
    ("a > («b = 1»)", "conditions have no order"),
    ("a > «TRUE»", "conditions have no order"),
    ("«a > 5» > 3", "conditions have no order"),
    ("a = «NULL»", "IS NULL"),
    ("«NULL» <> a", "IS NULL"),
    ("«TRUE = 5»", "TRUE and FALSE"),
    ("«5»", "a condition is needed"),
    ("a = 1 AND «'x'»", "a condition is needed"),
    ("NOT «-a»", "a condition is needed"),
    ("a BETWEEN «10» AND 9", "selects nothing"),
    ("a BETWEEN «9.5» AND 9", "selects nothing"),
    ("a BETWEEN «'1'» AND 9", "texts have no order"),
    ("a BETWEEN 1 AND «NULL»", "conditions have no order"),
    ("«NOT a» IN ('x')", "only a property"),
    ("a = 1\nAND b = «)»\n", "a value is expected"),
    ("a = «\ud800»", "UTF-8"),
]


@every_row(("marked", "words"), WRONG, ids=lambda value: ascii(value)[:40])
def test_the_place_and_the_reason_are_named(marked: str, words: str) -> None:
    start = marked.index("«")
    end = marked.index("»") - 1
    expression = marked.replace("«", "").replace("»", "")
    with pytest.raises(FilterSyntaxError) as caught:
        sql_program(expression)
    error = caught.value
    assert words in f"{error} {error.hint}"
    before = expression[:start]
    line_start = before.rfind("\n") + 1
    assert (error.lineno, error.offset) == (before.count("\n") + 1, start - line_start + 1)
    assert error.text == expression[line_start:].partition("\n")[0]
    assert (error.end_offset or 0) - (error.offset or 0) == max(1, end - start)
    assert error.code == 23 and not error.retryable


def test_the_message_has_a_caret_under_the_fault() -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        sql_filter("region = 'eu' AND qty LIKE '1%'")
    reason, line, pointer = str(caught.value).split("\n")
    assert reason.endswith("(character 23)")
    assert line[len(pointer) - 4 : len(pointer)] == "LIKE" and pointer.strip() == "^^^^"


def test_of_a_long_expression_the_surroundings_are_shown() -> None:
    with pytest.raises(FilterSyntaxError) as caught:
        sql_filter("a = 1 OR " * 400 + "b ! 2")
    _, line, pointer = str(caught.value).split("\n")
    assert len(line) < 130 and line[pointer.index("^")] == "!"


def test_python_shows_it_like_any_syntax_error() -> None:
    with pytest.raises(SyntaxError) as caught:
        sql_filter("a =\n= 1")
    shown = "".join(traceback.format_exception_only(caught.value))
    assert 'File "<filter>", line 2\n    = 1\n    ^\n' in shown


def test_an_error_of_another_host_keeps_its_words() -> None:
    error = FilterSyntaxError("a = = 1 is none (character 5)", hint="equal is a single =")
    assert str(error) == "a = = 1 is none (character 5)" and error.offset is None


@every_row(
    ("expression", "words"),
    [
        ("a = '" + "x" * CHARACTERS_MAX + "'", f"{CHARACTERS_MAX} at most"),
        ("NOT " * (DEPTH_MAX + 1) + "a", "nested"),
        ("NOT (" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1), "nested"),
        ("a" + " = a" * (DEPTH_MAX + 1), "nested"),
        ("a" + " IS NULL" * (DEPTH_MAX + 1), "nested"),
        ("- " * (DEPTH_MAX + 1) + "5 = a", "nested"),
        (" OR ".join(f"p{number} = 1" for number in range(NAMES_MAX + 1)), f"at most {NAMES_MAX}"),
    ],
    ids=["long", "NOT", "NOT (", "=", "IS NULL", "-", "names"],
)
def test_what_is_too_large_is_refused(expression: str, words: str) -> None:
    with pytest.raises(FilterSyntaxError, match=words):
        sql_filter(expression)


def test_what_is_just_not_too_large_is_taken() -> None:
    assert sql_filter("NOT (" * (DEPTH_MAX // 2 - 2) + "a" + ")" * (DEPTH_MAX // 2 - 2)).matches(b"") is False
    many = " OR ".join(f"p{number} = 1" for number in range(NAMES_MAX))
    assert sql_filter(many).matches(b"p127\x011\x02")
    assert sql_filter("(" * 2000 + "a = 1" + ")" * 2000).matches(b"a\x011\x02")  # nothing is nested in these
    chain = " OR ".join(["a = 7"] * (CHARACTERS_MAX // 9 - 1))
    assert sql_filter(chain).matches(b"a\x017\x02") and not sql_filter(chain).matches(b"a\x018\x02")


@pytest.mark.parametrize(
    ("tags", "where", "joined"),
    [
        ((), None, None),
        (("a",), None, None),
        ((), "x = 1", "x = 1"),
        (("a", "it's"), "x = 1 -- y", "TAGS IN ('a', 'it''s') AND (x = 1 -- y\n)"),
    ],
)
def test_tags_join_an_expression(tags: tuple[str, ...], where: str | None, joined: str | None) -> None:
    assert with_tags(where, tags) == joined
    if joined is not None:
        assert sql_filter(joined).matches(b"TAGS\x01it's\x02x\x011\x02")
        assert sql_filter(joined).matches(b"TAGS\x01b\x02x\x011\x02") is not bool(tags)


def test_the_parser_is_not_loaded_before_it_is_needed() -> None:
    code = "import shmq, sys; assert 'lark' not in sys.modules; import shmq.filter.sql as s; s.sql_filter('a = 1')"
    subprocess.run([sys.executable, "-P", "-c", f"{code}; assert 'lark' in sys.modules"], check=True, timeout=60)
    assert shmq.FilterSyntaxError is FilterSyntaxError
