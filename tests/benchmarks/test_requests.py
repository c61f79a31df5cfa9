"""The benchmark of requests measures round trips that really happened."""

from benchmarks.workloads import requests


def test_a_rough_run_measures_a_round_trip() -> None:
    (workload,) = requests.workloads()
    sample = workload.ours(0.0)
    (figure,) = workload.figures
    assert sample[figure.metric] > 0 and figure.limits == {"limit": 60}
