"""From a snapshot to a report: every rule is applied once. `wait_until_well` repeats that until nothing is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from shmq.figures.broker_rules import broker_findings
from shmq.figures.observer import Depth, Observer
from shmq.figures.snapshot import Snapshot
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict
from shmq.tools.health.report import Report
from shmq.tools.health.room_rules import room_findings

_WAIT_STEP_SECONDS = 0.1


def examine(observer: Observer, thresholds: Thresholds, depth: Depth = "usual") -> Report:
    """Look at everything once, and judge it."""
    snapshot = observer.snapshot(depth)
    return Report(snapshot, list(all_findings(snapshot, thresholds, depth)))


def all_findings(snapshot: Snapshot, thresholds: Thresholds, depth: Depth) -> Iterator[Finding]:
    """Judge a snapshot; groups are not in a quick one."""
    yield from broker_findings(snapshot, thresholds)
    yield from room_findings(snapshot, thresholds)
    if snapshot.security is not None:
        from shmq.tools.health.security_rules import security_findings

        yield from security_findings(snapshot.security, snapshot.at)
    if depth != "quick":
        from shmq.tools.health.group_rules import group_findings

        yield from group_findings(snapshot, thresholds)


def wait_until_well(look: Callable[[], Report], seconds: float) -> Report:
    """Look again and again until the verdict is OK, for so many seconds at most; return the last report."""
    until = time.monotonic() + seconds
    while True:
        report = look()
        left = until - time.monotonic()
        if report.verdict is Verdict.OK or left <= 0:
            return report
        time.sleep(min(_WAIT_STEP_SECONDS, left))
