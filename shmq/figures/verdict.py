"""One thing that was examined, and the verdict on it: the types of `mq.admin.health()` and of all commands.

    verdict     exit status     as Nagios means it
    OK          0               nothing to do
    WARNING     1               it works, and should be looked at
    CRITICAL    2               it does not do what it is there for, or soon will not
    UNKNOWN     3               it could not be looked at

Rule: whatever is not OK says why, and what to type next.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

Number = int | float


class Verdict(StrEnum):
    """The verdict of a check; a string, so that it is compared with "OK" and written into JSON as it is."""

    OK = "OK"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"
    UNKNOWN = "UNKNOWN"

    @property
    def exit_status(self) -> int:
        """The exit status of a check."""
        return _STATUSES.index(self)


_STATUSES = tuple(Verdict)
_SEVERITY = (Verdict.OK, Verdict.WARNING, Verdict.UNKNOWN, Verdict.CRITICAL)
_NONE: Mapping[str, Any] = {}


class Measure(NamedTuple):
    """One number as monitoring keeps it; `unit` is "", "B", "s", "%" or "c" (a counter)."""

    value: Number
    unit: str = ""
    warn: Number | None = None
    crit: Number | None = None


class Finding(NamedTuple):
    """The finding of one check about one object."""

    check: str
    """What was looked at: daemon, store, lock, claim, process, segments, memory, disk, log, recovery, group …"""
    verdict: Verdict
    what: str
    """What is the case, with its numbers."""
    subject: str = ""
    """Which one of them: a role, a path, a group's name; "" where there is only one."""
    why: str = ""
    """What caused it, or what follows from it; "" for OK."""
    do: str = ""
    """The next command, or the next step; "" for OK."""
    measures: Mapping[str, Measure] = _NONE
    """The numbers by name."""
    facts: Mapping[str, Any] = _NONE
    """What else a program may want of it, as plain values."""

    @property
    def name(self) -> str:
        """The check, and the object it looked at."""
        return f"{self.check} {self.subject}".rstrip()

    @property
    def text(self) -> str:
        """The finding in words, and where it is not well, why and what to do."""
        return "; ".join(filter(None, (f"{self.what}: {self.why}" if self.why else self.what, self.do)))

    @property
    def figures(self) -> dict[str, Any]:
        """Facts and numbers without units and bounds."""
        return {**self.facts, **{name: one.value for name, one in self.measures.items()}}

    def document(self) -> dict[str, Any]:
        """Return the same as plain values, as JSON carries it."""
        return {
            "check": self.check,
            "subject": self.subject,
            "verdict": self.verdict,
            "what": self.what,
            "why": self.why,
            "do": self.do,
            "measures": {
                name: {"value": one.value, "unit": one.unit, "warn": one.warn, "crit": one.crit}
                for name, one in self.measures.items()
            },
        }


class Health(NamedTuple):
    """All findings about a broker or cluster, and the worst verdict."""

    verdict: Verdict
    checks: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain dicts and lists."""
        checks = [
            {"name": check.name, "verdict": str(check.verdict), "text": check.text, "figures": check.figures}
            for check in self.checks
        ]
        return {"verdict": str(self.verdict), "checks": checks}


def health_of(findings: Sequence[Finding]) -> Health:
    """Return findings with their worst verdict."""
    return Health(worst(findings), tuple(findings))


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict of all findings together: what could not be seen is worse than a warning."""
    return worst_of(finding.verdict for finding in findings)


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; OK of none."""
    return max(verdicts, key=_SEVERITY.index, default=Verdict.OK)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: -_SEVERITY.index(finding.verdict))


def judge(value: Number, warn: Number | None, crit: Number | None) -> Verdict:
    """Return what a value means that is bad when it is high; a bound of None is never reached."""
    if crit is not None and value >= crit:
        return Verdict.CRITICAL
    return Verdict.WARNING if warn is not None and value >= warn else Verdict.OK
