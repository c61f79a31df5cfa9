"""Check of the running broker: what `shmq health` finds wrong with it.

Memory, disk, segments and versions have checks of doctor's own; lag of groups is shown by health only.
"""

from __future__ import annotations

from collections.abc import Iterator

from shmq.figures.quantity import plural
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import ok
from shmq.tools.health.examine import all_findings

_TOLD_ELSEWHERE = frozenset({"memory", "disk", "segments", "versions", "group"})
_QUEUES = "segments queues"  # that the table of queues is nearly full, no check of doctor's own says

_SAID_WHEN_GOOD = frozenset({"daemon", "store", "role", "election"})


def check_health(case: Case) -> Iterator[Finding]:
    """Daemons, lock, claim, store, log, processes, the last recovery."""
    if case.instance is None:
        yield ok(
            "broker.health", f'no broker "{case.place.broker_name}" runs here; start one with: {case.serve_command}'
        )
        return
    judged = list(all_findings(case.snapshot, Thresholds(), "quick"))
    told_here = (entry for entry in judged if entry.check not in _TOLD_ELSEWHERE or entry.name == _QUEUES)
    wrong = [entry for entry in told_here if entry.verdict is not Verdict.OK]
    for entry in wrong:
        yield entry._replace(check=f"broker.{entry.check}", facts={"subject": entry.subject})
    if not wrong:
        good = [entry for entry in judged if entry.check in _SAID_WHEN_GOOD and entry.verdict is Verdict.OK]
        text = "; ".join(entry.what for entry in good)
        yield ok("broker.health", f"{text} ({plural(len(judged), 'check')} of shmq health)")
