"""The public edge: an error leaves the library as one frame and with its cure, without the way it took inside.

A first program's crash has to fit a small terminal: where the program called us, what happened, what to type. The
frames between the call and the `raise` say nothing to its author, and neither does the system call that failed.

    @edge
    def subscribe(self, …): …        every deliberate error of it, and of what it calls

    subscribe(…, tag="a")            subscribe() got an unexpected keyword argument 'tag'; did you mean tags=?
    SHMQ_TRACEBACK=full              whole tracebacks, for work on shmq itself

Rule: nothing that is called for each message stands behind this edge; those calls are the core's own.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from shmq.errors import ShmqError

if TYPE_CHECKING:
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
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # of what the function did; a call that does not fit has gone no further than here
            raise TypeError(_misfit(function, str(error))) from None

    return called


_SYNONYMS = {"sql": "where", "filter": "where", "expression": "where", "consumer_group": "group", "client_id": "name"}


def _misfit(function: Callable[..., object], text: str) -> str:
    """Return Python's words for a call that does not fit, with the method's public name and the keyword meant."""
    text = text.replace(f"{function.__qualname__}()", f"{function.__name__}()")
    found = re.search(r"unexpected keyword argument '(\w+)'", text)
    if found is None:
        return text
    import difflib  # for a call that has failed; inspect likewise
    import inspect

    names = list(inspect.signature(function).parameters)
    typed = found[1]
    near = [_SYNONYMS[typed]] if _SYNONYMS.get(typed) in names else difflib.get_close_matches(typed, names, n=1)
    return f"{text}; did you mean {near[0]}=?" if near else text
