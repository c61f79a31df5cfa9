"""The reference page, the schemas of the documents and the commands say the same."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click

from shmq.options.broker import OPTIONS
from shmq.options.nameserver import OPTIONS as OF_A_NAME_SERVER
from shmq.options.row import Row
from shmq.tools.cli import COMMANDS, cli
from shmq.tools.command import global_options
from tests.tables.rows import every_row
from tests.tools.json_schema import check

TESTS = Path(__file__).parents[1]
REFERENCE = TESTS.parent / "docs/reference"
PAGE = (REFERENCE / "cli.md").read_text()
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in (REFERENCE / "json").glob("*.json")}
OF_NO_COMMAND = {"error"}  # what any command writes to stderr when it fails


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


@every_row(("name", "command"), commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_each_of_its_options_is_on_the_page(name: str, command: click.Command) -> None:
    everywhere = {option.name for option in global_options(hidden=True)} | {"help"}
    options = [each for each in command.params if isinstance(each, click.Option) and each.name not in everywhere]
    missing = [
        option.opts
        for option in options
        if not any(re.search(rf"(?<![\w-]){re.escape(text)}\b", PAGE) for text in option.opts)
    ]
    missing += [[name]] * (name not in PAGE)
    assert missing == []


def test_every_schema_is_linked_and_every_link_leads_somewhere() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+?\.\w+)(?:#[\w-]+)?\)", PAGE))
    assert {path for path in linked if not (REFERENCE / path).exists()} == set()
    assert {f"json/{name}.json" for name in SCHEMAS} == {path for path in linked if path.endswith(".json")} != set()


def test_the_global_options_are_on_the_page() -> None:
    texts = [text for option in global_options(hidden=False) for text in option.opts if text.startswith("--")]
    assert texts and [text for text in texts if f"`{text}" not in PAGE] == []


def options_on_the_page(command: str) -> dict[str, tuple[str, str]]:
    """The table of a command: by option the value that it takes, and the default that is written beside it."""
    [section] = [part for part in re.split(r"^(?=###? )", PAGE, flags=re.M) if part.startswith(f"### `shmq {command}`")]
    found = {}
    for line in section.splitlines():
        if line.startswith("| `--"):
            cells = line.strip("| ").replace("| |", "|  |")
            names, defaults, _ = re.split(r"(?<!\\) \| ", cells, maxsplit=2)
            options = re.findall(r"`--([a-z-]+) ?([^`]*)`", names)
            each = defaults.split(", ") if len(options) == defaults.count(", ") + 1 else [defaults] * len(options)
            found |= {
                name: (value.replace("\\|", "|"), text) for (name, value), text in zip(options, each, strict=True)
            }
    return found


@every_row(
    ("command", "rows", "own"),
    [("serve", OPTIONS, {"config", "detach", "log-file"}), ("nameserver", OF_A_NAME_SERVER, set())],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_page_names_the_options_that_there_are_with_their_choices_and_defaults(
    command: str, rows: dict[str, Row], own: set[str]
) -> None:
    told = options_on_the_page(command)
    assert set(told) == set(rows) | own
    for name, row in rows.items():
        value, default = told[name]
        if row.choices and value != "…":
            assert value == "|".join(row.choices), name
        if row.default and not row.is_flag and value != "…":
            assert (
                all(part in row.default for part in default.strip("`").split(" … "))
                if "…" in default
                else (f"`{row.shown}`" in default or f"`{row.default}`" in default)
            ), (name, default)


def titled(title: str) -> Iterator[str]:
    """The commands that a title names: "shmq tx check, commit", "shmq consume --jsonl, shmq tail --jsonl"."""
    noun = ""
    for part in title.split(", "):
        words = [word for word in part.split() if not word.startswith("--")]
        if words[0] == "shmq":
            words, noun = words[1:], words[1]
        else:
            words = [noun, *words]
        yield " ".join(words)


def schemas_by_command() -> dict[str, set[str]]:
    """Which schemas each command's documents and lines follow, as the schemas say."""
    found: dict[str, set[str]] = {}
    for name in SCHEMAS.keys() - OF_NO_COMMAND:
        for command in titled(SCHEMAS[name]["title"]):
            found.setdefault(command, set()).add(name)
    return found


def told_of(command: str) -> str:
    """The sections, rows of tables and paragraphs of the page that are about a command."""
    named = re.compile(rf"`(?:shmq |python -m shmq )?{command}[ `]")
    sections = [part for part in re.split(r"^(?=##)", PAGE, flags=re.M) if named.search(part.partition("\n")[0])]
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and named.match(line[2:])]
    return "\n".join(sections + rows + [part for part in PAGE.split("\n\n") if f"`shmq {command}" in part])


def test_every_command_prints_a_document_that_a_schema_describes() -> None:
    assert set(schemas_by_command()) == {name for name, _ in commands()}


@every_row(
    ("command", "schemas"),
    sorted(schemas_by_command().items()),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_page_links_each_schema_where_it_tells_of_the_command(command: str, schemas: set[str]) -> None:
    linked = set(re.findall(r"\(json/([\w-]+)\.json\)", told_of(command)))
    assert schemas - linked == set()


def test_some_test_holds_real_documents_against_each_schema() -> None:
    called = re.compile(r"""\b(?:json|lines|check)\(\s*"([\w-]+)",""")
    used = {name for path in TESTS.rglob("test_*.py") for name in called.findall(path.read_text())}
    assert set(SCHEMAS) - used == set()


def test_the_sample_reports_of_the_jobs_follow_their_schemas() -> None:
    page = (REFERENCE.parent / "spark-jobs.md").read_text()
    reports = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", page, re.M | re.S)]
    for report in reports:
        check(f"spark-{report['job']}", report)
    assert {report["job"] for report in reports} == {"archive", "replay", "reconcile", "lag", "dlq"}
