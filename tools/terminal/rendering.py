"""Things of rich as text: coloured for terminals, plain for pipes, the same for files and pictures."""

from __future__ import annotations

import shutil

from rich.console import Console, RenderableType

PIPE_WIDTH = 100_000  # a program that reads a pipe wants lines, not paragraphs


def console_of(*, colored: bool, width: int | None = None) -> Console:
    """Return a console that only renders; width None is the terminal's, or none at all in a pipe."""
    if width is None:
        width = shutil.get_terminal_size().columns if colored else PIPE_WIDTH
    return Console(
        force_terminal=colored,
        color_system="standard" if colored else None,
        no_color=not colored,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def text_of(thing: RenderableType, *, colored: bool = False, width: int | None = None) -> str:
    """Return what a console would show, each line without trailing blanks."""
    console = console_of(colored=colored, width=width)
    with console.capture() as capture:
        console.print(thing)
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())
