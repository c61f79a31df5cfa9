"""A table of cheap rows is one test: every row runs, and one failure names each row that differs.

`every_row` takes what `pytest.mark.parametrize` takes. It is for rows that need no fixture of their own: the rows of a
test share its fixtures, so what one row leaves there must not decide the next. A row that raises is a difference too;
the rows behind it still run. So is a row that skips: what cannot run here is left out of the table. A table without
rows fails, for it proves nothing.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

SHOWN_WHOLE_MAX = 10
"""How many rows are shown with the end of their traceback; of the others the name."""

_ParameterSet = type(pytest.param())
Names = str | Sequence[str]
Ids = Callable[[Any], Any] | Sequence[Any] | None
Test = Callable[..., None]


def every_row(names: Names, table: Iterable[Any], *, ids: Ids = None) -> Callable[[Test], Test]:
    """Make a test run for each row of a table and fail once, with all rows that differ."""
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [_values(row, len(wanted)) for row in table]
    labels = [_label(number, values, label, ids) for number, (values, label) in enumerate(rows)]

    def decorated(test: Test) -> Test:
        @functools.wraps(test)
        def whole(*args: Any, **fixtures: Any) -> None:
            assert rows, "a table without rows proves nothing"
            different = {}
            for label, (values, _) in zip(labels, rows, strict=True):
                try:
                    test(*args, **fixtures, **dict(zip(wanted, values, strict=True)))
                except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                    different[label] = _told(error)
            if different:
                pytest.fail(_listed(different, len(rows)), pytrace=False)

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in wanted]
        assert len(kept) + len(wanted) == len(signature.parameters), f"{wanted}: not all are arguments of the test"
        vars(whole)["__signature__"] = signature.replace(parameters=kept)
        return whole

    return decorated


def _values(row: Any, width: int) -> tuple[tuple[Any, ...], str | None]:
    if not isinstance(row, _ParameterSet):
        return (tuple(row) if width > 1 else (row,)), None
    assert not row.marks, "a row has no marks"
    return tuple(row.values), str(row.id) if row.id is not None else None


def _label(number: int, values: tuple[Any, ...], label: str | None, ids: Ids) -> str:
    """The name of a row: its number tells rows of equal names apart."""
    if label is None and callable(ids):
        label = "-".join(filter(None, (str(ids(value)) for value in values)))
    elif label is None and ids is not None:
        label = str(ids[number])
    elif label is None:
        label = ", ".join(getattr(value, "__name__", None) or repr(value) for value in values)
    return f"{number}: {label if len(label) <= 120 else label[:117] + '...'}"


def _told(error: BaseException) -> str:
    """The end of the traceback; of a table within the table its own list."""
    if not getattr(error, "pytrace", True):
        return str(error)
    return "".join(traceback.format_exception(error, limit=-2)).rstrip()


def _listed(different: dict[str, str], count: int) -> str:
    whole = list(different)[:SHOWN_WHOLE_MAX]
    lines = [f"{len(different)} of {count} rows differ:", *(f"  {label}" for label in different)]
    return "\n".join(lines + [f"\n--- {label}\n{different[label]}" for label in whole])
