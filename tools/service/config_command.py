"""`shmq config`: show and check the settings with which `shmq serve` would run, or runs; nothing is started.

    show     every setting as TOML, which `shmq serve --config` reads again; what is not set stands behind a #;
             --running asks the broker that runs, and adds where each comes from
    check    whether the daemon takes them: exit status 0, or 64 and why not

A broker makes the same object of the same settings when it starts, so the two cannot differ.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from shmq import errors
from shmq.exit_code import ExitCode
from shmq.options.broker import OPTIONS, Options
from shmq.tools.broker.access import local_control_of
from shmq.tools.command import Call, Group, pass_call
from shmq.tools.service.broker_config import origins_of, value_of
from shmq.tools.service.serve_command import place_named, serve, settings_of

config = Group("config", help="Show and check a broker's settings.")

_file_argument = click.argument("file", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))


@config.command()
@_file_argument
@click.option("--running", is_flag=True, help="Those of the broker that runs, and where each comes from.")
@pass_call
def show(call: Call, file: str | None, running: bool) -> None:
    """Print every setting of `shmq serve`, or of `shmq serve --config FILE`, as TOML."""
    if running and file is not None:
        raise errors.UsageError("--running asks the broker, not a file", hint="leave one of them out")
    settings, origins = _in_force(call) if running else _settings(file)
    values = {name: value_of(row, settings) for name, row in OPTIONS.items()}
    places = {name: origins[row.field] for name, row in OPTIONS.items() if row.field in origins}
    if call.terminal.structured:
        call.terminal.document({"file": file, "settings": values, "origins": places})
        return
    for name, value in values.items():
        mark, place = ("", f"  # {places[name]}" if running else "") if name in places else ("# ", "")
        call.terminal.line(f"{mark}{name} = {json.dumps(value, ensure_ascii=False)}{place}")


@config.command()
@_file_argument
@pass_call
def check(call: Call, file: str | None) -> int:
    """Say whether a broker would take the settings of FILE."""
    _, origins = _settings(file)
    given = sorted(name for name, row in OPTIONS.items() if row.field in origins)
    call.terminal.report({"file": file, "settings_given": given})
    call.terminal.say(f"{file or 'the defaults'}: fine")
    return ExitCode.DONE


def _settings(file: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return every setting of a broker, and where those come from that the file sets.

    Raises:
        UsageError: the file names what is no option, or gives it a value it cannot have.
    """
    words = ["--config", file] if file is not None else []
    context = serve.make_context("serve", words, parent=click.get_current_context().find_root())
    place = place_named(context.params["name"], context.params["runtime_dir"])
    return asdict(Options(**settings_of(place, **context.params))), origins_of(context)


def _in_force(call: Call) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings the broker runs with, and where those come from that are no defaults."""
    with local_control_of(call, "all its settings") as control:
        status = control.status()
    return status["settings"], status["origins"]
