"""The page of features names tests that exist, and leaves none of the nine groups out."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/features.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| \d", line)]


def test_every_group_of_features_has_a_row_and_every_row_a_test() -> None:
    assert {int(row[0]) for row in ROWS} == set(range(1, 10))
    assert [row[1] for row in ROWS if "::" not in row[5]] == []


def test_every_invariant_from_i4_to_i12_has_a_test_whose_name_states_it() -> None:
    rows = dict(re.findall(r"^\| (I\d+) \|(.*)$", PAGE, re.MULTILINE))
    assert list(rows) == [f"I{number}" for number in range(4, 13)]
    assert [name for name, row in rows.items() if f"::test_{name.lower()}_" not in row] == []


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for path, name in re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE):
        file = ROOT / path
        if not file.is_file() or not re.search(rf"^(?:async )?def {name}\(", file.read_text(), re.MULTILINE):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_the_readme_links_the_page() -> None:
    assert "docs/features.md" in (ROOT / "README.md").read_text()
