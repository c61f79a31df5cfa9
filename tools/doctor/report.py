"""The findings as text: coloured lines for people, one document for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shmq.figures.quantity import plural, size_text
from shmq.figures.verdict import Finding, Verdict, worst
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import WORDS, document_of, text_of
from shmq.tools.doctor.fix import Removal
from shmq.tools.doctor.memory_left import REMOVABLE

ALIKE_MAX = 4  # findings of one check that are shown one by one
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def report(case: Case, findings: Sequence[Finding], removals: Sequence[Removal] = ()) -> Group:
    """Return the whole report, to be printed at any width."""
    table = Table.grid(padding=(0, 1), pad_edge=False)
    table.add_column(no_wrap=True, width=6)
    table.add_column(overflow="fold")
    for finding, others in together(findings):
        word = WORDS[finding.verdict]
        table.add_row(Text(f"[{word}]", _STYLES[word]), Text(text_of(finding)))
        if finding.do and finding.verdict is not Verdict.OK:
            table.add_row("", Text.assemble(("fix: ", "bold"), finding.do))
        if others:
            more = f"and {others} more of {finding.check}; all of them: shmq doctor --json"
            table.add_row(Text(f"[{word}]", _STYLES[word]), Text(more))
    for removal in removals:
        table.add_row(Text("[fix]", "cyan"), Text(_removal_text(removal)))
    return Group(Text(headline(case), "bold"), table)


def together(findings: Sequence[Finding]) -> Iterator[tuple[Finding, int]]:
    """Yield what is shown, and how many findings of its kind are not shown behind it: the rest of a long row."""
    counts = Counter((finding.check, finding.verdict) for finding in findings)
    shown: Counter[tuple[str, Verdict]] = Counter()
    for finding in findings:
        kind = finding.check, finding.verdict
        shown[kind] += 1
        if counts[kind] <= ALIKE_MAX or finding.verdict is Verdict.OK:
            yield finding, 0
        elif shown[kind] < ALIKE_MAX:
            yield finding, counts[kind] - shown[kind] if shown[kind] == ALIKE_MAX - 1 else 0


def headline(case: Case) -> str:
    """Return which broker this is about."""
    broker, keeper = case.snapshot.broker, case.snapshot.process("supervisor")
    state = "none runs here" if case.instance is None else "runs" if case.is_served else "is dead"
    pid = f"  pid {keeper.pid}" if keeper is not None and keeper.alive else ""
    tcp = f"  {broker.tcp}" if broker.tcp else ""
    return f"shmq {broker.name}  {state}{pid}{tcp}  {case.place.runtime_dir}"


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line."""
    troubles = [finding for finding in findings if finding.verdict is not Verdict.OK]
    if not troubles:
        return f"nothing found in {plural(len(findings), 'check')}"
    removable = (
        "; shmq doctor --fix removes what is dead" if any(finding.check == REMOVABLE for finding in troubles) else ""
    )
    return f"{plural(len(troubles), 'finding')} – report for an issue: shmq doctor --bundle{removable}"


def _removal_text(removal: Removal) -> str:
    if removal.refused:
        return f"{removal.generation} stays: {removal.refused}"
    return f"removed {removal.generation}: {plural(len(removal.removed), 'name')}, {size_text(removal.bytes)}"


def document(
    case: Case, findings: Sequence[Finding], removals: Sequence[Removal] = (), bundle: str | None = None
) -> dict[str, Any]:
    """Return the report as JSON carries it."""
    broker = case.snapshot.broker
    return {
        "broker": broker.name,
        "url": case.place.url,
        "served": case.is_served,
        "verdict": WORDS[worst(findings)],
        "findings": [document_of(finding) for finding in findings],
        "removals": [removal.document() for removal in removals],
        "bundle": bundle,
    }
