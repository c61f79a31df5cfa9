"""The figures of a second host measure real pairs."""

import pytest

from benchmarks import replication

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workload", replication.WORKLOADS, ids=lambda workload: workload.name)
def test_a_pair_is_measured_beside_each_peer(workload: replication.Workload) -> None:
    for measure in (workload.ours, *workload.peers.values()):
        sample = measure(0.001)
        assert all(sample[figure.metric] >= 0 for figure in workload.figures) and any(sample.values())
