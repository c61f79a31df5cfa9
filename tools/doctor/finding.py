"""Findings of doctor's own checks, and the words for every finding: `shmq health` has the type.

A finding that is no good news has a fix:

    [ok]   kernel 6.1, glibc 2.36, 2 processors
    [warn] logind RemoveIPC=yes and the segments' owner uid 1000 is a login user: logout deletes them
           fix: run as a system user (shmq systemd), or RemoveIPC=no in /etc/systemd/logind.conf

`check` is a stable name (`machine.clock`), `what` has cause and numbers, `do` what to type, `facts` the raw numbers.
"""

from __future__ import annotations

from typing import Any

from shmq.figures.verdict import Finding, Verdict

WORDS = {Verdict.OK: "ok", Verdict.WARNING: "warn", Verdict.UNKNOWN: "warn", Verdict.CRITICAL: "fail"}


def ok(check: str, text: str, **facts: Any) -> Finding:
    """Return a finding that is as it should be."""
    return Finding(check, Verdict.OK, text, facts=facts)


def warn(check: str, text: str, fix: str, **facts: Any) -> Finding:
    """Return a finding that may become trouble."""
    return Finding(check, Verdict.WARNING, text, do=fix, facts=facts)


def fail(check: str, text: str, fix: str, **facts: Any) -> Finding:
    """Return a finding that is trouble now."""
    return Finding(check, Verdict.CRITICAL, text, do=fix, facts=facts)


def text_of(finding: Finding) -> str:
    """Return what doctor prints of a finding: what is the case, and why."""
    return f"{finding.what} – {finding.why}" if finding.why else finding.what


def document_of(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON carries it."""
    return {
        "check": finding.check,
        "verdict": WORDS[finding.verdict],
        "text": text_of(finding),
        "fix": finding.do,
        "figures": finding.figures,
    }
