"""Owns how a failure of the core reaches the application: as a type of shmq.errors, whichever call it came out of.

The hot calls are the core's own methods, so there is no Python frame that could catch a `CoreError` and translate it.
Therefore the class itself answers: once this module is installed, making a `CoreError` gives the public error it stands
for, with the original as its cause. It costs nothing until something fails.

It does not know what a status means; shmq.shm.core.translate does.
"""

from __future__ import annotations

from typing import Any

from shmq.errors import ShmqError
from shmq.shm.core import CoreError, translate


def _public_error(cls: type[CoreError], *args: Any) -> BaseException:
    if len(args) == 1 and isinstance(args[0], ShmqError):
        return args[0]  # the interpreter passes an error that is public already through here again
    original = Exception.__new__(CoreError, *args)
    public = translate(original)
    public.__cause__ = original
    return public


def install() -> None:
    """Let failures of the core be public errors in this process; twice is harmless."""
    CoreError.__new__ = _public_error  # type: ignore[method-assign, assignment]
