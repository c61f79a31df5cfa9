"""Owns docs/compatibility.md: what it says of each client and feature, of mqadmin, and of deliberate differences.

It does not know how anything is tested. Run `python -m tests.interop.compatibility` from the root of the repository: it
runs the tests with real clients and writes what came out of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.interop.coverage import CLIENTS, results
from tests.interop.differences import DELIBERATE, PENDING
from tests.interop.mqadmin_commands import DIFFERENT, FIELDS, SAME

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
TESTS = [
    str(Path(__file__).with_name(name))
    for name in ("test_clients.py", "test_java.py", "test_filters.py", "test_transactions.py")
]
NOT_TRIED = "–"
_INTRODUCTION = """# Compatibility

Made by `python -m tests.interop.compatibility` from the tests in `tests/interop/`, which run the real clients against
shmq, and against a stock broker to show that the tests are right; do not edit. The stock broker of the 4.9 line is
4.9.7, the newest on Maven Central; clients and mqadmin are 4.9.8.

## Clients

"yes": tested and works. "–": the client does not have it, or has it and no test asks for it.
"""

Results = Mapping[tuple[str, str], bool]


def render(found: Results) -> str:
    """Return the text of the document for outcomes by client and feature."""
    features = sorted({feature for _, feature in found})
    lines = [_INTRODUCTION, "| feature | " + " | ".join(CLIENTS.values()) + " |", "|---" * (len(CLIENTS) + 1) + "|"]
    for feature in features:
        cells = [cell(found, client, feature) for client in CLIENTS]
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *static_lines()]) + "\n"


def cell(found: Results, client: str, feature: str) -> str:
    """Return what stands in one cell."""
    passed = found.get((client, feature))
    return NOT_TRIED if passed is None else "yes" if passed else "**no**"


def static_lines() -> list[str]:
    """Return what does not depend on outcomes: the tests fail when these lists are wrong."""
    lines = ["## mqadmin 4.9.8 and 5.3.3", "", "These print the same as about a stock broker in the same state:", ""]
    lines += [", ".join(f"`{name}`" for name in sorted({each.split()[0] for each in SAME})) + ".", ""]
    lines += ["These print every field that clients read, and less about threads and files: "]
    lines += [", ".join(f"`{each.split()[0]}`" for each in FIELDS) + ".", ""]
    lines += [f"* `{each.split()[0]}`: {reason}." for each, reason in DIFFERENT.items()]
    lines += ["", "## Requests that are answered otherwise than by a stock 4.9 broker", ""]
    lines += ["Every other answer to some two hundred requests, right, wrong and odd, is compared and equal.", ""]
    lines += ["| request | difference, and why |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in DELIBERATE.items()]
    lines += ["", "Not yet as it should be:", ""]
    lines += [f"* {name}: {reason}." for name, reason in PENDING.items()]
    return lines


def main() -> int:
    """Run the tests and write the document; returns the exit code."""
    status = pytest.main(["-q", *TESTS])
    if not results:
        print("no test has run, so nothing is written", file=sys.stderr)
        return 1
    DOCUMENT.write_text(render(results))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
