"""What a broker costs a test is measured on tests that pytest runs, against the bounds that are promised."""

import pytest

from benchmarks import testing

pytestmark = pytest.mark.slow


def test_each_way_has_its_bound() -> None:
    limits = {figure.name: figure.limits for workload in testing.workloads() for figure in workload.figures}
    assert limits["test_isolated_cpu"] == limits["test_uncompiled_cpu"] == {"limit": 1000.0}
    assert limits["test_shared_cpu"] == {"limit": 50.0}


def test_a_shared_broker_is_measured_with_tests_that_pass() -> None:
    """It fails when they do not pass. Of so few tests the figure says nothing: other work is dearer than they are."""
    assert list(testing.shared(0.05)) == ["cpu_ms"]
