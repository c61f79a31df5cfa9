"""`shmq store import`: takes over the store of a stock RocketMQ broker, as a copy or where it is."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from shmq.errors import CorruptionError, UsageError
from shmq.exit_code import ExitCode
from shmq.figures.quantity import size_text
from shmq.store.offline.restoration import Action, held_store, planned, restore_store
from shmq.store.offline.takeover import check_takeable, copy_store
from shmq.store.proof.store import Proof, prove_store
from shmq.tools.command import Call, Command, dry_run_option, pass_call
from shmq.tools.store.place import STORE, store_root
from shmq.tools.store.repair_command import levels_option, print_actions
from shmq.tools.store.verify_command import print_proof, proof_document


@click.command("import", cls=Command)
@click.argument("source", type=STORE)
@click.option("--to", "target", type=STORE, metavar="STORE", help="The new store; SOURCE stays as it is.")
@click.option("--in-place", is_flag=True, help="Make SOURCE itself the store, without a copy.")
@levels_option
@dry_run_option
@pass_call
def import_store(
    call: Call, source: Path, target: Path | None, in_place: bool, delay_levels: str, dry_run: bool
) -> int:
    """Take over the store directory of a RocketMQ 4.9 or 5 broker that is stopped.

    Topics, groups, offsets, messages, delayed and half messages, and the index come along; units are written again from
    the log. Afterwards everything is proven. Exit status 1 if something disagrees.
    """
    if (target is None) != in_place:
        raise UsageError("say where the store shall be", hint="--to DIRECTORY, or --in-place")
    root = store_root(call, source)
    check_takeable(root)
    actions = []
    with held_store(root) as layout:
        before = proof = prove_store(root)
        if dry_run:
            actions = planned(layout, proof)
        elif in_place:
            actions = restore_store(layout, proof, delay_levels=delay_levels)
            proof = prove_store(root)
        elif target is not None:
            copied = copy_store(root, target)
            actions.append(Action("copied", f"{size_text(copied)} from {root}"))
    if target is not None and not dry_run:
        with held_store(target) as layout:
            actions += restore_store(layout, prove_store(target), delay_levels=delay_levels)
            proof = prove_store(target)
    if proof.records != before.records:
        raise CorruptionError(
            proof.root,
            0,
            f"{before.records} records were there, {proof.records} are here",
            hint="keep SOURCE; ask for help",
        )
    _tell(call, actions, proof, dry_run=dry_run)
    return ExitCode.NO if proof.findings.count else ExitCode.DONE


def _tell(call: Call, actions: list[Action], proof: Proof, *, dry_run: bool) -> None:
    serve = f"shmq serve --store {shlex.quote(str(proof.root))} --file-size {proof.file_bytes}"
    if call.terminal.structured:
        document = {**proof_document(proof), "dry_run": dry_run, "actions": [vars(action) for action in actions]}
        call.terminal.document({**document, "serve": serve}, rows=document["actions"])
        return
    print_actions(call, actions, dry_run=dry_run)
    print_proof(call, proof)
    if not dry_run:
        call.terminal.line(f"start it with: {serve}")
