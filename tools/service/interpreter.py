"""The interpreter that runs daemons: that of this command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from shmq.errors import PermissionDenied, UsageError


def replace_by_daemon(command: list[str]) -> NoReturn:
    """Become the daemon that a command starts.

    Raises:
        PermissionDenied, UsageError: the interpreter cannot be executed.
    """
    with executing(command[0]):
        os.execv(command[0], command)
    raise AssertionError("execv returns only by an error")


@contextmanager
def executing(interpreter: str) -> Iterator[None]:
    """Say of an error in here that it is the interpreter that cannot be executed."""
    try:
        yield
    except OSError as error:
        kind = PermissionDenied if isinstance(error, PermissionError) else UsageError
        raise kind(
            f"the interpreter {interpreter or '(unknown)'} cannot be executed: {error.strerror}",
            hint=f"ls -l {interpreter}; is it there, may you execute it, is its file system mounted noexec?",
        ) from error
