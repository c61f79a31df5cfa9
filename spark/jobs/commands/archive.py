"""The command `shmq spark archive`: its options, and the report as people read it; `jobs/archive.py` does the work."""

from __future__ import annotations

from typing import Any

import click

from shmq.errors import UsageError
from shmq.figures.quantity import count_text, size_text
from shmq.spark.jobs.commands.job import Job, ended_by_signal, job_command, source_options
from shmq.tools.command import Call, Command, Duration, Size
from shmq.tools.terminal.output import Column


@click.command(cls=Command)
@source_options
@click.option("--to", "path", required=True, metavar="DIR", help="The archive: a directory driver and workers share.")
@click.option(
    "--partition", "partition_by", metavar="NAMES", help="Of topic, broker, date, hour, queue_id.  [topic,date]"
)
@click.option("--columns", metavar="NAMES", help="Of the messages.  [all that a replay needs]")
@click.option(
    "--file-size",
    "file_bytes",
    type=Size(),
    default=256 << 20,
    metavar="SIZE",
    help="Of a file before compression.  [256m]",
)
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "lz4", "gzip", "none"]), default="zstd", show_default=True
)
@click.option("--checkpoint", metavar="DIR", help="Spark's checkpoint.  [_checkpoint in the archive]")
@click.option(
    "--every", "every_seconds", type=Duration(), metavar="TIME", help="Go on, a batch every TIME, until Ctrl-C."
)
@click.option("--for", "run_seconds", type=Duration(), metavar="TIME", help="With --every: end after TIME.")
@click.option("--allow-loss", is_flag=True, help="Pass over messages that retention deleted; the report counts them.")
@job_command
def archive(job: Job, /, **given: Any) -> None:
    """Write topics to a Delta table, every message once. It needs pip install 'shmq[delta]'.

    Run it again to archive what came since; kill it whenever you like. Exit status 1: messages were gone before they
    could be archived.

    \b
    shmq spark archive --topic orders --to /data/orders
    shmq spark archive --topic-pattern 'orders-.*' --to /data/orders --every 30s
    """
    _check(given)
    source = job.source(given)
    if given.pop("allow_loss"):
        source["failOnDataLoss"] = "false"
    from shmq.spark.jobs.archive import ArchiveSettings, plan_archive, run_archive

    for name in ("columns", "partition_by"):
        text = given.pop(name)
        if text is not None:
            given[name] = tuple(part.strip() for part in text.split(",") if part.strip())
    settings = ArchiveSettings(source=source, **given)
    if job.dry_run:
        found = plan_archive(settings)
    else:
        plan_archive(settings)  # what cannot be is said before Spark starts
        with ended_by_signal() as stop, job.session() as work:
            found = run_archive(work.spark, settings, told=work.told, stop=stop)
    job.finish(found, lambda: _print(job.call, found))


def _check(given: dict[str, Any]) -> None:
    """Refuse options that say nothing together."""
    if given["run_seconds"] is not None and given["every_seconds"] is None:
        raise UsageError("--for ends a run that goes on, and this one ends by itself", hint="--every 30s --for 1h")
    if given["every_seconds"] is not None and given["every_seconds"] <= 0:
        raise UsageError("--every 0 is no time to wait", hint="--every 30s")
    if given["file_bytes"] <= 0:
        raise UsageError("--file-size 0 holds no message", hint="--file-size 256m")


def _print(call: Call, report: dict[str, Any]) -> None:
    columns = [Column("topic"), *(Column(name, right=True) for name in ("queue", "archived until", "behind"))]
    call.terminal.table(
        columns,
        [
            [
                row["topic"],
                str(row["queue_id"]),
                "–" if row["archived_until"] is None else count_text(row["archived_until"]),
                count_text(row["behind"]),
            ]
            for row in report["queues"]
        ],
    )
    if report["dry_run"]:
        call.terminal.say(f"would archive {count_text(report['messages'])} messages to {report['path']}")
        return
    size = f"{size_text(report['body_bytes'])} of bodies as {size_text(report['file_bytes'])}"
    call.terminal.say(
        f"archived {count_text(report['messages'])} messages, {size} in {count_text(report['files'])} files, "
        f"{report['seconds']:.1f} s"
    )
