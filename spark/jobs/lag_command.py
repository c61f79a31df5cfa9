"""`shmq spark lag`: how far groups are behind, and how long messages take.

It knows the options and how a report looks to people; `lag` does the work.
"""

from __future__ import annotations

from typing import Any

import click

from shmq.errors import UsageError
from shmq.spark.jobs.job_command import (
    check_outputs,
    ended_by_signal,
    finish,
    job_session,
    plot_option,
    run_options,
    source_of,
    source_options,
)
from shmq.tools.command import Call, Command, Duration, pass_call
from shmq.tools.exit_code import ExitCode
from shmq.tools.quantity import count_text
from shmq.tools.terminal import Column


@click.command(cls=Command)
@source_options
@click.option("--group", metavar="NAME", help="Only this consumer group.")
@click.option("--for", "seconds", type=Duration(), default=0.0, metavar="TIME", help="Look again and again for TIME.")
@click.option("--every", type=Duration(), default=2.0, metavar="TIME", help="Pause between two looks.  [2s]")
@click.option("--bucket", type=Duration(), default=60.0, metavar="TIME", help="Span of one row of percentiles.  [60s]")
@click.option("--max-lag", type=click.IntRange(min=0), metavar="N", help="Exit 1 if a queue is further behind.")
@click.option("--max-age", type=Duration(), metavar="TIME", help="Exit 1 if a message waits for longer.")
@plot_option
@run_options
@pass_call
def lag(
    call: Call,
    /,
    dry_run: bool,
    report: str | None,
    plot: str | None,
    master: str | None,
    conf: tuple[str, ...],
    **given: Any,
) -> None:
    """Show how far groups are behind over time, and percentiles of born to stored to consumed.

    Exit status 1: a queue is later than --max-lag or --max-age allows.

    \b
    shmq spark lag --topic orders --group billing --for 60s --every 1s --max-age 30s --plot lag.png
    """
    from shmq.spark.jobs import lag as job

    check_outputs(report, plot)
    if given["bucket"] < 1:
        raise UsageError("--bucket is below a second", hint="--bucket 60s")
    settings = job.LagSettings(
        source=source_of(call, given["topics"], given["topic_pattern"], given["options"]),
        group=given["group"],
        run_seconds=given["seconds"],
        every_seconds=given["every"],
        bucket_seconds=round(given["bucket"]),
    )
    planned = job.plan_lag(settings)
    if dry_run:
        found: dict[str, Any] = {"dry_run": True, **planned}
        topics = ", ".join(planned["topics"])
        text = f"would look at {topics}, {planned['group'] or 'all groups'}, for {planned['run_seconds']:g} s"
        finish(call, found, report, lambda: call.terminal.say(text))
        return
    with ended_by_signal() as stop, job_session(call, "lag", master, conf) as work:
        looked = job.run_lag(work.spark, settings, told=work.told, stop=stop)
    late = job.late(looked["groups"], given["max_lag"], given["max_age"])
    found = {"dry_run": False, **looked, "late": late}
    finish(call, found, report, lambda: _print(call, found), plot=plot)
    for text in late:
        call.terminal.warn(text)
    if late:
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
