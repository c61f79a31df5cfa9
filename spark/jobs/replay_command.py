"""`shmq spark replay`: messages of an archive or a topic to a topic again.

It knows the options and how a report looks to people; `replay` does the work.
"""

from __future__ import annotations

import re
from typing import Any

import click

from shmq.errors import UsageError
from shmq.spark.jobs.job_command import (
    check_outputs,
    finish,
    job_session,
    plot_option,
    run_options,
    sent_sentence,
    source_of,
    source_options,
)
from shmq.tools.command import Call, Command, pass_call, yes_option
from shmq.tools.quantity import count_text
from shmq.tools.terminal import Column

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
@plot_option
@run_options
@pass_call
def replay(
    call: Call,
    /,
    dry_run: bool,
    report: str | None,
    plot: str | None,
    master: str | None,
    conf: tuple[str, ...],
    **given: Any,
) -> None:
    """Send messages of an archive or of topics to a topic again, each queue in order, each message once.

    Without --yes it tells what it would send.

    \b
    shmq spark replay --from /data/orders --to orders-again --run july --since 2026-07-01 --rate 5000 --yes
    """
    from shmq.spark.jobs import replay as job

    if not _NAME.fullmatch(given["run"]):
        raise UsageError(f"--run {given['run']!r} is no name", hint="up to 64 letters, digits, dots, dashes")
    check_outputs(report, plot)
    view = "messages" if given["archive"] is None else "queues"  # an archive knows its topics
    settings = job.ReplaySettings(
        source=source_of(call, given["topics"], given["topic_pattern"], given["options"], view=view),
        target=given["target"],
        run=given["run"],
        archive=given["archive"],
        where=given["where"],
        since=given["since"],
        until=given["until"],
        rate=given["rate"],
        same_queue=given["order"] == "queue",
    )
    job.check_replay(settings)
    with job_session(call, "replay", master, conf) as work:
        if given["yes"] and not dry_run:
            found = job.run_replay(work.spark, settings, told=work.told)
        else:
            found = job.plan_replay(work.spark, settings)
    finish(call, found, report, lambda: _print(call, found), plot=plot)
    if not dry_run and not given["yes"]:
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
