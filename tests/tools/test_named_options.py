"""Every `--option` that a hint or a page names is one that exists."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import click

from shmq.tools.cli import cli

ROOT = Path(__file__).parents[2]
OPTION = re.compile(r"(?<![\w/-])--[a-z][a-z0-9-]*[a-z0-9]")

# Options of other programs: docker, useradd, unshare, numactl, spark-submit, and of our own scripts and daemon.
OF_OTHERS = {
    *("--ipc", "--pid", "--shm-size", "--memory", "--volumes-from", "--mount", "--mount-proc"),
    *("--append", "--groups", "--home-dir", "--shell", "--system", "--cpunodebind", "--membind"),
    *("--archives", "--py-files"),
    *("--cflags", "--libs"),  # python -m shmq.bindings.config
    *("--minutes", "--only", "--seed", "--turns"),  # the soak
    *("--faults", "--rounds", "--switches"),  # python -m tests.ha.elected.cables, tests.ha.faults.rounds and .switches
    *("--base", "--effort", "--figure", "--head", "--list", "--pairs", "--peers-only", "--quick", "--runs", "--tables"),
    *("--switch", "--tolerance"),  # and those before it: the benchmarks
    *("--advertise-client-urls", "--listen-client-urls"),  # etcd
    "--suite",  # pytest here
    *("--no-pages", "--python", "--machine", "--system", "--arch"),  # python -m shmq.tools.release, debootstrap
    *("--bind", "--rbind"),  # mount
    *("--timeout-graceful-shutdown", "--workers"),  # uvicorn
    *("--no-deps", "--only-binary", "--outdir", "--sdist", "--wheel-dir"),  # what that starts: build, pip, auditwheel
}
# With these our own processes start the daemon; people start it by `shmq serve`.
OF_THE_DAEMON = {"--alive-fd", "--go-fd", "--ready-fd", "--lock-fds", "--number", "--options"}
SPEAKS_TO_THE_DAEMON = {
    *("daemon/__main__.py", "daemon/child.py", "shmq/testing.py", "tools/doctor/case.py"),
    *("tools/service/serve_command.py", "tools/service/nameserver_command.py"),
}


def options_of(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            part = command.get_command(context, name)
            assert part is not None
            yield from options_of(part, context)


KNOWN = {*options_of(cli, click.Context(cli)), "--help", "--version"}


@functools.cache
def texts() -> list[tuple[str, str]]:
    """What people may read: pages, and the texts of the sources."""
    pages = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md")
    found = [(str(path.relative_to(ROOT)), path.read_text()) for path in pages]
    for folder in ("shmq", "daemon", "tools", "spark"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append((str(path.relative_to(ROOT)), node.value))
    return found


def test_every_option_that_is_named_exists() -> None:
    unknown = {
        (place, option)
        for place, text in texts()
        for option in OPTION.findall(text)
        if option not in KNOWN | OF_OTHERS and not (option in OF_THE_DAEMON and place in SPEAKS_TO_THE_DAEMON)
    }
    assert unknown == set()


def test_every_command_that_a_text_names_exists() -> None:
    context = click.Context(cli)
    nouns = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    unknown = set()
    for place, text in texts():
        for noun, verb in re.findall(
            r"\bshmq (topic|group|offset|timer|tx|message|dlq|context|store|config) ([a-z]+)", text
        ):
            command = nouns[noun]
            assert isinstance(command, click.Group)
            if verb not in command.list_commands(context):
                unknown.add((place, f"{noun} {verb}"))
    assert unknown == set()
