"""The workloads under other libraries work, and their figures have a bound."""

import pytest

from benchmarks.workload import Workload, measure
from benchmarks.workloads import arrow, tasks

pytestmark = pytest.mark.slow


def test_a_query_of_duckdb_counts_every_message() -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed: pip install -e '.[sql]'")
    with arrow.Filled() as filled:
        (workload,) = arrow.workloads(filled)
        (line,) = measure(workload, [], 1, 0.002).lines(workload.figures[0])
    assert line.ours and line.must == ">= 1" and line.peer_value == arrow.ROWS_EACH_S


@pytest.mark.parametrize("workload", tasks.workloads(), ids=lambda workload: workload.name)
def test_everything_comes_through_kombu_and_celery(workload: Workload) -> None:
    for library in ("celery", "kombu"):
        pytest.importorskip(library, reason="celery is not installed: pip install -e '.[celery]'")
    results = measure(workload, list(workload.peers), 1, 0.002)
    lines = [line for figure in workload.figures for line in results.lines(figure)]
    assert all(line.ours for line in lines)
    assert {line.peer for line in lines} | results.absent.keys() == {tasks.PEER} | ({""} if results.absent else set())


def test_kombu_has_to_be_three_times_as_fast_as_over_redis_and_celery_faster() -> None:
    musts = {figure.name: figure.musts for workload in tasks.workloads() for figure in workload.figures}
    assert {name: must[tasks.PEER] for name, must in musts.items() if must} == {"kombu_through": 3, "celery_tasks": 1}
