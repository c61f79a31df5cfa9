"""Owns the command `python -m benchmarks.features`: the figures of what messages can do beyond being sent and received.

It does not know what a figure means; each feature has a module with a `workloads()`, and is named in `MODULES`. Options
and output are those of `python -m benchmarks.local`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import filters, offsets, requests, timers, transactions
from benchmarks.local import run
from benchmarks.workload import Workload

MODULES = (filters, offsets, requests, timers, transactions)


def workloads() -> list[Workload]:
    """Return the workloads of every feature."""
    return [workload for module in MODULES for workload in module.workloads()]


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    return run("python -m benchmarks.features", "what a message can do, measured", workloads(), given)


if __name__ == "__main__":
    sys.exit(main())
