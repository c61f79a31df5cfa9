"""Helpers of the tests that bring a broker into trouble: look until it is reported, and show what was reported."""

from collections.abc import Callable
from typing import Any

from shmq.figures.observer import Observer
from shmq.figures.snapshot import Snapshot
from shmq.figures.thresholds import Thresholds
from shmq.figures.verdict import Finding, Verdict
from shmq.tools.health.examine import examine
from shmq.tools.health.report import Report
from tests.deadline import attempts


def reported(
    url: str, wanted: Callable[[Finding], bool], *, thresholds: Thresholds | None = None
) -> tuple[Finding, Report]:
    """Look with fresh eyes until a finding is there; it has to say its cause and its cure."""
    for _ in attempts():
        with Observer(url) as observer:
            report = examine(observer, thresholds or Thresholds())
        found = [finding for finding in report.findings if wanted(finding)]
        if found:
            break
    assert found, "\n".join(report.lines())
    assert found[0].what and found[0].why and found[0].do, found[0]
    return found[0], report


def of(check: str, verdict: Verdict, *words: str) -> Callable[[Finding], bool]:
    """A finding of this check and verdict whose `what` holds these words."""
    return lambda finding: (
        finding.check == check and finding.verdict is verdict and all(word in finding.what for word in words)
    )


def looked(url: str) -> Snapshot:
    """What fresh eyes see."""
    with Observer(url) as observer:
        return examine(observer, Thresholds()).snapshot


def all_well(url: str, **thresholds: Any) -> Report:
    """Look until nothing is wrong any more."""
    for _ in attempts():
        with Observer(url) as observer:
            report = examine(observer, Thresholds(**thresholds))
        if report.verdict is Verdict.OK:
            return report
    raise AssertionError("\n".join(report.lines()))
