"""`shmq store repair`: writes everything that is derived again from the log, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from shmq.exit_code import ExitCode
from shmq.store.offline.restoration import DEFAULT_DELAY_LEVELS, Action, held_store, planned, restore_store
from shmq.store.proof.store import prove_store
from shmq.tools.command import Call, Command, dry_run_option, pass_call
from shmq.tools.store.place import STORE, store_root
from shmq.tools.store.verify_command import print_proof, proof_document

levels_option: Final = click.option(
    "--delay-levels",
    default=DEFAULT_DELAY_LEVELS,
    metavar="LEVELS",
    help="The broker's delay levels, if it has others than RocketMQ's.",
)


@click.command(cls=Command)
@click.argument("store", type=STORE)
@levels_option
@dry_run_option
@pass_call
def repair(call: Call, store: Path, delay_levels: str, dry_run: bool) -> int:
    """Write units, their checksums and the index again from the log; no broker may run.

    Damaged bytes of the log are copied to quarantine/, whole records are never touched. Exit status 1 if something
    still disagrees, or with --dry-run, if something disagrees now.
    """
    root = store_root(call, store)
    with held_store(root) as layout:
        proof = prove_store(root)
        if dry_run:
            actions = planned(layout, proof)
        else:
            actions = restore_store(layout, proof, delay_levels=delay_levels)
            proof = prove_store(root)
    if call.terminal.structured:
        document = {**proof_document(proof), "dry_run": dry_run, "actions": [vars(action) for action in actions]}
        call.terminal.document(document, rows=document["actions"])
    else:
        print_actions(call, actions, dry_run=dry_run)
        print_proof(call, proof)
    return ExitCode.NO if proof.findings.count else ExitCode.DONE


def print_actions(call: Call, actions: list[Action], *, dry_run: bool) -> None:
    """Tell people what was done, or would be."""
    for action in actions:
        call.terminal.line(f"  {'would ' if dry_run else ''}{action.what}: {action.where}")
