"""`shmq spark reconcile`: what should be the same is compared; exit status 1 when it is not.

It knows the options and how a report looks to people; `reconcile` does the work.
"""

from __future__ import annotations

from typing import Any

import click

from shmq.spark.jobs.job_command import (
    check_outputs,
    finish,
    job_session,
    plot_option,
    run_options,
    source_of,
    source_options,
)
from shmq.tools.command import Call, Command, pass_call
from shmq.tools.exit_code import ExitCode
from shmq.tools.quantity import count_text
from shmq.tools.terminal import Column


@click.command(cls=Command)
@source_options
@click.option("--archive", metavar="DIR", help="Compare the store with this archive.")
@click.option(
    "--ledger", "ledgers", multiple=True, metavar="FILE", help="What producers were told: JSON lines or Parquet."
)
@click.option(
    "--block", type=click.IntRange(min=1), default=10_000, metavar="N", help="Messages summed up at once.  [10000]"
)
@click.option("--samples", type=click.IntRange(0, 10_000), default=20, metavar="N", help="Differences shown.  [20]")
@plot_option
@run_options
@pass_call
def reconcile(
    call: Call,
    /,
    dry_run: bool,
    report: str | None,
    plot: str | None,
    master: str | None,
    conf: tuple[str, ...],
    **given: Any,
) -> None:
    """Compare topics with themselves, an archive and a ledger: gaps, duplicates, what was lost or changed.

    Exit status 1: something differs.

    \b
    shmq spark reconcile --topic orders --archive /data/orders --ledger producer.jsonl
    """
    from shmq.spark.jobs import reconcile as job

    check_outputs(report, plot)
    settings = job.ReconcileSettings(
        source=source_of(call, given["topics"], given["topic_pattern"], given["options"]),
        archive=given["archive"],
        ledgers=given["ledgers"],
        block=given["block"],
        samples=given["samples"],
    )
    planned = job.plan_reconcile(settings)
    if dry_run:
        found: dict[str, Any] = {"dry_run": True, **planned}
        finish(
            call, found, report, lambda: call.terminal.say(f"would compare {count_text(found['messages'])} messages")
        )
        return
    with job_session(call, "reconcile", master, conf) as work:
        found = {"dry_run": False, **job.run_reconcile(work.spark, settings, told=work.told)}
    finish(call, found, report, lambda: _print(call, found), plot=plot)
    if found["differences"]:
        raise click.exceptions.Exit(ExitCode.NO)


def _print(call: Call, report: dict[str, Any]) -> None:
    rows = []
    for check in report["checks"]:
        kinds = check.get("kinds") or {}
        text = ", ".join(f"{count_text(count)} {name.replace('_', ' ')}" for name, count in sorted(kinds.items()))
        rows.append([check["check"], count_text(check["differences"]), text or "–"])
    call.terminal.table([Column("check"), Column("differences", right=True), Column("kinds")], rows)
    samples = [sample for check in report["checks"] for sample in check.get("samples", ())]
    if samples:
        places = [Column("topic"), Column("queue", right=True), Column("offset", right=True), Column("difference")]
        names = ("topic", "queue_id", "queue_offset", "kind")
        call.terminal.table(
            places, [["–" if row[name] is None else str(row[name]) for name in names] for row in samples]
        )
