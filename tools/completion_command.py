"""`shmq completion`: make a shell complete commands, options, topics and groups. The scripts are those of click."""

from __future__ import annotations

import os
from pathlib import Path

import click

from shmq.errors import UsageError
from shmq.shm.place import home_directory
from shmq.tools.command import Call, Group, pass_call

SHELLS = ("bash", "zsh", "fish")

completion = Group("completion", help="Shell completion of commands, options, topics and groups.")


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@pass_call
def show(call: Call, shell: str | None) -> None:
    """Print the completion script of SHELL, by default that of $SHELL."""
    name = shell or _own_shell()
    call.terminal.answer({"shell": name, "script": script_of(name)}, text=lambda: call.terminal.data(script_of(name)))


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--dry-run", is_flag=True, help="Only tell which file would be written.")
@pass_call
def install(call: Call, shell: str | None, dry_run: bool) -> None:
    """Write the completion script of SHELL where the shell looks for it."""
    name = shell or _own_shell()
    path = path_of(name)
    if not dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script_of(name))
    if call.terminal.structured:
        call.terminal.document({"shell": name, "path": str(path), "written": not dry_run})
        return
    call.terminal.line(f"would write {path}" if dry_run else f"wrote {path}")
    call.terminal.say(_next_step(name, path))


def script_of(shell: str) -> str:
    """Return the script that makes this shell complete `shmq`."""
    from click.shell_completion import get_completion_class

    from shmq.tools.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None  # SHELLS are those click knows
    return kind(cli, {}, "shmq", "_SHMQ_COMPLETE").source()


def path_of(shell: str) -> Path:
    """Return the file from which this shell loads completions of the user."""
    home = home_directory() or Path("/")  # a user without a home names both folders
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        "bash": data / "bash-completion/completions/shmq",
        "zsh": data / "zsh/site-functions/_shmq",
        "fish": config / "fish/completions/shmq.fish",
    }[shell]


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UsageError(f"the shell {name or 'in $SHELL'} is not known here", hint=f"name one: {' '.join(SHELLS)}")
    return name


def _next_step(shell: str, path: Path) -> str:
    if shell == "zsh":
        return f"in ~/.zshrc, before compinit:  fpath+=({path.parent})"
    if shell == "bash":
        return f"open a new shell; without the package bash-completion, put into ~/.bashrc:  source {path}"
    return "open a new shell"
