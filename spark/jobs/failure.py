"""Owns finding our own error in what Spark reports: it passes on the text of an exception, never the exception.

It does not know jobs. The newest line of a traceback that names a class of `shmq.errors` is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from shmq import errors

_LINE = re.compile(r"^\s*(?:[\w.]*: )?shmq\.errors\.(\w+): (.*)$", re.MULTILINE)


def failure_of(error: BaseException) -> errors.ShmqError | None:
    """Return the error of ours that made Spark fail, None when it was another one."""
    if isinstance(error, errors.ShmqError):
        return error
    found = None
    for name, text in _LINE.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, errors.ShmqError):
            found = _made(kind, text)
    return found


@contextmanager
def explained() -> Iterator[None]:
    """Raise our own error where Spark raises what it made Spark fail with.

    Raises:
        ShmqError: the cause, as whoever met it raised it in an executor or in Spark's planning.
    """
    try:
        yield
    except errors.ShmqError:
        raise
    except Exception as error:
        cause = failure_of(error)
        if cause is None:
            raise
        raise cause from error


def _made(kind: type[errors.ShmqError], text: str) -> errors.ShmqError:
    """An error of that class, whatever its constructor wants: it is known by its text and class."""
    made = kind.__new__(kind)
    errors.ShmqError.__init__(made, text)
    return made
