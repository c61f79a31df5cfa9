"""The command `shmq spark reconcile`: its options, and the report as people read it; `jobs/reconcile.py` does the work.

Exit status 1 says that something differs.
"""

from __future__ import annotations

from typing import Any

import click

from shmq.exit_code import ExitCode
from shmq.figures.quantity import count_text
from shmq.spark.jobs.commands.job import Job, job_command, source_options
from shmq.tools.command import Call, Command
from shmq.tools.terminal.output import Column


@click.command(cls=Command)
@source_options
@click.option("--archive", metavar="DIR", help="Compare the store with this archive.")
@click.option(
    "--ledger", "ledgers", multiple=True, metavar="FILE", help="What producers got acknowledged: JSON lines or Parquet."
)
@click.option(
    "--block", type=click.IntRange(min=1), default=10_000, metavar="N", help="Messages summed up at once.  [10000]"
)
@click.option("--samples", type=click.IntRange(0, 10_000), default=20, metavar="N", help="Differences shown.  [20]")
@job_command
def reconcile(job: Job, /, **given: Any) -> None:
    """Compare topics with themselves, an archive and a ledger: gaps, duplicates, what was lost or changed.

    Exit status 1: something differs.

    \b
    shmq spark reconcile --topic orders --archive /data/orders --ledger producer.jsonl
    """
    from shmq.spark.jobs.reconcile import ReconcileSettings, plan_reconcile, run_reconcile

    settings = ReconcileSettings(source=job.source(given), **given)
    planned = plan_reconcile(settings)
    if job.dry_run:
        text = f"would compare {count_text(planned['messages'])} messages"
        job.finish({"dry_run": True, **planned}, lambda: job.call.terminal.say(text), drawn=False)
        return
    with job.session() as work:
        found = {"dry_run": False, **run_reconcile(work.spark, settings, told=work.told)}
    job.finish(found, lambda: _print(job.call, found))
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
