"""Small files of a runtime directory are replaced as a whole: written under another name, then renamed. This module
writes them, and removes what a killed writer left.

    .instance.json.4711      being written by process 4711, renamed to instance.json when it is complete

Rule: a name belongs to the process whose pid it ends with; only when that one is dead may another remove it.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from shmq.errors import StoreError
from shmq.plain_file import open_plain
from shmq.shm.core import process_died
from shmq.shm.descriptors import above_standard

_BEING_WRITTEN = r"\.[a-z.]*[a-z]\.([0-9]{1,10})"


def writing_path(path: Path) -> Path:
    """Return where this process writes a file that will replace `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}")


@above_standard
def replace_text(path: Path, text: str, *, mode: int, gid: int) -> None:
    """Replace a file at once, so that a reader sees the old text or the new one.

    Raises:
        StoreError: it cannot be written.
    """
    temporary = writing_path(path)
    try:
        with open(open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
            os.fchown(file.fileno(), -1, gid)
            os.fchmod(file.fileno(), mode)
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        remove_file(temporary)
        hint = f"ls -ld {path.parent} {path}; what is no plain file has to go there"
        raise StoreError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def remove_unfinished(directory: Path) -> None:
    """Remove what writers that died left; the caller is the only one who starts writers there."""
    with contextlib.suppress(FileNotFoundError):  # the directory may be gone
        for path in directory.iterdir():
            match = re.fullmatch(_BEING_WRITTEN, path.name)
            if match is not None and process_died(int(match[1]), 0):
                remove_file(path)


def remove_file(path: Path) -> None:
    """Remove what has the name of a file of ours; what cannot be removed, as a directory, stays."""
    with contextlib.suppress(OSError):
        path.unlink()
