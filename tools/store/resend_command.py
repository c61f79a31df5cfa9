"""`shmq store resend`: sends again what `store export` has written, mostly the tail of a master that was replaced.

Which records that are is said in shmq/store/offline/again.py.

Invariant: lines are sent in their order, and after an error it is said how many are done.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shmq.errors import CorruptionError, ShmqError
from shmq.exit_code import ExitCode
from shmq.figures.quantity import plural
from shmq.store.offline.again import NEEDED, Again, message_again
from shmq.tools.command import Call, Command, confirmed, dry_run_option, pass_call, yes_option
from shmq.tools.store.repair_command import levels_option
from shmq.tools.terminal.interrupt import interrupt_deferred

if TYPE_CHECKING:
    import shmq


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--from-line", type=click.IntRange(min=1), default=1, metavar="N", help="Go on at this line.  [1]")
@levels_option
@dry_run_option
@yes_option
@pass_call
def resend(call: Call, file: Path, from_line: int, delay_levels: str, dry_run: bool, yes: bool) -> int:
    """Send the messages of an export again, as new messages, to the broker of --url."""
    left_out, wanted, count = Counter[tuple[str, str]](), 0, 0
    for _, topic, found in _lines(file, from_line, delay_levels):
        count += 1
        if isinstance(found, str):
            left_out[topic, found] += 1
        else:
            wanted += 1
    for (topic, reason), number in sorted(left_out.items()):
        call.terminal.say(f"left out: {plural(number, 'record')} of {topic}: {reason}")
    call.terminal.say(f"{plural(wanted, 'message')} of {plural(count, 'record')} in {file} are sent again")
    if confirmed(call, yes=yes, dry_run=dry_run):
        _send_all(call, file, from_line, delay_levels)
    rows = [{"topic": topic, "records": number, "reason": reason} for (topic, reason), number in left_out.items()]
    call.terminal.report({"file": str(file), "records": count, "sent": wanted, "left_out": rows}, rows=rows)
    return ExitCode.DONE


def _lines(file: Path, from_line: int, delay_levels: str) -> Iterator[tuple[int, str, Again | str]]:
    """The lines of an export: number, topic, and what is to be sent, or why nothing.

    Raises:
        CorruptionError: a line is none.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number < from_line:
                continue
            try:
                record = json.loads(line)
                wanted: dict[str, Any] = {name: record[name] for name in NEEDED}
                yield number, wanted["topic"], message_again(wanted, delay_levels)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CorruptionError(
                    file,
                    0,
                    f"line {number} is no record: {error!r}",
                    hint="shmq store export --output FILE writes such",
                ) from error


def _send_all(call: Call, file: Path, from_line: int, delay_levels: str) -> None:
    following = from_line
    try:
        with call.connect() as mq:
            for number, _, found in _lines(file, from_line, delay_levels):
                with interrupt_deferred():
                    if not isinstance(found, str):
                        _send(mq, found, file, number)
                    following = number + 1
    except KeyboardInterrupt:
        if done := _done(file, following):
            call.terminal.say(done)
        raise


def _send(mq: shmq.Connection, again: Again, file: Path, number: int) -> None:
    is_late = again.due_ms > time.time_ns() // 1_000_000
    when: dict[str, Any] = {"deliver_at": again.due_ms / 1000} if is_late else {}
    try:
        mq.send(again.topic, again.body, **again.keywords, **when)
    except ShmqError as error:
        stored = f"line {number} may be stored already: --from-line {number + 1} leaves it out" * error.maybe_stored
        error.hint = "; ".join(filter(None, (_done(file, number), stored, error.hint)))
        raise


def _done(file: Path, number: int) -> str:
    """Which lines are done in front of one, and what to type; "" in front of the first one."""
    return f"the lines below {number} of {file} are done: --from-line {number} goes on there" * (number > 1)
