"""The loop of `shmq top` on a terminal: look, show, and do what the keys say.

Keys:

    s r      sort, reverse           SPACE   pause           q Ctrl-C   quit
    p t g a  which tables            + -     interval        ? h        help
    d y      details, system topics  arrows, PgUp, PgDn, Home: scroll one table
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from rich.console import RenderableType

from shmq.errors import UsageError
from shmq.figures.observer import Observer
from shmq.figures.snapshot import Snapshot
from shmq.tools.top.rates import Picture, picture_of
from shmq.tools.top.screen import Screen
from shmq.tools.top.view import PANES, SORTS, Choice, page

_INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_PANE_KEYS = {"p": "processes", "t": "topics", "g": "groups", "a": "all"}
_SCROLL = {"up": -1, "down": 1, "page up": -10, "page down": 10}


def choice_of(*, pane: str, sort: str | None, deep: bool, system: bool) -> Choice:
    """Return the choice that the options stand for.

    Raises:
        UsageError: nothing is sorted by that.
    """
    if sort is not None and not any(sort in names for names in SORTS.values()):
        known = dict.fromkeys(name for names in SORTS.values() for name in names)
        raise UsageError(f"nothing is sorted by {sort!r}", hint=f"--sort takes {', '.join(known)}")
    first, second, third = (SORTS[name].index(sort) if sort in SORTS[name] else 0 for name in PANES)
    return Choice(pane=pane, sorts=(first, second, third), deep=deep, system=system)


def pressed(choice: Choice, key: str) -> Choice:
    """Return the choice after a key."""
    if key in _PANE_KEYS:
        return replace(choice, pane=_PANE_KEYS[key], help=False, offset=0)
    if key in _SCROLL:
        return replace(choice, offset=max(0, choice.offset + _SCROLL[key]))
    changes = {
        "s": {
            "sorts": tuple(
                index + (choice.pane in ("all", pane)) for index, pane in zip(choice.sorts, PANES, strict=True)
            )
        },
        "r": {"reverse": not choice.reverse},
        "d": {"deep": not choice.deep},
        "y": {"system": not choice.system},
        " ": {"paused": not choice.paused},
        "?": {"help": not choice.help},
        "h": {"help": not choice.help},
        "escape": {"help": False},
        "home": {"offset": 0},
    }
    return replace(choice, **changes.get(key, {}))  # type: ignore[arg-type]


def other_interval(interval: float, key: str) -> float:
    """Return the interval after + (more often) or - (less often)."""
    if key == "+":
        return max((step for step in _INTERVALS if step < interval), default=_INTERVALS[0])
    if key == "-":
        return min((step for step in _INTERVALS if step > interval), default=_INTERVALS[-1])
    return interval


def watch(observer: Observer, choice: Choice, *, interval: float, count: int | None, colored: bool) -> None:
    """Show pictures until q, Ctrl-C, or `count` of them were shown."""
    screen = Screen(colored=colored)
    before: Snapshot | None = None
    picture: Picture | None = None
    shown = 0
    with screen.opened():
        due = time.monotonic()
        while True:
            if picture is None or (time.monotonic() >= due and not choice.paused):
                after = observer.snapshot("deep" if choice.deep else "usual")
                picture, before = picture_of(before, after), after
                due, shown = time.monotonic() + interval, shown + 1
            screen.show(partial(_page, picture, choice))
            if count is not None and shown > count:
                return
            key = screen.key(due if not choice.paused else time.monotonic() + 3600.0)
            if key in ("q", "Q"):
                return
            if key is not None:
                choice, changed = pressed(choice, key), other_interval(interval, key)
                due, interval = due + changed - interval, changed


def _page(picture: Picture, choice: Choice, width: int, height: int) -> RenderableType:
    return page(picture, choice, width=width, height=height)
