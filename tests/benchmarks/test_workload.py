"""Rules of benchmarks.workload: interleaved runs, medians, musts, and the fields of a line."""

from __future__ import annotations

import json

import pytest

from benchmarks.workload import Figure, Line, Measure, Results, Workload, measure

FIELDS = ["figure", "unit", "ours", "peer", "peer_value", "ratio", "must", "holds", "runs", "min", "max"]


def _recorded(name: str, log: list[str], values: list[float]) -> Measure:
    def one_run(effort: float) -> dict[str, float]:
        log.append(name)
        return {"rate": values[log.count(name) - 1] * effort}

    return one_run


def _results(ours: list[float], **peers: list[float]) -> Results:
    results = Results()
    results.ours = [{"rate": value} for value in ours]
    results.peers = {name: [{"rate": value} for value in values] for name, values in peers.items()}
    return results


def test_runs_of_ours_and_of_every_peer_take_turns() -> None:
    log: list[str] = []
    peers = {"a": _recorded("a", log, [1, 2, 3]), "b": _recorded("b", log, [4, 5, 6])}
    workload = Workload("w", _recorded("ours", log, [7, 8, 9]), [], peers)
    results = measure(workload, ["a", "b", "not in this workload"], 3, 2.0)
    assert log == ["ours", "a", "b"] * 3
    assert [sample["rate"] for sample in results.ours] == [14, 16, 18]
    assert list(results.peers) == ["a", "b"]


def test_rounds_before_run_as_all_others_and_do_not_count() -> None:
    log: list[str] = []
    peers = {"a": _recorded("a", log, [1, 2, 3])}
    workload = Workload("w", _recorded("ours", log, [7, 8, 9]), [], peers, rounds_before=1)
    results = measure(workload, ["a"], 2, 1.0)
    assert log == ["ours", "a"] * 3
    assert [sample["rate"] for sample in results.ours] == [8, 9]
    assert [sample["rate"] for sample in results.peers["a"]] == [2, 3]


def test_without_ours_only_the_peers_run() -> None:
    log: list[str] = []
    workload = Workload("w", _recorded("ours", log, [1]), [], {"a": _recorded("a", log, [1])})
    results = measure(workload, ["a"], 1, 1.0, with_ours=False)
    assert log == ["a"]
    line = results.lines(Figure("f", "rate", "msg/s", musts={"a": 2.0}))[0]
    assert (line.ours, line.ratio, line.holds, line.peer_value) == (None, None, None, 1)


def test_a_line_compares_medians_and_tells_the_spread_of_ours() -> None:
    line = _results([30, 10, 20], peer=[5, 100, 10]).lines(Figure("f", "rate", "msg/s", is_rate=True))[0]
    assert (line.ours, line.peer_value, line.ratio) == (20, 10, 2.0)
    assert (line.runs, line.min, line.max) == (3, 10, 30)
    assert (line.must, line.holds) == (None, None)


@pytest.mark.parametrize(
    ("is_rate", "factor", "ratio", "holds"),
    [
        (True, 1.6, 1.6, True),
        (True, 1.6, 1.5, False),
        (False, 0.7, 0.7, True),
        (False, 0.7, 0.75, False),
    ],
)
def test_rates_must_reach_their_factor_and_times_must_not_exceed_it(
    *, is_rate: bool, factor: float, ratio: float, holds: bool
) -> None:
    figure = Figure("f", "rate", "x", is_rate=is_rate, musts={"peer": factor})
    line = _results([ratio * 8], peer=[8.0]).lines(figure)[0]
    assert line.holds is holds
    assert line.must == f"{'>=' if is_rate else '<='} {factor:g}"


def test_the_peer_with_a_must_comes_first_and_others_get_a_line_without_one() -> None:
    figure = Figure("f", "rate", "x", is_rate=True, musts={"b": 1.0})
    lines = _results([1.0], a=[1.0], b=[1.0]).lines(figure)
    assert [(line.peer, line.must is None) for line in lines] == [("b", False), ("a", True)]


def test_a_limit_is_a_peer_that_is_a_number() -> None:
    lines = _results([90.0]).lines(Figure("f", "rate", "ns", limits={"limit": 100.0}))
    assert [(line.peer, line.peer_value, line.holds) for line in lines] == [("limit", 100.0, True)]
    assert _results([110.0]).lines(Figure("f", "rate", "ns", limits={"limit": 100.0}))[0].holds is False


def test_a_figure_without_a_rival_still_has_a_line() -> None:
    lines = _results([5.0]).lines(Figure("f", "rate", "ns"))
    assert [(line.ours, line.peer, line.holds) for line in lines] == [(5.0, "", None)]


def test_a_line_as_json_has_the_promised_fields() -> None:
    line = _results([5.0], peer=[4.0]).lines(Figure("f", "rate", "ns", musts={"peer": 1.0}))[0]
    read = json.loads(json.dumps(line.as_json()))
    assert list(read) == FIELDS
    assert Line(**read) == line
