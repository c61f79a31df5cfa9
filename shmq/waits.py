"""Waits in C, and the greenlets that gevent and eventlet make of a program's threads.

Greenlets take turns in Python only: while one waits in C, no other runs, not even one that would end the wait. So a
wait is cut into slices there, with a turn for the others between two of them.

    threads are               a slice of a wait in C
    threads                   as long as signals may go unseen
    greenlets                 20 ms, then the library's own sleep

Both libraries may replace some modules and leave others. What waits in one that was replaced for a thread that was not,
or the other way round, waits for ever: `check_patches` says so before. Eventlet also takes `select.poll` away; what it
leaves, `select.select`, lets others run.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import Final

from shmq.errors import UsageError

GREENLET_SLICE: Final = 0.02
_TURN_SECONDS: Final = 0.001  # after none at all gevent looks at no timer and no socket
_SECONDS_MAX: Final = 2_000_000.0  # what both ways to wait can say
_GEVENT, _EVENTLET = "gevent", "eventlet"
_ASKED: Final = {
    _GEVENT: ("gevent.monkey", "is_module_patched"),
    _EVENTLET: ("eventlet.patcher", "is_monkey_patched"),
}


def _patched_by(library: str) -> Callable[[str], bool]:
    """Return what tells whether a library has replaced a module."""
    name, asked = _ASKED[library]
    return getattr(sys.modules.get(name), asked, None) or (lambda _: False)


def greenlet_library() -> str:
    """Return the name of the library that made greenlets of this program's threads, "" where they are threads."""
    for library in _ASKED:
        is_patched = _patched_by(library)
        if is_patched("thread") or is_patched("threading"):
            return library
    return ""


def check_patches(module: str, who: str) -> None:
    """Let what waits in a module start only where that and threads were both replaced, or neither was.

    Raises:
        UsageError: one was replaced and not the other; `who` would wait for ever.
    """
    threads_by = greenlet_library()
    for library in _ASKED:
        if library == _EVENTLET and module == "queue":
            continue  # it goes with threads there
        is_replaced = _patched_by(library)(module)
        if library == threads_by and not is_replaced:
            what = f"{library} has made greenlets of this program's threads and left {module} as it is"
        elif library == _GEVENT and is_replaced and library != threads_by:
            what = f"{library} has replaced {module} and left threads as they are"
        else:
            continue
        raise UsageError(
            f"{what}, where {who} would wait for ever",
            hint="patch_all(), or patch_all(thread=False, queue=False, select=False)"
            if library == _GEVENT
            else "eventlet.monkey_patch(), or eventlet.monkey_patch(thread=False)",
        )


def slice_seconds(usual: float) -> float:
    """Return how long a wait in C may last at once."""
    return min(usual, GREENLET_SLICE) if greenlet_library() else usual


def give_turn(slice_given: float) -> None:
    """Let other greenlets run after an empty slice, if it was one of theirs."""
    if slice_given <= GREENLET_SLICE and (library := greenlet_library()):
        sys.modules[library].sleep(_TURN_SECONDS)


def is_ready(descriptor: int, seconds: float | None, *, writes: bool = False) -> bool:
    """Wait until a descriptor can be read from, or written to; False when the time is over. None: however long."""
    if seconds is not None:
        seconds = min(max(0.0, seconds), _SECONDS_MAX)
    if not hasattr(select, "poll"):
        reads, writing = ([], [descriptor]) if writes else ([descriptor], [])
        return any(select.select(reads, writing, [], seconds))  # noqa: TID251
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT if writes else select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
