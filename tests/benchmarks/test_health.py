"""What looking costs is measured on whole processes, against the bounds that are promised."""

import os

import pytest

from benchmarks import health

pytestmark = pytest.mark.slow


def test_each_command_has_its_bound() -> None:
    figures = {figure.name: figure for workload in health.workloads() for figure in workload.figures}
    assert figures["health_fast"].limits == figures["scrape_10k_queues"].limits == {"limit": 60.0}
    assert figures["top_at_1_hz"].limits == {"limit": 2.0}


def test_a_call_is_measured_from_start_to_exit() -> None:
    sample = health.health_fast(0.0)
    assert sample["cpu_ms"] > 0 and sample["wall_ms"] > 0


def test_processor_time_of_a_process_only_grows() -> None:
    before = health._cpu_seconds(os.getpid())
    while (after := health._cpu_seconds(os.getpid())) == before:
        pass
    assert after > before
