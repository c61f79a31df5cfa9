"""A row says all of a setting: what it may be, and what people call it."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from shmq.errors import UsageError
from shmq.options.row import Row, internal, named_rows, option, rows_of, settings_in
from tests.tables.rows import every_row


@dataclass(frozen=True)
class Settings:
    """One of each kind."""

    file_bytes: int = option(64 << 20, "Size.", name="file-size", value="SIZE")
    wait_ms: int = option(250, "Time.", name="wait", value="TIME", within=(10, 1000))
    count_max: int = option(0, "Many.", shown="no limit", within=(1, 9))
    tcp: bool = option(True, "Not that.", name="no-tcp")
    mode: str = option("a", "How.", choices=("a", "b"))
    key_file: str = option("", "Where.", value="FILE")
    secret: int = internal(1, within=(1, 2))
    plain: str = ""


ROWS = {row.field: row for row in rows_of(Settings)}


def test_a_field_has_the_name_that_is_given_or_its_own() -> None:
    assert list(named_rows(Settings)) == ["file-size", "wait", "count-max", "no-tcp", "mode", "key-file"]
    assert named_rows(Settings)["count-max"].parameter == "count_max"


def test_what_people_cannot_give_is_checked_and_has_no_name() -> None:
    assert list(ROWS) == ["file_bytes", "wait_ms", "count_max", "tcp", "mode", "key_file", "secret"]
    with pytest.raises(UsageError, match="secret is 3, from 1 to 2"):
        ROWS["secret"].check(3)


def test_the_default_is_shown_with_its_unit_unless_words_are_given() -> None:
    assert [row.shown for row in rows_of(Settings)] == ["64M", "250ms", "no limit", "", "a", "", ""]
    assert [row.is_flag for row in rows_of(Settings)].index(True) == 3


@every_row(
    ("name", "value", "fault"),
    [
        ("wait_ms", 9, "from 10 to 1000"),
        ("wait_ms", 1001, "from 10 to 1000"),
        ("wait_ms", True, "from 10 to 1000"),
        ("wait_ms", "250", "from 10 to 1000"),
        ("count_max", -1, "from 1 to 9"),
        ("mode", "c", "one of a, b"),
        ("key_file", "relative", "absolute"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_can(name: str, value: Any, fault: str) -> None:
    with pytest.raises(UsageError, match=fault) as caught:
        ROWS[name].check(value)
    assert name in str(caught.value) and repr(value) in str(caught.value)


@every_row("row", list(ROWS.values()), ids=lambda row: row.field)
def test_the_default_is_always_allowed(row: Row) -> None:
    row.check(row.default)


def test_the_limits_themselves_are_allowed() -> None:
    for name, value in (("wait_ms", 10), ("wait_ms", 1000), ("count_max", 1), ("mode", "b"), ("key_file", "/a")):
        ROWS[name].check(value)


def test_json_names_fields_and_nothing_else() -> None:
    assert settings_in(Settings, json.dumps({"wait_ms": 5, "plain": "x"})) == {"wait_ms": 5, "plain": "x"}
    for text, fault in (("[]", "list"), ("{", "not JSON"), ('{"wait": 1}', "no such option: wait")):
        with pytest.raises(UsageError, match=fault):
            settings_in(Settings, text)
