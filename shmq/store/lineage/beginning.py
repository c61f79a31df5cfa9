"""Where the log of a new slave begins: at a position of its master's, whose first files may be gone.

    shmq.begin    20 digits: a log position where a file begins. It is there from the moment when the master's begin is
                  known until the log begins there

A log that has a record is never moved, whatever the file says.

Rules: (1) the file is removed when the log begins there and that is on disk, so a crash in any step is repaired by
beginning again; (2) no log file goes that holds a byte other than zero.
"""

from __future__ import annotations

import os

from shmq.errors import StoreError
from shmq.store.atomic import sync_directory, write_atomically
from shmq.store.commitlog import CommitLogFiles
from shmq.store.layout import StoreLayout, file_name, position_of


def wish_beginning(layout: StoreLayout, position: int) -> None:
    """Have the next cold start begin the empty log at a position.

    Raises:
        StoreError: the disk refuses.
    """
    try:
        content = file_name(position).encode()
        write_atomically(layout.beginning, content, mode=layout.access.mode, gid=layout.access.gid)
    except OSError as error:
        raise StoreError(f"{layout.beginning} cannot be written: {error.strerror}") from error


def begin_as_wished(layout: StoreLayout, commitlog: CommitLogFiles) -> int | None:
    """Begin an empty log where it is to begin; return where that is, None when nothing was wished or done.

    Raises:
        ShmqError: the log files contradict each other, or the disk refuses.
    """
    try:
        text = layout.beginning.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{layout.beginning} cannot be read: {error.strerror}") from error
    position = position_of(text)
    commitlog.remove_temporaries()
    commitlog.load()
    moved = position is not None and position % commitlog.file_bytes == 0 and commitlog.is_blank()
    if moved and position is not None and commitlog.begin != position:
        commitlog.remove_all()
    if moved and position is not None and not commitlog.positions:
        commitlog.create_next(position)
    try:
        os.unlink(layout.beginning)
        sync_directory(layout.root)
    except OSError as error:
        raise StoreError(f"{layout.beginning} cannot be removed: {error.strerror}") from error
    return position if moved else None
