"""docs/compatibility.md says what the tests of this session found; it runs after all of them (conftest.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.interop import coverage
from tests.interop.compatibility import DOCUMENT, PAIRS, cell, render, static_lines
from tests.interop.coverage import CLIENTS, covered, results
from tests.interop.target import OURS


def test_the_table_says_what_the_tests_found(request: pytest.FixtureRequest) -> None:
    text = DOCUMENT.read_text()
    rows = {row.split(" | ")[0].removeprefix("| "): row.strip("| ").split(" | ")[1:] for row in text.splitlines()}
    for client, feature in covered(request.session.items):
        assert feature in rows, f"{feature} is not in the table: python -m tests.interop.compatibility"
        said = rows[feature][list(CLIENTS).index(client)]
        expected = cell(results, client, feature) if (client, feature) in results else "yes"
        assert said == expected, f"{feature} with {CLIENTS[client]}: python -m tests.interop.compatibility"


def test_the_lists_in_the_document_are_those_of_the_tests() -> None:
    assert "\n".join(static_lines()) in DOCUMENT.read_text()


def test_the_tests_of_masters_and_slaves_exist() -> None:
    for test in PAIRS.values():
        path, _, name = test.partition("::")
        text = (DOCUMENT.parents[1] / path).read_text()
        assert f"def {name.partition('[')[0]}(" in text, test
    assert {each for pair in PAIRS for each in pair} == {"shmq", "RocketMQ 4.9.7", "RocketMQ 5.3.3"}


def test_the_columns_are_the_clients_that_are_tested() -> None:
    head = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith("| feature"))
    assert head.strip("| ").split(" | ")[1:] == list(CLIENTS.values())


def test_a_repeated_test_counts_as_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "results", {})
    monkeypatch.setattr(coverage, "_passed", {})
    marker, callspec = SimpleNamespace(args=("batch",)), SimpleNamespace(params={"pair": f"go@{OURS}"})
    one, other = (
        SimpleNamespace(nodeid=name, callspec=callspec, get_closest_marker=lambda _: marker)
        for name in ("one", "other")
    )
    test: Any
    for test, passed, expected in ((one, False, False), (other, True, False), (one, True, True), (other, False, False)):
        coverage.record(test, passed)
        assert coverage.results == {("go", "batch"): expected}


def test_a_failure_is_shown_and_what_was_not_tried_is_not_called_good() -> None:
    text = render({("go", "batch"): False, ("java-4", "batch"): True})
    assert "| batch | yes | – | **no** | – | – |" in text
