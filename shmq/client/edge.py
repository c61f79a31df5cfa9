"""The public edge: an error leaves the library as one frame and with its cure, without the way it took inside.

A first program's crash has to fit a small terminal: where the program called us, what happened, what to type. The
frames between the call and the `raise` say nothing to its author, and neither does the system call that failed.

    @edge
    def subscribe(self, …): …        every deliberate error of it, and of what it calls

    SHMQ_TRACEBACK=full              whole tracebacks, for whoever works on shmq itself

Rule: nothing that is called for each message stands behind this edge; those calls are the core's own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from shmq.errors import ShmqError

if TYPE_CHECKING:
    from typing import ParamSpec

    P = ParamSpec("P")

ResultT = TypeVar("ResultT")


def edge(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Make a function of the public interface."""
    if os.environ.get("SHMQ_TRACEBACK") == "full":
        return function

    @functools.wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> ResultT:
        try:
            return function(*arguments, **named)
        except ShmqError as error:
            raise error.with_traceback(None) from None

    return called
