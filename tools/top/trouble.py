"""What is wrong with a broker, one line each, for the head of the page. The rules are those of `shmq health`, which
also says the cure.
"""

from __future__ import annotations

from shmq.tools.health.broker_rules import broker_findings
from shmq.tools.health.finding import Verdict, by_severity
from shmq.tools.health.thresholds import Thresholds
from shmq.tools.observe.processes import STOPPED
from shmq.tools.observe.snapshot import Snapshot

_THRESHOLDS = Thresholds()


def troubles_of(snapshot: Snapshot) -> list[str]:
    """Return what keeps messages from flowing, worst first."""
    judged = by_severity(finding for finding in broker_findings(snapshot, _THRESHOLDS))
    found = [finding.what for finding in judged if finding.verdict is not Verdict.OK]
    stopped = [process for process in snapshot.processes if process.role == "client" and process.state in STOPPED]
    return found + [f"the client {process.name} (pid {process.pid}) is {process.state}" for process in stopped]
