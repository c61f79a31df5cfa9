"""The transactional workload commits what it counts."""

import pytest

from benchmarks.workloads import transactions

pytestmark = pytest.mark.slow


def test_the_workload_commits_as_many_as_it_says() -> None:
    (workload,) = transactions.workloads()
    assert workload.ours(0.001)["per_s"] > 0
