"""Rules of benchmarks.compare: runs in turn, paired ratios, and an interval that the sign test allows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.compare import Comparison, interval, main

# A checkout whose only table prints what its file `values` says, next line of it at each run, and writes down the turn.
WORKLOAD = "def measure(workload, peers, runs, effort, *, with_ours=True):\n    return [*peers, effort]\n"
TABLE = """
import json, pathlib, sys
from benchmarks.workload import measure
HERE = pathlib.Path(__file__).parent.parent

def main(given):
    if "--list" in given:
        print("sends: rate half_trip")
        print("others: other")
        return 0
    assert len(done := measure(None, ["a rival"], 1, 0.5)) == 1
    with open(HERE.parent / "turns", "a") as turns:
        turns.write(HERE.name + " " + " ".join(given) + "\\n")
    with open(HERE.parent / "efforts", "a") as efforts:
        efforts.write(f"{done[0]:g}\\n")
    lines = (HERE / "values").read_text().splitlines()
    (HERE / "values").write_text("\\n".join(lines[1:] + lines[:1]))
    rate, half_trip = map(float, lines[0].split())
    for limit in ("one", "two"):
        print(json.dumps({"figure": "rate", "unit": "msg/s", "ours": rate, "peer": limit}))
    print(json.dumps({"figure": "half_trip", "unit": "us", "ours": half_trip, "peer": ""}))
    return 1
"""
Compare = Callable[..., tuple[int, dict[str, object], str]]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Compare two checkouts whose runs give these values; exit code, the JSON at the end, and stderr."""

    def run(base: list[str], head: list[str], *options: str) -> tuple[int, dict[str, object], str]:
        for name, values in (("base", base), ("head", head)):
            folder = tmp_path / name / "benchmarks"
            folder.mkdir(parents=True)
            (folder / "__init__.py").touch()
            (folder / "workload.py").write_text(WORKLOAD)
            (folder / "local.py").write_text(TABLE)
            (tmp_path / name / "values").write_text("\n".join(values))
        places = [f"--{name}={sys.executable}={tmp_path / name}" for name in ("base", "head")]
        code = main([*places, "--tables", "local", *options])
        said = capsys.readouterr()
        return code, json.loads(said.out.splitlines()[-1]) if said.out else {}, said.err

    return run


def test_a_rate_that_rises_and_a_time_that_falls_hold(compare: Compare) -> None:
    code, found, _ = compare(["100 10"], ["110 9"], "--pairs", "6", "--only", "sends")
    assert code == 0
    rows = {row["figure"]: row for row in found["figures"]}  # type: ignore[attr-defined]
    assert rows["rate"]["ratio"] == rows["rate"]["low"] == rows["rate"]["high"] == pytest.approx(1.1)
    assert rows["half_trip"]["ratio"] == pytest.approx(0.9)
    assert rows["rate"]["holds"] and rows["half_trip"]["holds"] and found["missing"] == []


def test_one_that_is_worse_does_not_hold(compare: Compare) -> None:
    code, found, _ = compare(["100 10"], ["100 10.4"], "--pairs", "6", "--only", "half_trip", "rate")
    assert code == 1
    assert {row["figure"]: row["holds"] for row in found["figures"]} == {  # type: ignore[attr-defined]
        "half_trip": False,
        "rate": True,
    }


def test_pairs_take_turns_and_only_wanted_figures_are_measured(compare: Compare, tmp_path: Path) -> None:
    _, found, _ = compare(["100 10"], ["100 10"], "--pairs", "3", "--only", "ra*", "--quick")
    assert [row["figure"] for row in found["figures"]] == ["rate"]  # type: ignore[attr-defined]
    assert found["figures"][0]["holds"] is None  # type: ignore[index]
    turns = (tmp_path / "turns").read_text().splitlines()
    assert [turn.split()[0] for turn in turns] == ["base", "head", "head", "base", "base", "head"]
    assert {turn.partition(" ")[2] for turn in turns} == {"--json --runs 1 --quick --figure sends"}


def test_runs_do_the_part_of_the_work_that_is_asked_for(compare: Compare, tmp_path: Path) -> None:
    _, found, _ = compare(["100 10"], ["100 10"], "--pairs", "1", "--only", "rate", "--effort", "0.2")
    assert found["effort"] == 0.2
    assert (tmp_path / "efforts").read_text().split() == ["0.1", "0.1"]  # of a table whose runs are half as long


def test_both_checkouts_take_turns_at_each_workload(compare: Compare, tmp_path: Path) -> None:
    compare(["100 10"], ["100 10"], "--pairs", "2", "--only", "sends", "others")
    turns = [turn.split() for turn in (tmp_path / "turns").read_text().splitlines()]
    first = [("base", "sends"), ("head", "sends"), ("base", "others"), ("head", "others")]
    second = [("head", "sends"), ("base", "sends"), ("head", "others"), ("base", "others")]
    assert [(turn[0], turn[-1]) for turn in turns] == first + second


def test_a_slow_minute_hits_both_of_a_pair(compare: Compare) -> None:
    slow_and_fast = ["100 10", "50 20", "100 10"]
    _, found, _ = compare(slow_and_fast, slow_and_fast, "--pairs", "9", "--only", "rate")
    assert found["figures"][0]["low"] == found["figures"][0]["high"] == 1  # type: ignore[index]


def test_a_figure_that_is_listed_and_not_measured_is_named(compare: Compare) -> None:
    code, found, _ = compare(["100 10"], ["100 10"], "--pairs", "1", "--only", "*")
    assert code == 0 and found["missing"] == ["other"]


@pytest.mark.parametrize(
    ("count", "low", "high", "confidence"),
    [(6, 0, 5, 0.969), (9, 1, 7, 0.961), (15, 3, 11, 0.965), (20, 5, 14, 0.959)],
)
def test_the_interval_is_that_of_the_sign_test(count: int, low: int, high: int, confidence: float) -> None:
    values = [number / 10 for number in range(count)]
    assert interval(list(reversed(values))) == (values[low], values[high], pytest.approx(confidence, abs=0.001))


def test_five_pairs_are_too_few_for_an_interval() -> None:
    assert interval([1.0] * 5) == (None, None, 0.0)
    row = Comparison("local", "rate", "msg/s", [1.0], [2.0]).as_json(0.03)
    assert (row["ratio"], row["holds"]) == (2.0, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--base", "/nowhere/python", "--head", sys.executable], "is no Python"),
        (["--base", f"{sys.executable}=/", "--head", sys.executable], "no checkout with benchmarks"),
    ],
)
def test_what_cannot_be_measured_is_said(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options) == 2
    assert words in capsys.readouterr().err


def test_a_name_of_no_figure_is_an_error(compare: Compare) -> None:
    code, _, said = compare(["1 1"], ["1 1"], "--only", "nothing")
    assert code == 2 and "no figure or workload is called nothing" in said
