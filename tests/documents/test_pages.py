"""What the pages name exists: command-line options, files that are linked, headings that are linked."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from shmq.tools.cli import COMMANDS, cli
from shmq.tools.command import global_options
from tests.tables.rows import every_row

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "benchmarks/README.md"]
# Options of other programs that the pages call.
FOREIGN = {
    *("--system", "--home-dir", "--shell", "--append", "--groups"),  # useradd, usermod
    *("--now", "--pid", "--ipc", "--shm-size"),  # systemctl, docker, py-spy
    *("--archives", "--py-files"),  # spark-submit
    *("--timeout-graceful-shutdown", "--workers"),  # uvicorn
    *("--quick", "--figure", "--list", "--runs", "--peers-only"),  # python -m benchmarks.…
    *("--base", "--head", "--pairs", "--only", "--tables", "--tolerance"),  # python -m benchmarks.compare
    *("--minutes", "--seed", "--turns"),  # python -m tests.crash
    *("--switches", "--faults"),  # python -m tests.ha.elected.…
    "--suite",  # pytest here
    *("--cflags", "--libs", "--segments"),  # python -m shmq.bindings.config
    "--machine",  # python -m shmq.tools.release
}


def options(command: click.Command) -> Iterator[str]:
    """All options of a command and of the commands below it."""
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below)


def known_options() -> set[str]:
    known = {"--help", "--version"}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known |= set(options(command))
    return known | {text for option in global_options(hidden=True) for text in option.opts}


def anchors(page: Path) -> set[str]:
    """The names by which headings of a page are linked, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_row("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", page.read_text()))
    assert named - known_options() - FOREIGN == set()


@every_row("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost = []
    for path, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)", page.read_text()):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and heading not in anchors(target)):
            lost.append((path, heading))
    assert not lost


def test_the_pages_tell_the_layout_of_this_version() -> None:
    [layout] = re.findall(r"#define SHMQ_ABI (\d+)u", (ROOT / "bindings/shmq.h").read_text())
    told = {
        (page.name, number)
        for page in PAGES
        for number in re.findall(r"(?:libshmq\.so\.|\bABI )(\d+)", page.read_text())
    }
    assert told == {("c.md", layout), ("CHANGELOG.md", layout)}


def test_the_chinese_page_tells_the_same_commands_and_leads_to_the_same_pages() -> None:
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md"))
    blocks = [re.findall(r"^```.*?^```$", text, re.M | re.S) for text in (english, chinese)]
    assert blocks[0] == blocks[1]
    links = [set(re.findall(r"\]\(([\w/.-]+\.md)", text)) for text in (english, chinese)]
    assert links[0] - links[1] - {"README.zh-CN.md", "CHANGELOG.md"} == set()
    assert len(re.findall(r"^## ", english, re.M)) == len(re.findall(r"^## ", chinese, re.M))
