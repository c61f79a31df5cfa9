"""The command `shmq spark dlq`: its options, and the report as people read it; `jobs/dlq.py` does the work."""

from __future__ import annotations

from typing import Any

import click

from shmq.errors import UsageError
from shmq.figures.quantity import age_text, count_text
from shmq.spark.jobs.commands.job import Job, job_command, option_option, sent_sentence
from shmq.tools.command import Call, Command, yes_option
from shmq.tools.terminal.output import Column


@click.command(cls=Command)
@option_option
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only of this consumer group; may be repeated.")
@click.option(
    "--where", metavar="SQL", help="Over cause, origin, tags, attempts, age_seconds and the messages' columns."
)
@click.option(
    "--samples", type=click.IntRange(0, 1000), default=5, metavar="N", help="Letters shown of each cause.  [5]"
)
@click.option("--redrive", is_flag=True, help="Send them to the topics they came from, each once.")
@click.option("--to", "target", metavar="TOPIC", help="With --redrive: all to this topic instead.")
@click.option("--run", default="redrive", metavar="NAME", help="Another name sends letters again that were sent.")
@click.option("--rate", type=click.FloatRange(min=0), default=0.0, metavar="N", help="At most N messages a second.")
@yes_option
@job_command
def dlq(job: Job, /, **given: Any) -> None:
    """Sort dead letters by cause, origin, tag and tries, and send those that are chosen again.

    Without --redrive nothing is sent, and with it only with --yes.

    \b
    shmq spark dlq --group billing --where "cause LIKE '%card%' AND age_seconds < 86400" --redrive --yes
    """
    redrive = given.pop("redrive")
    if not redrive:
        for name, said in (("target", "--to"), ("yes", "--yes"), ("rate", "--rate")):
            if given[name]:
                raise UsageError(f"{said} is of a re-drive", hint="add --redrive")
    from shmq.spark.jobs.dlq import DlqSettings, check_dlq, run_dlq

    dry = not given.pop("yes") or job.dry_run
    settings = DlqSettings(source=job.source(given, has_topics=False), **given)
    check_dlq(settings)
    with job.session() as work:
        sorted_out = run_dlq(work.spark, settings, redrive=redrive, dry=dry, told=work.told)
    found = {"dry_run": job.dry_run, **sorted_out}
    job.finish(found, lambda: _print(job.call, found))
    if redrive and dry and not job.dry_run:
        raise UsageError("nothing was sent", hint="run it again with --yes, or with --dry-run")


def _print(call: Call, report: dict[str, Any]) -> None:
    call.terminal.table(
        [
            Column("group"),
            Column("origin"),
            Column("cause"),
            Column("tag"),
            *(Column(name, right=True) for name in ("tries", "letters", "oldest")),
        ],
        [
            [
                row["consumer_group"],
                row["origin"] or "–",
                row["cause"],
                row["tags"] or "–",
                str(row["attempts"]),
                count_text(row["letters"]),
                age_text(row["oldest_seconds"]),
            ]
            for row in report["groups"]
        ],
    )
    call.terminal.say(f"{count_text(report['letters'])} dead letters")
    if "homeless" in report:
        call.terminal.say(sent_sentence(report, report["target"] or "the topics they came from"))
    if report.get("homeless"):
        call.terminal.warn(f"{count_text(report['homeless'])} of no topic that is known: --to gives them one")
