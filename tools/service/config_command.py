"""`shmq config`: show and check the settings with which `shmq serve` would run; nothing is started.

    show     every setting as TOML, which `shmq serve --config` reads again; what nobody has set stands behind a #
    check    whether the daemon takes them: exit status 0, or 64 and why not

The daemon itself says what its settings come to, so the two cannot differ.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import click

from shmq import errors
from shmq.shm.place import place_of
from shmq.tools.command import Call, Group, pass_call
from shmq.tools.service.broker_config import options_of
from shmq.tools.service.serve_command import daemon_command, serve
from shmq.tools.terminal.exit_code import ExitCode

config = Group("config", help="Show and check a broker's settings.")

_OF_THE_DAEMON = {
    "name": "broker_name",
    "file-size": "file_bytes",
    "nameserver": "nameservers",
    "timer-max-delay": "timer_max_delay_seconds",
    "unit-memory": "unit_memory_bytes",
    "populate": "populate_bytes",
    "flush-interval": "flush_interval_ms",
}
_FLAGS = {"no-auto-create": "auto_create", "no-tcp": "tcp"}  # which the daemon has the other way round
_file_argument = click.argument("file", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))


@config.command()
@_file_argument
@pass_call
def show(call: Call, file: str | None) -> None:
    """Print every setting of `shmq serve`, or of `shmq serve --config FILE`, as TOML."""
    given, settings = _settings(file)
    values = {name: _value(name, settings) for name in options_of(serve)}
    if call.terminal.structured:
        call.terminal.document({"file": file, "settings": values})
        return
    for name, value in values.items():
        mark = "" if name.replace("-", "_") in given else "# "
        call.terminal.line(f"{mark}{name} = {json.dumps(value, ensure_ascii=False)}")


@config.command()
@_file_argument
@pass_call
def check(call: Call, file: str | None) -> int:
    """Say whether a broker would take the settings of FILE."""
    given, _ = _settings(file)
    call.terminal.report({"file": file, "settings_given": sorted(name.replace("_", "-") for name in given)})
    call.terminal.say(f"{file or 'the defaults'}: fine")
    return ExitCode.DONE


def _settings(file: str | None) -> tuple[set[str], dict[str, Any]]:
    """Return the names of the options that the file sets, and every setting of the daemon.

    Raises:
        UsageError: the file names what is no option, or gives it a value it cannot have.
        ShmqError: what the daemon says against it.
    """
    words = ["--config", file] if file is not None else []
    context = serve.make_context("shmq serve", words, parent=click.get_current_context())
    given = {name for name in context.params if context.get_parameter_source(name) is _FROM_FILE}
    command = daemon_command(place_of(f"shmq://{context.params['name']}"), **context.params)
    if context.params["runtime_dir"] is not None:
        command += ["--runtime-dir", context.params["runtime_dir"]]
    done = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    said = json.loads(done.stdout) if done.stdout else {"error": done.stderr.strip()}
    if "error" in said:
        raise errors.UsageError(said["error"], hint=said.get("hint", ""))
    return given, said


_FROM_FILE = click.core.ParameterSource.DEFAULT_MAP


def _value(name: str, settings: dict[str, Any]) -> Any:
    if name in _FLAGS:
        return not settings[_FLAGS[name]]
    value = settings[_OF_THE_DAEMON.get(name, name.replace("-", "_"))]
    return f"{value}ms" if name == "flush-interval" else value
