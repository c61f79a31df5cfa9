"""Our own error, found in what Spark reports: Spark passes on the text of an exception, never the exception.

The newest line of a traceback that names a class of `shmq.errors` is the cause; where Spark's Java process is gone,
that is, and trying again in the same session cannot help.
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
    return found or (_java_ended() if _is_of_a_dead_java(error) else None)


@contextmanager
def explained() -> Iterator[None]:
    """Raise our own error where Spark raises what it made Spark fail with.

    Raises:
        ShmqError: the cause, as an executor or Spark's planning raised it.
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


def _is_of_a_dead_java(error: BaseException | None) -> bool:
    """Whether Spark's Java process did not answer or is gone; our own errors say ConnectError."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    while error is not None:
        if isinstance(error, (Py4JNetworkError, ConnectionRefusedError)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _java_ended() -> errors.ShmqError:
    hint = "type the same again to go on; for more memory --conf spark.driver.memory=4g"
    return errors.ShmqError(f"Spark's Java process has ended: killed, or out of memory; {hint}", hint=hint)


def _made(kind: type[errors.ShmqError], text: str) -> errors.ShmqError:
    """An error of that class, whatever its constructor wants: it is known by its text and class."""
    made = kind.__new__(kind)
    errors.ShmqError.__init__(made, text)
    return made
