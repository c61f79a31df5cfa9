"""All findings of one snapshot, printed as a table, one line for Nagios, JSON, or for Prometheus.

The table, and below it the line for Nagios:

    OK  broker default  pid 4711  up 3d 04h
      ✓ store             writable, 812 MiB in 2 files, 1,204,113 messages since its start
      ! group billing     lag 12,881, ready 12,881, 2 members, oldest 4.1 s (bound 10,000)
          why  its members are slower than the producers
          do   start more members, or make the handler faster

    WARNING group billing: lag 12,881, … | flush_behind=0B;67108864;1073741824 ready.billing=12881;10000;100000
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmq.figures.quantity import count_text, size_text
from shmq.figures.snapshot import Snapshot
from shmq.figures.verdict import Finding, Measure, Verdict, by_severity, worst
from shmq.tools.terminal.width import padded, width_of

FORMATS = ("table", "json", "nagios", "prometheus")
_SIGNS = {Verdict.OK: "✓", Verdict.WARNING: "!", Verdict.CRITICAL: "✗", Verdict.UNKNOWN: "?"}
_COLORS = {Verdict.OK: "32", Verdict.WARNING: "33", Verdict.CRITICAL: "1;31", Verdict.UNKNOWN: "35"}
_NAGIOS_SHOWN_MAX = 3
_GROUPS_SHOWN_MAX = 5  # healthy ones, each on a line of its own


class Report:
    """The report of a snapshot; `verdict` is the exit status."""

    def __init__(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        self.snapshot = snapshot
        self.findings = tuple(findings)
        self.verdict = worst(findings)
        self.everything = False  # whether the table and Nagios get each group, and those of the broker itself, too

    def document(self, *, parts: bool = True) -> dict[str, Any]:
        """Return the JSON document; with its parts the whole snapshot but queues and topics."""
        document: dict[str, Any] = {
            "verdict": self.verdict,
            "exit": self.verdict.exit_status,
            "findings": [finding.document() for finding in by_severity(self.findings)],
        }
        if parts:
            whole = self.snapshot.document()
            del whole["topics"]
            for group in whole["groups"]:
                del group["queues"]
            document |= whole
        return document

    def lines(self, *, colored: bool = False) -> list[str]:
        """Return the table for people, the worst first."""
        broker = self.snapshot.broker
        supervisor = self.snapshot.process("supervisor")
        pid = f"  pid {supervisor.pid}" if supervisor else ""
        where = f"  {broker.tcp}" if broker.tcp else ""
        lines = [f"{_painted(self.verdict.name, self.verdict, colored)}  broker {broker.name}{pid}{where}"]
        named = [(finding, finding.name) for finding in by_severity(self._told())]
        named += [(finding, finding.check) for finding in _deep_figures(self.snapshot)]
        width = max((min(width_of(name), 32) for _, name in named), default=0)
        for finding, name in named:
            sign = _painted(_SIGNS[finding.verdict], finding.verdict, colored)
            lines.append(f"  {sign} {padded(name, width)}  {finding.what}")
            if finding.why:
                lines.append(f"      why  {finding.why}")
            if finding.do:
                lines.append(f"      do   {finding.do}")
        return lines

    def _told(self) -> list[Finding]:
        """The findings of the table: many groups that are well take one line together."""
        if self.everything:
            return list(self.findings)
        told = [finding for finding in self.findings if not _is_of_system(finding)]
        well = [finding for finding in told if finding.check == "group" and finding.verdict is Verdict.OK]
        if len(well) <= _GROUPS_SHOWN_MAX:
            return told
        lag, ready = (sum(int(finding.measures[name].value) for finding in well) for name in ("lag", "ready"))
        what = f"{len(well)} groups are well: lag {count_text(lag)}, ready {count_text(ready)} in all (-a lists them)"
        return [finding for finding in told if finding not in well] + [Finding("groups", Verdict.OK, what)]

    def nagios(self) -> str:
        """Return one line of text and performance data."""
        bad = [finding for finding in by_severity(self.findings) if finding.verdict is not Verdict.OK]
        shown = [
            f"{finding.name}: {finding.what}{f' ({finding.why})' * bool(finding.why)}"
            for finding in bad[:_NAGIOS_SHOWN_MAX]
        ]
        if len(bad) > _NAGIOS_SHOWN_MAX:
            shown.append(f"and {len(bad) - _NAGIOS_SHOWN_MAX} more")
        text = "; ".join(shown) or f"broker {self.snapshot.broker.name}"
        data = " ".join(_performance(name, one) for name, one in self._measures())
        return f"{self.verdict.name} {text}".replace("|", "/") + (f" | {data}" if data else "")

    def _measures(self) -> list[tuple[str, Measure]]:
        """Every measure once: those of groups with the group's name."""
        found: dict[str, Measure] = {}
        for finding in self.findings:
            if _is_of_system(finding) and not self.everything:
                continue
            for name, one in finding.measures.items():
                found.setdefault(f"{name}.{finding.subject}" if finding.check in ("group", "topic") else name, one)
        return list(found.items())

    def prometheus(self) -> str:
        """Return the verdicts and measures in Prometheus' text format."""
        lines = [
            "# HELP shmq_health_status 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.",
            "# TYPE shmq_health_status gauge",
            f"shmq_health_status{{{_labels(check='all', subject='')}}} {self.verdict.exit_status}",
        ]
        grouped: dict[tuple[str, str], list[Finding]] = {}
        for finding in self.findings:
            grouped.setdefault((finding.check, finding.subject), []).append(finding)
        for (check, subject), findings in grouped.items():
            lines.append(f"shmq_health_status{{{_labels(check=check, subject=subject)}}} {worst(findings).exit_status}")
        lines += ["# HELP shmq_health_measure What the checks looked at.", "# TYPE shmq_health_measure gauge"]
        seen = set()
        for finding in self.findings:
            for name, one in finding.measures.items():
                labels = _labels(check=finding.check, subject=finding.subject, name=name)
                if labels not in seen:
                    seen.add(labels)
                    lines.append(f"shmq_health_measure{{{labels}}} {one.value}")
        return "\n".join(lines) + "\n"


