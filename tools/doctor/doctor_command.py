"""`shmq doctor`: checks this host, the installation, the store and the broker, and names a cure for each trouble.

Looks from outside and asks no daemon, so it works while the broker is stopped, hung or dead. Only --fix changes
anything, and only memory that is proven to be unused.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from shmq.exit_code import ExitCode
from shmq.tools.command import Call, Command, dry_run_option, pass_call

BUNDLE_HERE = "-"


@click.command(cls=Command)
@click.option("--fix", "fixes", is_flag=True, help="Remove memory of dead brokers that no process maps.")
@click.option(
    "--bundle",
    is_flag=False,
    flag_value=BUNDLE_HERE,
    metavar="[FILE]",
    help="Pack a report for an issue: no message bodies, no secrets.",
)
@click.option("--deep", is_flag=True, help="Verify all of the store, not a part of it.")
@dry_run_option
@pass_call
def doctor(call: Call, fixes: bool, bundle: str | None, deep: bool, dry_run: bool) -> int:
    """Examine host, installation, store and broker; say what to type.

    Exit status 1 when something has failed; warnings alone are 0.
    """
    from shmq.figures.verdict import Verdict, worst
    from shmq.tools.doctor.bundle import default_path, write_bundle
    from shmq.tools.doctor.case import open_case
    from shmq.tools.doctor.examine import examine
    from shmq.tools.doctor.finding import document_of
    from shmq.tools.doctor.fix import fix, removable
    from shmq.tools.doctor.report import document, report, summary
    from shmq.tools.terminal.rendering import text_of

    written = None
    with open_case(call.url, deep=deep) as case:
        findings = examine(case)
        if bundle is not None:
            path = default_path(case) if bundle == BUNDLE_HERE else Path(bundle)
            write_bundle(path, case, findings, text_of(report(case, findings), width=120))
            written = str(path)
    # Behind the block, because inside it this process maps the broker's segments itself.
    removals = fix(case.place, removable(case)) if fixes and not dry_run else []
    terminal = call.terminal
    if terminal.structured:
        rows = [document_of(finding) for finding in findings]
        terminal.document(document(case, findings, removals, written), rows=rows)
    else:
        terminal.data(text_of(report(case, findings, removals), colored=terminal.colored(sys.stdout)))
        terminal.say(summary(findings))
        for leftover in removable(case) if dry_run else ():
            terminal.say(f"would remove shmq.{leftover.broker_name}.{leftover.generation:016x}")
    if written is not None:
        terminal.say(f"wrote {written}: look through it before you attach it to an issue")
    return ExitCode.NO if worst(findings) is Verdict.CRITICAL else ExitCode.DONE
