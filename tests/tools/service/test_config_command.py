"""Settings can be seen and tried before a broker runs with them."""

import tomllib
from pathlib import Path

import pytest

from tests.tools.shell import Shell


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_what_is_shown_is_a_file_that_is_taken_again(shell: Shell, tmp_path: Path) -> None:
    first = tmp_path / "broker.toml"
    first.write_text('name = "orders"\nflush = "sync"\nfile-size = "64M"\nno-tcp = true\nflush-interval = "2s"\n')
    text = shell.ok("config", "show", str(first)).decode()
    assert tomllib.loads(text) == {
        "name": "orders",
        "flush": "sync",
        "file-size": 64 << 20,
        "no-tcp": True,
        "flush-interval": "2000ms",
    }
    assert '# log-format = "text"' in text and "# topic-max = 16384" in text
    whole = tmp_path / "whole.toml"
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    whole.write_text("\n".join(line for line in lines if not line.endswith(('= ""', "= 0"))))
    again = shell.json("config-show", "config", "show", str(whole))["settings"]
    shown = shell.json("config-show", "config", "show", str(first))["settings"]
    assert {name: again[name] for name in shown if name not in ("store", "runtime-dir")} == {
        name: shown[name] for name in shown if name not in ("store", "runtime-dir")
    }


def test_the_defaults_are_shown_without_a_file(shell: Shell) -> None:
    text = shell.ok("config", "show").decode()
    assert tomllib.loads(text) == {} and "# retention-hours = 72" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("retention-huors = 1", "did you mean retention-hours?"),
        ('flush = "often"', "often"),
        ("file-size = 5", "multiples of"),
        ("disk-warn-percent = 95", "have to rise"),
        ('tls-mode = "enforcing"', "needs a certificate"),
        ('delete-hour = "25"', "hours from 0 to 23"),
    ],
)
def test_what_no_broker_takes_is_refused_before_it_starts(shell: Shell, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(line + "\n")
    error = shell.fails(64, "config", "check", str(file))
    assert said in error["error"] + error["hint"], error


def test_a_file_that_is_fine_is_said_to_be(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("retention-hours = 5\nbridges = 2\n")
    assert shell.run("config", "check", str(file)).err.endswith(": fine\n")
    document = shell.json("config-check", "config", "check", str(file))
    assert document["settings_given"] == ["bridges", "retention-hours"]