def _is_of_system(finding: Finding) -> bool:
    """Whether it is about a group of the broker's own, and good news."""
    if finding.check != "group" or finding.verdict is not Verdict.OK:
        return False
    from shmq.message import is_system_group  # a fast check judges no groups, and need not load this

    return is_system_group(finding.subject)


def _deep_figures(snapshot: Snapshot) -> list[Finding]:
    """The figures of a deep look: the memory of each process, and how much of the log is in the page cache."""
    lines = []
    for process in snapshot.processes:
        if process.uss_bytes is not None and process.pss_bytes is not None:
            what = (
                f"pid {process.pid} uses {size_text(process.uss_bytes)} alone, {size_text(process.pss_bytes)} with its "
                f"part of what is shared, {count_text(process.mappings or 0)} mappings"
            )
            lines.append(Finding(f"memory of {process.role}", Verdict.OK, what))
    log = snapshot.log
    if log is not None and log.resident_bytes is not None and log.examined_bytes:
        what = f"{size_text(log.resident_bytes)} of {size_text(log.examined_bytes)} are in the page cache"
        lines.append(Finding("memory of the log", Verdict.OK, what))
    return lines


def _painted(text: str, verdict: Verdict, colored: bool) -> str:
    return f"\x1b[{_COLORS[verdict]}m{text}\x1b[0m" if colored else text


def _performance(name: str, one: Measure) -> str:
    label = "".join(character if character.isalnum() or character in "._-" else "_" for character in name)
    bounds = [
        f"{bound:g}" if isinstance(bound, float) else str(bound) for bound in (one.warn, one.crit) if bound is not None
    ]
    if one.warn is None and one.crit is not None:
        bounds.insert(0, "")
    return ";".join([f"{label}={one.value}{one.unit}", *bounds])


def _labels(**labels: str) -> str:
    quoted = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return ",".join(f'{name}="{value}"' for name, value in quoted.items())
