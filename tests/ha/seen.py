"""What `shmq health` and its like say of a broker's other hosts, for tests."""

from __future__ import annotations

from collections.abc import Callable

from shmq.figures.observer import Observer
from shmq.figures.snapshot import Replication
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict
from shmq.shm.links import read_links
from shmq.testing import Broker
from shmq.tools.health.examine import examine
from tests.deadline import eventually


def replication_of(broker: Broker) -> Replication:
    """What the broker shows of other hosts now."""
    with Observer(broker.url) as observer:
        told = observer.snapshot("quick").replication
    assert told is not None, broker.log
    return told


def findings_of(broker: Broker, check: str) -> list[Finding]:
    """What `shmq health` says of the slaves (check "replica") or the master (check "master") of a broker."""
    with Observer(broker.url) as observer:
        report = examine(observer, Thresholds(), "quick")
    return [finding for finding in report.findings if finding.check == check]


def until_told(broker: Broker, condition: Callable[[Replication], object]) -> Replication:
    """Wait until what the broker shows fits, and return it."""

    def fitting() -> Replication | None:
        told = replication_of(broker) if read_links(broker.place.links_path) else None
        return told if told is not None and condition(told) else None

    found: Replication = eventually(fitting, lambda: f"{read_links(broker.place.links_path)} {broker.log[-1500:]}")
    return found


def until_named(broker: Broker, check: str, *words: str, verdict: Verdict = Verdict.CRITICAL) -> Finding:
    """Wait until health has a finding of this check and verdict whose cause has these words; it has a cure, too."""

    def named() -> Finding | None:
        found = findings_of(broker, check)
        fitting = [each for each in found if each.verdict is verdict and all(word in each.why for word in words)]
        return fitting[0] if fitting else None

    finding: Finding = eventually(named, lambda: f"{findings_of(broker, check)} {broker.log[-1500:]}")
    assert finding.do, finding
    return finding
