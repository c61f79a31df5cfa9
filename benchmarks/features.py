"""The command `python -m benchmarks.features`: the figures of what messages can do beyond being sent and received.

Each feature has a module with a `workloads()`, and is named in `MODULES`; what a stock broker has too is in the
module's `over_tcp()`, and measured at one in the same run (beside.py). Without a JVM our figures are measured alone,
and a sentence says so. Options and output are those of `python -m benchmarks.local`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.brokers.contestants import Contestants
from benchmarks.command import run
from benchmarks.workload import Workload
from benchmarks.workloads import filters, offsets, requests, timers, transactions
from benchmarks.workloads.beside import OverTcp, beside

MODULES = (filters, offsets, requests, transactions, timers)


def workloads(contestants: Contestants) -> list[Workload]:
    """Return the workloads of every feature, beside the stock broker that has it."""
    over_tcp: dict[str, OverTcp] = {}
    for module in MODULES:
        over_tcp |= module.over_tcp() if hasattr(module, "over_tcp") else {}
    alone = [workload for module in MODULES for workload in module.workloads()]
    return [
        beside(workload, over_tcp[workload.name], contestants) if workload.name in over_tcp else workload
        for workload in alone
    ]


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    with Contestants() as contestants:
        return run("python -m benchmarks.features", "what a message can do, measured", workloads(contestants), given)


if __name__ == "__main__":
    sys.exit(main())
