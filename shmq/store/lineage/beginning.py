"""Begins the log of a new slave at a position of its master's, whose first files may be gone.

    shmq.begin    20 digits: a log position where a file begins. It is there from the moment when the master's begin is
                  known until the log begins there

A log that has a record is never moved, whatever the file says.

Rules: (1) the file is removed when the log begins there and that is on disk, in the durable mark too, so a crash in any
step is repaired by beginning again; (2) no log file goes that holds a byte other than zero.
"""

from __future__ import annotations

import os

from shmq.errors import StoreError
from shmq.plain_file import read_plain
from shmq.store.atomic import sync_directory, write_atomically
from shmq.store.commitlog import CommitLogFiles
from shmq.store.durable import DurableMark
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


def begin_as_wished(layout: StoreLayout, commitlog: CommitLogFiles, mark: DurableMark) -> int | None:
    """Begin an empty log where it is to begin; return where that is, None when nothing was wished or done.

    Raises:
        ShmqError: the log files contradict each other, or the disk refuses.
    """
    try:
        text = read_plain(layout.beginning).decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{layout.beginning} cannot be read: {error.strerror}") from error
    position = position_of(text)
    commitlog.remove_temporaries()
    commitlog.load()
    moved = position is not None and position % commitlog.file_bytes == 0 and commitlog.is_blank()
    try:
        if moved and position is not None and (commitlog.begin != position or not commitlog.positions):
            # Blank files may begin at either place until the wish is gone, and none of them may be called missing.
            mark.set_back(min(position, commitlog.begin))
            mark.advance(log_begin=max(position, commitlog.begin))
            commitlog.remove_all()
            commitlog.create_next(position)
        if moved and position is not None:
            mark.begin_at(position)
        os.unlink(layout.beginning)
        sync_directory(layout.root)
    except OSError as error:
        raise StoreError(f"the log cannot begin as {layout.beginning} says: {error}") from error
    return position if moved else None
