"""Completion knows commands, options, and the topics and groups that exist at this moment; it never fails."""

import subprocess
from pathlib import Path

import pytest

from shmq.testing import Broker, SharedBroker
from tests.tools.shell import COMMAND, Shell


def complete(shell: Shell, *words: str) -> list[str]:
    """Return what bash would offer for the last word, sorted as it does."""
    line = {"COMP_WORDS": " ".join(["shmq", *words]), "COMP_CWORD": str(len(words)), "_SHMQ_COMPLETE": "bash_complete"}
    environment = {**shell.environment, **line}
    out = subprocess.run(COMMAND, env=environment, capture_output=True, check=False)
    assert out.stderr == b""
    return sorted(entry.split(",", 1)[1] for entry in out.stdout.decode().splitlines() if entry)


def test_commands_and_options_complete(tmp_path: Path) -> None:
    shell = Shell(SHMQ_RUNTIME_DIR=str(tmp_path))
    assert complete(shell, "co") == ["completion", "config", "console", "consume", "context"]
    assert complete(shell, "topic", "") == ["create", "delete", "list", "show", "update"]
    assert complete(shell, "consume", "t", "--exi") == ["--exit", "--exit-if-empty"]
    assert "--json" in complete(shell, "--j")


@pytest.mark.slow
def test_topics_and_groups_complete_as_they_are_now(shmq_broker: Broker) -> None:
    shell = Shell(shmq_broker.url)
    assert complete(shell, "produce", "") == []
    shell.ok("produce", "orders", "x")
    shell.ok("produce", "metrics", "x")
    shell.ok("consume", "orders", "-g", "billing", "-e")
    assert complete(shell, "produce", "") == ["metrics", "orders"]
    for command in (("consume",), ("tail",), ("topic", "show"), ("topic", "delete"), ("offset", "reset", "billing")):
        assert complete(shell, *command, "o") == ["orders"]
    for command in (("group", "show"), ("offset", "show"), ("consume", "orders", "-g")):
        assert complete(shell, *command, "b") == ["billing"]
    assert complete(shell, "produce", "x") == []


def test_the_broker_of_the_line_is_the_one_that_is_asked(shmq_broker: Broker, tmp_path: Path) -> None:
    Shell(shmq_broker.url).ok("produce", "orders", "x")
    elsewhere = Shell(SHMQ_RUNTIME_DIR=str(tmp_path))
    assert complete(elsewhere, "-u", shmq_broker.url, "produce", "o") == ["orders"]
    assert complete(elsewhere, "produce", "-u", shmq_broker.url, "o") == ["orders"]


def test_names_come_from_memory_also_when_the_broker_is_dead(shmq_broker: Broker) -> None:
    shell = Shell(shmq_broker.url)
    shell.ok("produce", "orders", "x")
    with shmq_broker.connect():  # an attached process, or another broker may sweep the segments away
        shmq_broker.kill_daemon()
        assert complete(shell, "produce", "o") == ["orders"]


@pytest.mark.parametrize("url", ["shmq://absent", "nonsense", "shmq:///nowhere/at/all"])
def test_without_a_broker_there_is_just_nothing_to_offer(tmp_path: Path, url: str) -> None:
    assert complete(Shell(url, SHMQ_RUNTIME_DIR=str(tmp_path)), "produce", "") == []


@pytest.mark.parametrize(
    ("shell_name", "path"),
    [
        ("bash", "data/bash-completion/completions/shmq"),
        ("zsh", "data/zsh/site-functions/_shmq"),
        ("fish", "config/fish/completions/shmq.fish"),
    ],
)
def test_the_script_is_written_where_the_shell_looks_for_it(tmp_path: Path, shell_name: str, path: str) -> None:
    home = {"XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    shell = Shell(SHELL=f"/bin/{shell_name}", **home)
    told = shell.json("completion-install", "completion", "install", "--dry-run")
    assert told == {"shell": shell_name, "path": str(tmp_path / path), "written": False}
    assert not (tmp_path / path).exists()
    result = shell.run("completion", "install")
    assert result.status == 0 and str(tmp_path / path) in result.out.decode() and result.err
    script = shell.json("completion-show", "completion", "show", shell_name)["script"]
    assert (tmp_path / path).read_text() == script == shell.ok("completion", "show").decode()
    assert "_SHMQ_COMPLETE" in script


def test_an_unknown_shell_has_to_be_named() -> None:
    shell = Shell(SHELL="/bin/ksh")
    assert "bash" in shell.fails(64, "completion", "show")["hint"]
    assert shell.ok("completion", "show", "fish")


def test_the_bash_script_works_in_bash(shmq_shared_broker: SharedBroker, tmp_path: Path) -> None:
    shell = Shell(shmq_shared_broker.url)
    topic = shmq_shared_broker.named("bashed")
    shell.ok("produce", topic, "x")
    script = tmp_path / "script"
    script.write_bytes(shell.ok("completion", "show", "bash"))
    command = tmp_path / "shmq"
    command.write_text(f'#!/bin/sh\nexec "{COMMAND[0]}" -m shmq "$@"\n')
    command.chmod(0o755)
    drive = (
        f'PATH="{tmp_path}:$PATH"; . {script}; COMP_WORDS=(shmq produce bash); COMP_CWORD=2; _shmq_completion shmq; '
    )
    out = subprocess.run(
        ["bash", "-c", drive + 'echo "${COMPREPLY[@]}"'], env=shell.environment, capture_output=True, check=True
    )
    assert topic in out.stdout.decode().split()
