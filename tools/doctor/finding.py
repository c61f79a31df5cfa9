"""One result of one check, and how it is printed.

A finding that is no good news has a fix:

    [ok]   kernel 6.1, glibc 2.36, 2 processors
    [warn] logind RemoveIPC=yes and the segments' owner uid 1000 is a login user: logout deletes them
           fix: run as a system user (shmq systemd), or RemoveIPC=no in /etc/systemd/logind.conf
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["ok", "warn", "fail"]
VERDICTS: tuple[Verdict, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """What one check says.

    `check` is a stable name (`machine.clock`), `text` has cause and numbers, `fix` what to type, `figures` the raw
    numbers; `is_removable` says that `shmq doctor --fix` would deal with it.
    """

    check: str
    verdict: Verdict
    text: str
    fix: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    is_removable: bool = False

    def document(self) -> dict[str, Any]:
        """Return the finding as JSON carries it."""
        return {
            "check": self.check,
            "verdict": self.verdict,
            "text": self.text,
            "fix": self.fix,
            "figures": dict(self.figures),
        }


def ok(check: str, text: str, **figures: Any) -> Finding:
    """Return a finding that is as it should be."""
    return Finding(check, "ok", text, figures=figures)


def warn(check: str, text: str, fix: str, **figures: Any) -> Finding:
    """Return a finding that may become trouble."""
    return Finding(check, "warn", text, fix, figures)


def fail(check: str, text: str, fix: str, **figures: Any) -> Finding:
    """Return a finding that is trouble now."""
    return Finding(check, "fail", text, fix, figures)


def worst(findings: Iterable[Finding]) -> Verdict:
    """Return the worst verdict; ok of none."""
    return max((finding.verdict for finding in findings), key=VERDICTS.index, default="ok")
