"""A table of options as options of a command; what was given of them as settings of the daemon.

On the command line, for the function of the command, for the daemon:

    --flush-interval 250ms   ->   given["flush_interval"] == 0.25   ->   {"flush_interval_ms": 250}
    --no-tcp                 ->   given["no_tcp"] is True           ->   {"tcp": false}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from shmq.options.row import Row
from shmq.shm.place import absolute_path
from shmq.tools.command import Duration, Size

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class _NamedPath(click.Path):
    """A path that was given: an empty one is a variable that is not set, and would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty: leave the option out, or name one", param, ctx)
        return super().convert(value, param, ctx)


def options_from(rows: Mapping[str, Row]) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that gives a command an option for each row, in their order."""

    def decorate(function: FunctionT) -> FunctionT:
        for row in reversed([*rows.values()]):
            text = f"{row.help}  [{row.shown}]" if row.shown else row.help
            function = click.option(
                f"--{row.name}", type=_type_of(row), is_flag=row.is_flag, metavar=row.value or None, help=text
            )(function)
        return function

    return decorate


def settings_given(rows: Mapping[str, Row], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return, by their fields, the settings that were given as options."""
    values = [(row, given[row.parameter]) for row in rows.values()]
    return {row.field: _setting(row, value) for row, value in values if value is not None and value is not False}


def _type_of(row: Row) -> Any:
    if row.is_flag:
        return None
    if row.choices:
        return click.Choice(row.choices)
    if row.is_path:
        return _NamedPath(dir_okay=row.value == "DIRECTORY", file_okay=row.value == "FILE")
    if row.value in ("SIZE", "TIME"):
        return Size() if row.value == "SIZE" else Duration()
    return click.IntRange(*row.within) if row.within else None


def _setting(row: Row, value: Any) -> Any:
    if row.is_flag:
        return not row.default
    if row.value == "TIME":
        return round(1000 * value)
    return str(absolute_path(value)) if row.is_path else value
