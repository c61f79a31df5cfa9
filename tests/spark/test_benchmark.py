"""Every workload of the Spark benchmark measures something, on little."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[2])
EFFORT = 0.005


def test_every_workload_and_its_rivals_measure_something(spark: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, ROOT])
    from benchmarks.brokers.spark_arena import Arena
    from benchmarks.spark import workloads

    with Arena() as arena:
        for workload in workloads(arena):
            for measure in (workload.ours, *workload.peers.values()):
                sample = measure(EFFORT)
                assert all(sample[figure.metric] > 0 for figure in workload.figures), workload.name
