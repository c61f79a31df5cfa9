"""The command `shmq spark replay`: its options, and the report as people read it; `jobs/replay.py` does the work."""

from __future__ import annotations

import re
from typing import Any

import click

from shmq.errors import UsageError
from shmq.figures.quantity import count_text
from shmq.spark.jobs.commands.job import Job, job_command, sent_sentence, source_options
from shmq.tools.command import Call, Command, yes_option
from shmq.tools.terminal.output import Column

_NAME = re.compile(r"[\w.-]{1,64}")


@click.command(cls=Command)
@source_options
@click.option("--from", "archive", metavar="DIR", help="An archive, instead of the topics themselves.")
@click.option("--to", "target", required=True, metavar="TOPIC", help="Where to.")
@click.option("--run", required=True, metavar="NAME", help="The same name goes on where a killed run was.")
@click.option("--rate", type=click.FloatRange(min=0), default=0.0, metavar="N", help="At most N messages a second.")
@click.option(
    "--order", type=click.Choice(["queue", "key"]), default="queue", show_default=True, help="What stays in order."
)
@click.option("--since", metavar="TIME", help="Stored at or after it: milliseconds or ISO 8601.")
@click.option("--until", metavar="TIME", help="Stored before it.")
@click.option("--where", metavar="SQL", help="Over the columns: \"tags = 'paid' AND queue_offset < 100\".")
@yes_option
@job_command
def replay(job: Job, /, **given: Any) -> None:
    """Send messages of an archive or of topics to a topic again, each queue in order, each message once.

    Without --yes it tells what it would send.

    \b
    shmq spark replay --from /data/orders --to orders-again --run july --since 2026-07-01 --rate 5000 --yes
    """
    from shmq.spark.jobs.replay import ReplaySettings, check_replay, plan_replay, run_replay

    if not _NAME.fullmatch(given["run"]):
        raise UsageError(f"--run {given['run']!r} is no name", hint="up to 64 letters, digits, dots, dashes")
    is_confirmed, same_queue = given.pop("yes"), given.pop("order") == "queue"
    source = job.source(given, has_topics=given["archive"] is None)  # an archive knows its topics
    settings = ReplaySettings(source=source, same_queue=same_queue, **given)
    check_replay(settings)
    with job.session() as work:
        if is_confirmed and not job.dry_run:
            found = run_replay(work.spark, settings, told=work.told)
        else:
            found = plan_replay(work.spark, settings)
    job.finish(found, lambda: _print(job.call, found))
    if not job.dry_run and not is_confirmed:
        raise UsageError("nothing was sent", hint="run it again with --yes, or with --dry-run")


def _print(call: Call, report: dict[str, Any]) -> None:
    names = ("messages" if report["dry_run"] else "sent", "in_already", "loops")
    titles = ("to send" if report["dry_run"] else "sent", "sent before", "came from there")
    call.terminal.table(
        [Column("topic"), Column("queue", right=True), *(Column(title, right=True) for title in titles)],
        [[row["topic"], str(row["queue_id"]), *(count_text(row[name]) for name in names)] for row in report["queues"]],
    )
    took = f", {report['seconds']:.1f} s" if not report["dry_run"] else ""
    call.terminal.say(sent_sentence(report, report["target"]) + took)
