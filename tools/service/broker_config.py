"""The file of `shmq serve --config FILE`: options of that command in TOML, under their own names.

    store = "/srv/shmq"            # as on the command line, without the dashes in front
    flush = "sync"
    retention-hours = 72
    when-full = "delete-consumed"
    no-auto-create = true

Rules: (1) a name that is no option is refused, with the nearest one; (2) an option on the command line wins over the
file; (3) a path that is not absolute begins at the folder of the file, so that a service finds it from anywhere,
or with ~ at a home; an empty one is none.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from shmq.errors import UsageError
from shmq.options.broker import COMMAND_LINE, OPTIONS
from shmq.options.row import Row
from shmq.shm.place import absolute_path

_FILE = "shmq.broker_config"  # which was read, in a context


def read_broker_config(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    """Let the options of a command default to what a file says.

    Raises:
        UsageError: the file cannot be read, is no TOML, or names what is no option.
    """
    if value is None:
        return
    path = Path(value).absolute()
    try:
        given = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="--config takes a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{path} is no TOML: {error}", hint='a line is: retention-hours = 72, or flush = "sync"'
        ) from None
    context.meta[_FILE] = str(path)
    context.default_map = {
        row.parameter: _value(row, entry, path)
        for row, entry in [(_named(name, path), entry) for name, entry in given.items()]
        if not (row.is_path and entry == "")
    }


def value_of(row: Row, settings: Mapping[str, Any]) -> Any:
    """Return the value of an option, as a file gives it, from the settings of a broker."""
    value = settings[row.field]
    if row.is_flag:
        return value is not row.default
    return f"{value}ms" if row.value == "TIME" else value


def origins_of(context: click.Context) -> dict[str, str]:
    """Return where settings come from, by their fields: the path of the file, or "command line"."""
    places = {
        ParameterSource.DEFAULT_MAP: context.meta.get(_FILE, ""),
        ParameterSource.COMMANDLINE: COMMAND_LINE,
        ParameterSource.ENVIRONMENT: COMMAND_LINE,
    }
    found = {
        row.field: places.get(context.get_parameter_source(row.parameter) or ParameterSource.DEFAULT, "")
        for row in OPTIONS.values()
    }
    return {field: place for field, place in found.items() if place}


def _named(name: str, path: Path) -> Row:
    if name in OPTIONS:
        return OPTIONS[name]
    near = difflib.get_close_matches(name.replace("_", "-"), OPTIONS, n=1)
    hint = f"did you mean {near[0]}?" if near else "shmq serve --help lists them; a file has them without the dashes"
    raise UsageError(f"{path}: {name} is no option of shmq serve", hint=hint)


def _value(row: Row, value: Any, path: Path) -> Any:
    if row.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: {row.name} is {value!r}, true or false is needed")
        return value
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{path}: {row.name} is {value!r}, a text or a whole number is needed")
    if not row.is_path:
        return str(value)
    return str(absolute_path(str(value)) if str(value).startswith("~") else path.parent / str(value))
