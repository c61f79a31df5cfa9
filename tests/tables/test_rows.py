"""A table runs to its end and names every row that differs."""

from typing import Any

import pytest

from tests.tables.rows import SHOWN_WHOLE_MAX, every_row


def failure_of(test: Any, **fixtures: Any) -> str:
    with pytest.raises(pytest.fail.Exception) as failure:
        test(**fixtures)
    return str(failure.value)


def test_every_row_runs_and_each_difference_is_named() -> None:
    ran = []

    @every_row(("given", "wanted"), [("a", 1), pytest.param("b", 2, id="second"), ("c", 3), ("d", 4)])
    def test(given: str, wanted: int) -> None:
        ran.append(given)
        assert wanted != 2, "two"
        if given == "c":
            raise KeyError("missing")
        with pytest.raises(ValueError):
            int(given if given == "a" else "4")

    text = failure_of(test)
    assert ran == ["a", "b", "c", "d"]
    assert text.startswith("3 of 4 rows differ:\n  1: second\n  2: 'c', 3\n  3: 'd', 4\n")
    assert "AssertionError: two" in text and "KeyError: 'missing'" in text and "DID NOT RAISE" in text
    assert "'a', 1" not in text


def test_an_empty_table_fails() -> None:
    @every_row("value", [])
    def test(value: int) -> None:
        """Run for no row."""

    with pytest.raises(AssertionError, match="without rows"):
        test()


def test_tables_multiply_and_fixtures_stay_arguments() -> None:
    ran = []

    @every_row("first", [1, 2])
    @every_row("second", [True, False], ids=["yes", "no"])
    def test(seen: list[Any], first: int, second: bool) -> None:
        seen.append((first, second))
        assert (first, second) != (2, False)

    text = failure_of(test, seen=ran)
    assert ran == [(1, True), (1, False), (2, True), (2, False)]
    assert "1 of 2 rows differ:\n  1: 2\n" in text and "1 of 2 rows differ:\n  1: no\n" in text


@every_row("value", range(3), ids=str)
def test_pytest_gives_the_fixtures_and_the_table_the_rest(tmp_path: Any, value: int) -> None:
    assert tmp_path.is_dir() and value in {0, 1, 2}


def test_a_table_whose_rows_all_differ_stays_readable() -> None:
    @every_row("value", range(SHOWN_WHOLE_MAX + 5))
    def test(value: int) -> None:
        raise ValueError(f"of {value}")

    text = failure_of(test)
    assert all(f"  {value}: {value}\n" in text for value in range(SHOWN_WHOLE_MAX + 5))
    assert text.count("\nValueError: of") == SHOWN_WHOLE_MAX


def test_a_row_that_skips_differs_and_hides_no_row_behind_it() -> None:
    ran = []

    @every_row("value", [1, 2])
    def test(value: int) -> None:
        ran.append(value)
        pytest.skip("not here")

    text = failure_of(test)
    assert ran == [1, 2] and text.startswith("2 of 2 rows differ:") and "not here" in text
