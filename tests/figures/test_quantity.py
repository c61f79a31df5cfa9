"""Numbers are written the way people read them, and read the way they write them."""

import re
from datetime import datetime

import pytest

from shmq.errors import UsageError
from shmq.figures import quantity
from tests.tables.rows import every_row


@every_row(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (494.304501, "494 B"),
        (999, "999 B"),
        (1024, "1.0 KiB"),
        (4096, "4.0 KiB"),
        (6_888_896, "6.6 MiB"),
        (851_443_712, "812 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 60, "1024 PiB"),
    ],
)
def test_sizes_have_binary_units_and_three_digits(size_bytes: float, text: str) -> None:
    assert quantity.size_text(size_bytes) == text


@every_row(
    ("rate", "text"),
    [(0, "0"), (12, "12"), (999.4, "999"), (999.6, "1.00k"), (41_200, "41.2k"), (412_000, "412k"), (1.31e6, "1.31M")],
)
def test_rates_have_decimal_units(rate: float, text: str) -> None:
    assert quantity.rate_text(rate) == text


@every_row(
    ("seconds", "text"),
    [(-1, "0.0 s"), (0.2, "0.2 s"), (40, "40 s"), (125, "2m 05s"), (7_380, "2h 03m"), (183_600, "2d 03h")],
)
def test_ages_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert quantity.age_text(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 queues"), (1, "1 queue"), (1204, "1,204 queues")])
def test_an_amount_agrees_with_its_noun(count: int, text: str) -> None:
    assert quantity.plural(count, "queue") == text


@every_row(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("64m", 64 << 20),
        ("1G", 1 << 30),
        ("1.5 GiB", 3 << 29),
        ("512 kb", 512 << 10),
        ("7B", 7),
        ("2T", 2 << 40),
    ],
)
def test_sizes_are_read_with_or_without_unit(text: str, size_bytes: int) -> None:
    assert quantity.parse_size(text) == size_bytes


@every_row(
    ("text", "seconds"),
    [("3", 3), ("250ms", 0.25), ("30s", 30), ("5m", 300), ("2h", 7200), ("7d", 604_800), (" 1.5 H ", 5400)],
)
def test_durations_are_read_in_seconds_unless_they_name_a_unit(text: str, seconds: float) -> None:
    assert quantity.parse_duration(text) == seconds


@every_row("text", ["", "-1s", "1y", "s", "1e3", "NaN", "1 2", "0x10"])
def test_what_is_no_quantity_is_refused_with_an_example(text: str) -> None:
    for parse in (quantity.parse_size, quantity.parse_duration):
        with pytest.raises(UsageError) as refused:
            parse(text)
        assert repr(text) in str(refused.value)
        assert refused.value.hint


@every_row("text", ["9" * 400, "99999999999999999999w", "1" + "0" * 400 + "ms"])
def test_a_length_of_time_that_nothing_could_wait_for_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(UsageError, match="longer than can be waited for") as refused:
        quantity.parse_duration(text)
    assert refused.value.hint and len(str(refused.value)) < 120


@every_row("text", ["9" * 400, "9999999999P", "8192P"])
def test_a_size_that_nothing_could_have_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(UsageError, match="more than anything can hold") as refused:
        quantity.parse_size(text)
    assert refused.value.hint and len(str(refused.value)) < 120


def test_times_are_local_for_people_and_utc_in_json() -> None:
    time_ms = 1_763_625_667_113
    local = datetime.fromtimestamp(time_ms / 1000)
    assert quantity.clock_text(time_ms) == f"{local:%H:%M:%S}.113"
    assert quantity.iso_text(time_ms) == "2025-11-20T08:01:07.113Z"


@every_row("time_ms", [1 << 63, -(1 << 63), (1 << 64) - 1, 10**17, -(10**17)])
def test_a_number_that_is_no_time_of_any_year_has_no_text(time_ms: int) -> None:
    assert quantity.iso_text(time_ms) is None
    assert quantity.clock_text(time_ms) == "–"


@pytest.mark.parametrize("time_ms", [-1, 0, 999, 1_000, 1_763_625_667_999, -61_000_000_000_000, 253_402_300_799_999])
def test_a_json_time_reads_back_as_the_same_millisecond(time_ms: int) -> None:
    text = quantity.iso_text(time_ms)
    assert text is not None and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert round(datetime.fromisoformat(text).timestamp() * 1000) == time_ms
