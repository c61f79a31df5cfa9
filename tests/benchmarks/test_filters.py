"""The filter workloads select what they say, and promise what the issue asks for."""

import pytest

from benchmarks.workloads import filters

pytestmark = pytest.mark.slow


def test_both_scans_read_a_topic_to_its_end() -> None:
    assert filters.tag_filter(0.001)["units_per_s"] > 0
    assert filters.sql_filter(0.001)["us"] > 0


def test_their_figures_have_a_bound() -> None:
    bounds = {figure.name: figure.limits for workload in filters.workloads() for figure in workload.figures}
    assert bounds == {"tag_filter_1_percent": {"limit": 20e6}, "sql_filter_three_terms": {"limit": 2.0}}
