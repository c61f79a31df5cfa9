"""Owns calling back on a thread that everybody depends on. It does not know what is called."""

from __future__ import annotations

import logging
from collections.abc import Callable


def guarded(call: Callable[..., None], *arguments: object) -> None:
    """Call something whose failure must not end the thread that all others depend on."""
    try:
        call(*arguments)
    except Exception:
        logging.getLogger("shmq").exception("a callback of the control connection failed")
