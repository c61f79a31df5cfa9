"""`shmq spark lag`: how far groups are behind, and how long messages take.

It knows the options and how a report looks to people; `lag` does the work.
"""

from __future__ import annotations

from typing import Any

import click

from shmq.errors import UsageError
from shmq.spark.jobs.job_command import (
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
@click.option("--group", help="Only this consumer group.")
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
    """Show how far groups are behind over time, and percentiles of born to stored to consumed."""
    from shmq.spark.jobs import lag as job

    if given["bucket"] < 1:
        raise UsageError("--bucket is below a second", hint="--bucket 60s")
    settings = job.LagSettings(
        source=source_of(call, given["topics"], given["topic_pattern"], given["options"]),
        group=given["group"],
        run_seconds=given["seconds"],
        every_seconds=given["every"],
        bucket_seconds=round(given["bucket"]),
    )
    if dry_run:
        found: dict[str, Any] = {"dry_run": True, **job.plan_lag(settings)}
        finish(call, found, report, lambda: call.terminal.say(f"would look at {', '.join(found['topics'])}"))
        return
    with ended_by_signal() as stop, job_session(call, "lag", master, conf) as spark:
        found = {"dry_run": False, **job.run_lag(spark, settings, told=call.terminal.say, stop=stop)}
    finish(call, found, report, lambda: _print(call, found), plot=plot)
    if _is_late(found, given["max_lag"], given["max_age"]):
        raise click.exceptions.Exit(ExitCode.NO)


def _is_late(report: dict[str, Any], lag_max: int | None, age_max: float | None) -> bool:
    return any(
        (lag_max is not None and row["lag"] > lag_max) or (age_max is not None and row["age_ms"] > age_max * 1000)
        for row in report["groups"]
    )


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
