"""What a broker that cannot store costs its other clients is measured on real brokers."""

from collections.abc import Callable

import pytest

from benchmarks import faults

pytestmark = pytest.mark.slow


def test_each_fault_has_its_bound() -> None:
    figures = {figure.name: figure for workload in faults.workloads() for figure in workload.figures}
    for name in ("disk_full", "above_mark", "keeper_dead"):
        assert figures[f"{name}_p99"].limits == {"limit": 3.0}


@pytest.mark.parametrize("fault", [faults.disk_full, faults.above_mark, faults.keeper_dead])
def test_a_client_is_answered_while_others_are_refused(fault: Callable[[float], dict[str, float]]) -> None:
    sample = fault(0.0)
    assert sample["idle_us"] > 0 and sample["disturbed_us"] > 0
    assert sample["ratio"] == sample["disturbed_us"] / sample["idle_us"]
