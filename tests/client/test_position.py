"""Words for a place in a queue."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from shmq.client.position import BEGIN, END, Kind, Position, parse_position, parse_time
from shmq.errors import UsageError
from tests.tables.rows import every_row

NOW_MS = 1_800_000_000_000


@every_row(
    ("text", "position"),
    [
        ("begin", BEGIN),
        (" First ", BEGIN),
        ("earliest", BEGIN),
        ("end", END),
        ("last", END),
        ("latest", END),
        (0, Position(Kind.OFFSET, 0)),
        (17, Position(Kind.OFFSET, 17)),
        ("17", Position(Kind.OFFSET, 17)),
        ("-90s", Position(Kind.TIME_MS, NOW_MS - 90_000)),
        ("-15m", Position(Kind.TIME_MS, NOW_MS - 900_000)),
        ("-2h", Position(Kind.TIME_MS, NOW_MS - 7_200_000)),
        ("-1.5d", Position(Kind.TIME_MS, NOW_MS - 129_600_000)),
        ("-1w", Position(Kind.TIME_MS, NOW_MS - 604_800_000)),
        ("2026-11-20T08:00:00Z", Position(Kind.TIME_MS, 1_795_161_600_000)),
        ("2026-11-20T09:00:00+01:00", Position(Kind.TIME_MS, 1_795_161_600_000)),
        (datetime(2026, 11, 20, 8, tzinfo=UTC), Position(Kind.TIME_MS, 1_795_161_600_000)),
        (datetime(1, 1, 1), Position(Kind.TIME_MS, 0)),
        (datetime.min.replace(tzinfo=UTC), Position(Kind.TIME_MS, 0)),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=23))), Position(Kind.TIME_MS, 0)),
        (date.min, Position(Kind.TIME_MS, 0)),
        ("0001-01-01", Position(Kind.TIME_MS, 0)),
        ("1900-01-01", Position(Kind.TIME_MS, 0)),
        ("1969-12-31T23:59:59.999Z", Position(Kind.TIME_MS, 0)),
        ("1970-01-01T00:00:01Z", Position(Kind.TIME_MS, 1_000)),
        (datetime.max.replace(tzinfo=UTC), Position(Kind.TIME_MS, 253_402_300_799_999)),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))), Position(Kind.TIME_MS, 253_402_300_799_999)),
        ("9" * 5_000, Position(Kind.OFFSET, 2**63 - 1)),
    ],
)
def test_each_form_means_one_place(text: str | int | datetime, position: Position) -> None:
    assert parse_position(text, now_ms=NOW_MS) == position


@every_row("text", ["", "yesterday", "-2", "-2y", "-h", "--1h", "-1e30d", -1, True, "2026-13-01", b"end", 1.5])
def test_anything_else_is_refused_with_the_forms_in_the_hint(text: object) -> None:
    with pytest.raises(UsageError) as caught:
        parse_position(text, now_ms=NOW_MS)  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_time_long_ago_is_not_before_the_epoch() -> None:
    assert parse_position("-99999w", now_ms=5).value == 0


def test_a_place_outside_the_queue_is_its_nearer_end() -> None:
    assert Position(Kind.OFFSET, 3).resolve(10, 20, lambda _: 0) == 10
    assert Position(Kind.OFFSET, 33).resolve(10, 20, lambda _: 0) == 20
    assert BEGIN.resolve(10, 20, lambda _: 0) == 10
    assert END.resolve(10, 20, lambda _: 0) == 20


def test_a_time_is_looked_up_in_the_queue() -> None:
    asked: list[int] = []

    def search(time_ms: int) -> int:
        asked.append(time_ms)
        return 15

    assert Position(Kind.TIME_MS, 99).resolve(10, 20, search) == 15
    assert asked == [99]


def test_a_seek_time_must_be_a_time() -> None:
    with pytest.raises(UsageError):
        parse_time("end")


def test_a_date_is_its_midnight_here() -> None:
    assert parse_position(date(2026, 11, 20)) == parse_position("2026-11-20") == parse_time(date(2026, 11, 20))
    assert parse_position(date.max).value > parse_position("9990-01-01").value
