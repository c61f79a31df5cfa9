"""The command `shmq spark lag`: its options, and the report as people read it; `jobs/lag.py` does the work."""

from __future__ import annotations

from typing import Any

import click

from shmq.errors import UsageError
from shmq.exit_code import ExitCode
from shmq.figures.quantity import count_text
from shmq.spark.jobs.commands.job import Job, ended_by_signal, job_command, source_options
from shmq.tools.command import Call, Command, Duration
from shmq.tools.terminal.output import Column


@click.command(cls=Command)
@source_options
@click.option("--group", metavar="NAME", help="Only this consumer group.")
@click.option(
    "--for", "run_seconds", type=Duration(), default=0.0, metavar="TIME", help="Look again and again for TIME."
)
@click.option(
    "--every", "every_seconds", type=Duration(), default=2.0, metavar="TIME", help="Pause between two looks.  [2s]"
)
@click.option("--bucket", type=Duration(), default=60.0, metavar="TIME", help="Span of one row of percentiles.  [60s]")
@click.option("--max-lag", type=click.IntRange(min=0), metavar="N", help="Exit 1 if a queue is further behind.")
@click.option("--max-age", type=Duration(), metavar="TIME", help="Exit 1 if a message waits for longer.")
@job_command
def lag(job: Job, /, **given: Any) -> None:
    """Show how far groups are behind over time, and percentiles of born to stored to consumed.

    Exit status 1: a queue is later than --max-lag or --max-age allows.

    \b
    shmq spark lag --topic orders --group billing --for 60s --every 1s --max-age 30s --plot lag.png
    """
    from shmq.spark.jobs.lag import LagSettings, late, plan_lag, run_lag

    limits = given.pop("max_lag"), given.pop("max_age")
    bucket = given.pop("bucket")
    if bucket < 1:
        raise UsageError("--bucket is below a second", hint="--bucket 60s")
    settings = LagSettings(source=job.source(given), bucket_seconds=round(bucket), **given)
    planned = plan_lag(settings)
    if job.dry_run:
        found: dict[str, Any] = {"dry_run": True, **planned}
        topics = ", ".join(planned["topics"])
        text = f"would look at {topics}, {planned['group'] or 'all groups'}, for {planned['run_seconds']:g} s"
        job.finish(found, lambda: job.call.terminal.say(text), drawn=False)
        return
    with ended_by_signal() as stop, job.session() as work:
        looked = run_lag(work.spark, settings, told=work.told, stop=stop)
    behind = late(looked["groups"], *limits)
    found = {"dry_run": False, **looked, "late": behind}
    job.finish(found, lambda: _print(job.call, found))
    for text in behind:
        job.call.terminal.warn(text)
    if behind:
        raise click.exceptions.Exit(ExitCode.NO)


def _print(call: Call, report: dict[str, Any]) -> None:
    right = [Column(name, right=True) for name in ("queue", "behind", "oldest ms", "drained/s")]
    call.terminal.table(
        [Column("group"), Column("topic"), *right, Column("stuck")],
        [
            [
                row["group"],
                row["topic"],
                str(row["queue_id"]),
                count_text(row["lag"]),
                count_text(row["age_ms"]),
                "–" if row["drained_per_second"] is None else f"{row['drained_per_second']:.1f}",
                "yes" if row["is_stuck"] else "no",
            ]
            for row in report["groups"]
        ],
    )
    figures = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms")
    rows = [("stored", "", row) for row in report["born_to_stored"] if row["from_ms"] is None]
    rows += [(row["step"], row["group"], row) for row in report["stored_to_consumed"]]
    call.terminal.table(
        [Column("topic"), Column("step"), Column("group"), *(Column(name[:-3], right=True) for name in figures)],
        [[row["topic"], step, group, *(count_text(row[name]) for name in figures)] for step, group, row in rows],
    )
