"""The command `python -m benchmarks.libraries`: what other libraries reach over shmq.

Each workload has a module under `workloads/`. Options and output are those of `python -m benchmarks.local`; the exit
code is 1 when a must does not hold.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.command import run
from benchmarks.workloads import arrow, tasks


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    with arrow.Filled() as filled:
        table = [*arrow.workloads(filled), *tasks.workloads()]
        return run("python -m benchmarks.libraries", "shmq under other libraries", table, given)


if __name__ == "__main__":
    sys.exit(main())
