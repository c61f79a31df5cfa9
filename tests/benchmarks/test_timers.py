"""The timer workload delivers what it inserts, and promises what the issue asks for."""

import pytest

from benchmarks import features
from benchmarks.brokers.contestants import Contestants
from benchmarks.workloads import timers

pytestmark = pytest.mark.slow


def test_timers_are_inserted_kept_and_delivered() -> None:
    sample = timers.timers(0.001)
    assert sample["insert_us"] > 0
    assert sample["late_ms"] >= 0
    assert sample["bytes"] >= 0


def test_their_figures_have_a_bound() -> None:
    bounds = {figure.name: figure.limits for workload in timers.workloads() for figure in workload.figures}
    assert bounds == {
        "timer_insert": {"limit": 5.0},
        "timer_memory": {"limit": 100.0},
        "timer_lateness_p99": {"limit": 50.0},
    }


def test_every_feature_module_is_in_the_table() -> None:
    with Contestants() as contestants:
        names = {workload.name for workload in features.workloads(contestants)}
    assert {"timers", "tag_filter", "sql_filter"} <= names
    assert features.main(["--list"]) == 0
    assert features.main(["--figure", "nothing"]) == 2
