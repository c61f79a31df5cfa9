"""Rules of benchmarks.tcp: which figures it promises, and what they must reach."""

from __future__ import annotations

import pytest

from benchmarks.brokers.rocketmq import Arena
from benchmarks.tcp import PEER, main, workloads


def test_every_figure_that_was_promised_has_its_must() -> None:
    with Arena() as arena:
        figures = [figure for each in workloads(arena) for figure in each.figures]
    bars = {figure.name: (*figure.musts.values(), *figure.limits.values(), None)[0] for figure in figures}
    assert all(set(figure.musts) <= {PEER} for figure in figures)
    assert bars == {
        "sync_1_128b": 1.4,
        "sync_1_1kib": 1.4,
        "sync_64_128b": 2.0,
        "memory_64_128b": 0.3,
        "processor_64_128b": 0.35,
        "sync_64_1kib": 2.0,
        "memory_64_1kib": 0.3,
        "processor_64_1kib": 0.35,
        "batches_of_32": 1.2,
        "catch_up": 1.2,
        "held_pulls_answer": None,
        "held_pulls_answer_ratio": 2.0,
        "held_pulls_last": 15.0,
        "on_disk_64": 1.5,
        "on_disk_8x64": 3.0,
        "route_p50": None,
        "route_p99": 10.0,
        "key_p50": None,
        "key_p99": 10.0,
    }


def test_a_list_starts_no_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--figure", "sync_64*"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "sync_64_128b: sync_64_128b memory_64_128b processor_64_128b",
        "sync_64_1kib: sync_64_1kib memory_64_1kib processor_64_1kib",
    ]


def test_a_name_that_no_workload_has_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--figure", "nothing"]) == 2
    assert "no figure or workload is called nothing" in capsys.readouterr().err
