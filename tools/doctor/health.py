"""Check of the running broker: what `shmq health` finds wrong with it, in doctor's form.

Memory, disk, segments and versions have checks of doctor's own; lag of groups is shown by health only.
"""

from __future__ import annotations

from collections.abc import Iterator

from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import Finding, fail, ok, warn
from shmq.tools.health.examine import all_findings
from shmq.tools.health.finding import Verdict
from shmq.tools.health.thresholds import Thresholds
from shmq.tools.terminal.quantity import plural

_TOLD_ELSEWHERE = frozenset({"memory", "disk", "segments", "versions", "group"})

_SAID_WHEN_GOOD = frozenset({"daemon", "store", "role", "election"})


def check_health(case: Case) -> Iterator[Finding]:
    """Daemons, lock, claim, store, log, processes, the last recovery."""
    if case.instance is None:
        yield ok(
            "broker.health", f'no broker "{case.place.broker_name}" runs here; start one with: {case.serve_command}'
        )
        return
    judged = list(all_findings(case.snapshot, Thresholds(), "quick"))
    wrong = [entry for entry in judged if entry.verdict is not Verdict.OK and entry.check not in _TOLD_ELSEWHERE]
    for entry in wrong:
        tell = fail if entry.verdict is Verdict.CRITICAL else warn
        why = f" – {entry.why}" if entry.why else ""
        figures = {name: measure.value for name, measure in entry.measures.items()}
        fix = entry.do or "see shmq health"
        yield tell(f"broker.{entry.check}", f"{entry.what}{why}", fix, subject=entry.subject, **figures)
    if not wrong:
        good = [entry for entry in judged if entry.check in _SAID_WHEN_GOOD and entry.verdict is Verdict.OK]
        text = "; ".join(entry.what for entry in good)
        yield ok("broker.health", f"{text} ({plural(len(judged), 'check')} of shmq health)")
