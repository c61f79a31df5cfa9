"""`shmq top`: processes, topics and groups of one broker, live on a terminal, as text or JSON elsewhere.

It reads shared memory and /proc of the processes that take part; no daemon is asked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from shmq.errors import UsageError
from shmq.tools.command import Call, Command, Duration, pass_call

if TYPE_CHECKING:
    from shmq.figures.observer import Depth, Observer
    from shmq.tools.top.rates import Picture

INTERVAL = 1.0
INTERVAL_MIN = 0.1


@click.command(cls=Command)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Show so many pictures and end.  [a pipe: 1]")
@click.option("--interval", type=Duration(), default=INTERVAL, metavar="TIME", help="Time between two pictures.  [1s]")
@click.option("--sort", metavar="KEY", help="Sort by cpu, in, out, lag, memory, idle, pid, size, … and name.")
@click.option(
    "--pane", type=click.Choice(["all", "processes", "topics", "groups"]), default="all", help="What to show."
)
@click.option("--deep", is_flag=True, help="USS of the processes too, 2 ms each.")
@click.option("-a", "--all", "system", is_flag=True, help="System topics and groups, and retry topics too.")
@pass_call
def top(call: Call, count: int | None, interval: float, sort: str | None, pane: str, deep: bool, system: bool) -> None:
    """Watch processes, topics and groups.

    Press ? for the keys. With --json or in a pipe: one picture, of the rates of one interval.
    """
    if interval < INTERVAL_MIN:
        raise UsageError(f"--interval {interval:g} is too short", hint=f"at least {INTERVAL_MIN:g}s")
    from shmq.figures.observer import Observer
    from shmq.tools.top.live import choice_of, watch
    from shmq.tools.top.view import page

    choice = choice_of(pane=pane, sort=sort, deep=deep, system=system)
    with Observer(call.url) as observer:
        terminal = call.terminal
        if not terminal.structured and terminal.on_terminal() and sys.stdin.isatty():
            watch(observer, choice, interval=interval, count=count, colored=terminal.colored(sys.stdout))
            return
        from shmq.tools.terminal.rendering import PIPE_WIDTH, text_of

        for picture in _pictures(observer, interval, count or 1, deep=deep):
            if terminal.structured:
                document = picture.document()
                terminal.document(document, rows=[document])
            else:
                terminal.data(text_of(page(picture, choice, width=PIPE_WIDTH)))


def _pictures(observer: Observer, interval: float, count: int, *, deep: bool) -> Iterator[Picture]:
    from shmq.tools.top.rates import picture_of

    depth: Depth = "deep" if deep else "usual"
    before = observer.snapshot(depth)
    for _ in range(count):
        time.sleep(interval)
        after = observer.snapshot(depth)
        yield picture_of(before, after)
        before = after
