"""The file of `shmq serve --config FILE`: options of that command in TOML, under their own names.

    store = "/srv/shmq"            # as on the command line, without the dashes in front
    flush = "sync"
    retention-hours = 72
    when-full = "delete-consumed"
    no-auto-create = true

Rules: (1) a name that is no option is refused, with the nearest one; (2) an option on the command line wins over the
file; (3) a path that is not absolute begins at the folder of the file, so that a service finds it from anywhere,
or with ~ at a home.
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
from shmq.shm.place import absolute_path

_COMMAND_LINE = "command line"  # as the daemon calls it
_FILE = "shmq.broker_config"  # which was read, in a context
_OF_THE_DAEMON = {
    "name": "broker_name",
    "file-size": "file_bytes",
    "nameserver": "nameservers",
    "timer-max-delay": "timer_max_delay_seconds",
    "unit-memory": "unit_memory_bytes",
    "populate": "populate_bytes",
    "flush-interval": "flush_interval_ms",
    "no-auto-create": "auto_create",
    "no-tcp": "tcp",
}
_OTHER_WAY_ROUND = frozenset({"no-auto-create", "no-tcp"})
_NOT_IN_A_FILE = frozenset({"_config", "detach", "log_file", "help"})  # they say how this command runs, not the broker


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
    options = options_of(context.command)
    context.meta[_FILE] = str(path)
    context.default_map = {
        options[_checked(name, options, path)].name: _value(options[name], entry, path, name)
        for name, entry in given.items()
    }


def options_of(command: click.Command) -> dict[str, click.Option]:
    """By the name a file gives them, the options that say what the broker is."""
    return {
        parameter.opts[0].removeprefix("--"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and parameter.opts
        and not parameter.hidden
        and parameter.name not in _NOT_IN_A_FILE
    }


def field_of(name: str) -> str:
    """Return what the daemon calls an option of `shmq serve`."""
    return _OF_THE_DAEMON.get(name, name.replace("-", "_"))


def value_of(name: str, settings: Mapping[str, Any]) -> Any:
    """Return the value of an option of `shmq serve`, as a file gives it, from the settings of a daemon."""
    value = settings[field_of(name)]
    if name in _OTHER_WAY_ROUND:
        return not value
    return f"{value}ms" if name == "flush-interval" else value


def origins_of(context: click.Context) -> dict[str, str]:
    """Return where settings come from, by the daemon's names: the path of the file, or "command line"."""
    places = {
        ParameterSource.DEFAULT_MAP: context.meta.get(_FILE, ""),
        ParameterSource.COMMANDLINE: _COMMAND_LINE,
        ParameterSource.ENVIRONMENT: _COMMAND_LINE,
    }
    found = {
        field_of(name): places.get(context.get_parameter_source(str(option.name)) or ParameterSource.DEFAULT, "")
        for name, option in options_of(context.command).items()
    }
    return {field: place for field, place in found.items() if place}


def _checked(name: str, options: dict[str, click.Option], path: Path) -> str:
    if name in options:
        return name
    near = difflib.get_close_matches(name.replace("_", "-"), options, n=1)
    hint = f"did you mean {near[0]}?" if near else "shmq serve --help lists them; a file has them without the dashes"
    raise UsageError(f"{path}: {name} is no option of shmq serve", hint=hint)


def _value(option: click.Option, value: Any, path: Path, name: str) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: {name} is {value!r}, true or false is needed")
        return value
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UsageError(f"{path}: {name} is {value!r}, a text or a whole number is needed")
    if not isinstance(option.type, click.Path):
        return str(value)
    return str(absolute_path(str(value)) if str(value).startswith("~") else path.parent / str(value))
