"""Counts the descriptors of this process by what they are of; others come and go with its other threads."""

import contextlib
import os
from pathlib import Path


def open_below(path: Path) -> int:
    """How many descriptors of this process are of files below a path."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            found += Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(path)
    return found
