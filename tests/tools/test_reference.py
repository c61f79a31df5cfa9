"""The reference page and the commands say the same."""

import re
from pathlib import Path

import click
import pytest

from shmq.tools.cli import COMMANDS, cli
from shmq.tools.command import global_options

REFERENCE = Path(__file__).parents[2] / "docs/reference"
PAGE = (REFERENCE / "cli.md").read_text()


def commands() -> list[tuple[str, click.Command]]:
    """Every verb with its full name."""
    found = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        if not isinstance(command, click.Group):
            found.append((name, command))
            continue
        context = click.Context(command)
        for verb in command.list_commands(context):
            part = command.get_command(context, verb)
            assert part is not None
            found.append((f"{name} {verb}", part))
    return found


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_each_of_its_options_is_on_the_page(name: str, command: click.Command) -> None:
    assert name in PAGE
    everywhere = {option.name for option in global_options(hidden=True)} | {"help"}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in everywhere:
            assert any(re.search(rf"(?<![\w-]){re.escape(text)}\b", PAGE) for text in parameter.opts), parameter.opts


def test_every_schema_is_linked_and_every_link_leads_somewhere() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+?\.\w+)(?:#[\w-]+)?\)", PAGE))
    assert {path for path in linked if not (REFERENCE / path).exists()} == set()
    schemas = {f"json/{path.name}" for path in (REFERENCE / "json").glob("*.json")}
    assert schemas == {path for path in linked if path.startswith("json/")} != set()


def test_the_global_options_are_on_the_page() -> None:
    for option in global_options(hidden=False):
        assert all(f"`{text}" in PAGE for text in option.opts if text.startswith("--"))
