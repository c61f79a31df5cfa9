"""One thing that was examined, and the verdict on it.

    verdict     exit status     as Nagios means it
    OK          0               nothing to do
    WARNING     1               it works, and should be looked at
    CRITICAL    2               it does not do what it is there for, or soon will not
    UNKNOWN     3               it could not be looked at

Rule: whatever is not OK says why, and what to type next.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

Number = int | float


class Verdict(IntEnum):
    """The exit status of a check."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_SEVERITY = (Verdict.OK, Verdict.WARNING, Verdict.UNKNOWN, Verdict.CRITICAL)


class Measure(NamedTuple):
    """One number as monitoring keeps it; `unit` is "", "B", "s", "%" or "c" (a counter)."""

    value: Number
    unit: str = ""
    warn: Number | None = None
    crit: Number | None = None


class Finding(NamedTuple):
    """What one check found about one object.

    Attributes:
        check: what was looked at: daemon, store, lock, claim, process, segments, memory, disk, log, recovery, group …
        subject: which one of them: a role, a path, a group's name; "" where there is only one.
        what: what is the case, with its numbers.
        why: what caused it, or what follows from it; "" for OK.
        do: the next command, or the next step; "" for OK.
        measures: the numbers by name.
    """

    check: str
    verdict: Verdict
    what: str
    subject: str = ""
    why: str = ""
    do: str = ""
    measures: Mapping[str, Measure] = MappingProxyType({})

    def document(self) -> dict[str, Any]:
        """Return the same as plain values, as JSON carries it."""
        return {
            "check": self.check,
            "subject": self.subject,
            "verdict": self.verdict.name,
            "what": self.what,
            "why": self.why,
            "do": self.do,
            "measures": {
                name: {"value": one.value, "unit": one.unit, "warn": one.warn, "crit": one.crit}
                for name, one in self.measures.items()
            },
        }


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict of all findings together: what could not be seen is worse than a warning."""
    return max((finding.verdict for finding in findings), key=_SEVERITY.index, default=Verdict.OK)


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings, the worst first, otherwise in their order."""
    return sorted(findings, key=lambda finding: -_SEVERITY.index(finding.verdict))


def judge(value: Number, warn: Number | None, crit: Number | None) -> Verdict:
    """Return what a value means that is bad when it is high; a bound of None is never reached."""
    if crit is not None and value >= crit:
        return Verdict.CRITICAL
    return Verdict.WARNING if warn is not None and value >= warn else Verdict.OK
