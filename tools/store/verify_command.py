"""`shmq store verify`: proves the parts of a store against each other, and prints one line for each disagreement."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural, size_text
from shmq.store.proof.findings import Finding
from shmq.store.proof.store import Proof, prove_store
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.store.place import store_argument, store_root


@click.command(cls=Command)
@store_argument
@pass_call
def verify(call: Call, store: Path | None) -> int:
    """Prove log, units, index, offsets, transactions and delayed messages against each other.

    Reads only; a broker may run. Without STORE: that of the running broker. Exit status 1 if something disagrees.
    """
    proof = prove_store(store_root(call, store, with_faults=True))
    if call.terminal.structured:
        document = proof_document(proof)
        call.terminal.document(document, rows=document["disagreements"])
    else:
        print_proof(call, proof)
    return ExitCode.NO if proof.findings.count else ExitCode.DONE


def proof_document(proof: Proof) -> dict[str, Any]:
    """Return what programs read."""
    return {
        "store": str(proof.root),
        "settled": proof.settled,
        "log_begin": proof.log_begin,
        "log_end": proof.log_end,
        "durable_end": proof.durable_end,
        "records": proof.records,
        "queues": proof.queues,
        "units": proof.units,
        "index_entries": proof.index_entries,
        "offsets": proof.offsets,
        "open_transactions": proof.open_transactions,
        "counts": proof.findings.counts,
        "disagreements": [_line(proof, finding) for finding in proof.findings.disagreements],
        "notes": [_said(finding) for finding in proof.findings.notes],
    }


def print_proof(call: Call, proof: Proof) -> None:
    """Tell people."""
    findings = proof.findings
    for finding in findings.disagreements:
        call.terminal.line(
            f"  ! {finding.part:<12} {finding.where}: {finding.reason}; "
            f"{'do' if finding.cure else 'type'}: {what_to_type(proof.root, finding)}"
        )
    for finding in findings.notes:
        call.terminal.line(f"    {finding.part:<12} {finding.where}: {finding.reason}")
    if findings.count > len(findings.disagreements):
        call.terminal.line(f"  ! and {findings.count - len(findings.disagreements)} more")
    seen = [
        f"{size_text(proof.log_end - proof.log_begin)} of log",
        plural(proof.records, "record"),
        plural(proof.units, "unit"),
        f"{proof.index_entries} index entries",
        plural(proof.offsets, "offset"),
        plural(proof.open_transactions, "open transaction"),
    ]
    state = "" if proof.settled else "; not stopped in order, so what is not marked as on disk was left out"
    verdict = plural(findings.count, "disagreement") if findings.count else "everything agrees"
    call.terminal.line(f"{verdict}: {', '.join(seen)}{state}")


def what_to_type(root: Path, finding: Finding) -> str:
    """Return the command that mends it, or shows more."""
    store = shlex.quote(str(root))
    if finding.cure:
        return finding.cure
    if finding.part in ("transactions", "timers") and finding.where.startswith("byte "):
        return f"shmq store inspect {store} --position {finding.where.removeprefix('byte ')}"
    return f"shmq store repair {store}"


def _line(proof: Proof, finding: Finding) -> dict[str, str]:
    return {**_said(finding), "type": what_to_type(proof.root, finding)}


def _said(finding: Finding) -> dict[str, str]:
    return {"part": finding.part, "where": finding.where, "reason": finding.reason}
