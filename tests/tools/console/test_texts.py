"""Whatever a page says is in the table, in both languages, and nothing else is."""

from __future__ import annotations

import re

from jinja2 import Environment, FileSystemLoader, nodes

from shmq.figures.verdict import Verdict
from shmq.tools.console.rendering import DONE, HERE, NAVIGATION
from shmq.tools.console.texts import CHINESE, text_in
from tests.tables.rows import every_row

SAID_BY_CODE = re.compile(r'(?:_said\(|"|refuse\(request, \d+, )"?((?:This|Open) [^"{}]*\.)"')


def said() -> set[str]:
    """Every text that templates and code hand to the table."""
    environment = Environment(loader=FileSystemLoader(HERE / "templates"))
    found = {"sent", "consumed", "received", "ended"}  # what a trace's picture says
    found |= {link.text for link in NAVIGATION} | set(DONE.values()) | {verdict.name for verdict in Verdict}
    for path in sorted((HERE / "templates").glob("*.html")):
        tree = environment.parse(path.read_text())
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "t" and isinstance(call.args[0], nodes.Const):
                found.add(call.args[0].value)
    for path in sorted(HERE.rglob("*.py")):
        if path.name != "texts.py":
            found.update(re.findall(r'\bTexts?\("([^"]+)"', path.read_text()))
            found.update(SAID_BY_CODE.findall(path.read_text()))
    return found


def test_every_text_is_in_the_table_and_every_line_of_it_is_said() -> None:
    assert said() - set(CHINESE) == set()
    assert set(CHINESE) - said() == set()


@every_row("english", sorted(CHINESE))
def test_a_text_has_the_same_fields_in_both_languages(english: str) -> None:
    fields = re.compile(r"{(\w+)}")
    assert set(fields.findall(english)) == set(fields.findall(CHINESE[english]))
    assert re.search(r"[\u4e00-\u9fff]", CHINESE[english])


def test_a_text_that_is_missing_is_said_in_english() -> None:
    assert text_in("zh", "not translated: {this}", this="that") == "not translated: that"
