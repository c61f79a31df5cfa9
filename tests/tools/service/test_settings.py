"""Whatever the table of a broker's options has, the command line and a file give to its field."""

from pathlib import Path
from typing import Any

import click

from shmq.options.broker import OPTIONS
from shmq.options.row import Row
from shmq.tools.service.broker_config import origins_of, value_of
from shmq.tools.service.serve_command import serve
from shmq.tools.service.settings import settings_given
from tests.tables.rows import every_row


def sample(row: Row) -> tuple[list[str], Any]:
    """Words behind an option, and the setting that they mean."""
    if row.is_flag:
        return [], not row.default
    if row.choices:
        return [row.choices[-1]], row.choices[-1]
    if row.value in ("SIZE", "TIME"):
        return (["8M"], 8 << 20) if row.value == "SIZE" else (["250ms"], 250)
    if row.within:
        return [str(row.within[0])], row.within[0]
    return (["/a/b"], "/a/b") if row.is_path else (["x"], "x")


def context_of(*words: str) -> click.Context:
    return serve.make_context("shmq serve", list(words))


@every_row("row", list(OPTIONS.values()), ids=lambda row: row.name)
def test_each_option_of_the_command_line_sets_its_field_alone(row: Row) -> None:
    words, setting = sample(row)
    context = context_of(f"--{row.name}", *words)
    assert settings_given(OPTIONS, context.params) == {row.field: setting}
    assert origins_of(context) == {row.field: "command line"}


def test_no_option_is_no_setting() -> None:
    context = context_of()
    assert settings_given(OPTIONS, context.params) == {} == origins_of(context)


@every_row("row", list(OPTIONS.values()), ids=lambda row: row.name)
def test_what_is_shown_of_a_setting_sets_it_in_a_file(row: Row, tmp_path: Path) -> None:
    _, setting = sample(row)
    shown = value_of(row, {row.field: setting})
    text = str(shown).lower() if isinstance(shown, bool) else shown if isinstance(shown, int) else f'"{shown}"'
    file = tmp_path / "broker.toml"
    file.write_text(f"{row.name} = {text}\n")
    context = context_of("--config", str(file))
    assert settings_given(OPTIONS, context.params) == {row.field: setting}
    assert origins_of(context) == {row.field: str(file)}
