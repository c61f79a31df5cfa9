"""docs/reference/numbers.md names every number of the schemas, and tests that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.tables.rows import every_row

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/numbers.md").read_text()
SECTIONS = {
    "health": "shmq health",
    "top": "shmq top",
    "cluster-status": "shmq cluster",
    **dict.fromkeys(
        ("topic-list", "topic-show", "group-list", "group-show", "offset-show"), "shmq topic, group, offset"
    ),
}


def numbers(schema: dict[str, Any], name: str = "") -> Iterator[str]:
    """The names of all members that are numbers."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if {"integer", "number"} & set(kinds):
        yield name
    for member, described in schema.get("properties", {}).items():
        yield from numbers(described, member)
    for described in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(described, dict):
            yield from numbers(described, name)


def section(title: str) -> str:
    """One part of the page."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@every_row("command", SECTIONS)
def test_every_number_of_a_schema_is_in_the_table(command: str) -> None:
    schema = json.loads((ROOT / f"docs/reference/json/{command}.json").read_text())
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section(SECTIONS[command])))))
    assert set(numbers(schema)) <= told


def test_every_test_that_the_table_names_exists() -> None:
    files = dict(re.findall(r"^\| ([A-Z]) \| `([^`]+)`", PAGE, re.M))
    assert len(files) == 10
    for letter, name in re.findall(r"\b([A-Z]) `([a-z_]+)…?`", PAGE.partition("\n## ")[2]):
        names = re.findall(r"def test_(\w+)", (ROOT / files[letter]).read_text())
        assert any(name in known for known in names), (letter, name)
    for path in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / path).is_file(), path
