"""Brings together what two files of the same name got: records that lie in one of them only.

While a log file lies at its path as a copy, a process that had it open goes on in the old one, and one that opens it
then writes into the copy. Log positions are given out once, so each record lies in one of them, the other has zeros.

Rule: only whole records with their own log position are taken, and only where there is nothing.
"""

import os

from shmq.plain_file import open_plain, read_whole, write_whole
from shmq.record import BLANK_MAGIC, HEAD_BYTES, LENGTH_AND_MAGIC, RECORD_BYTES_MAX, RECORD_MAGICS, log_position_of


def take_missing(path: str, source: str, *, base: int, end: int) -> int:
    """Copy records from `source` to where the log file at a path has none; returns how many. Raises OSError.

    Args:
        base: log position of the first byte of both.
        end: of the log.
    """
    taken = 0
    to = open_plain(path, os.O_RDWR)
    other = open_plain(source, os.O_RDONLY)
    try:
        file_end = base + min(os.fstat(to).st_size, os.fstat(other).st_size)
        at = base
        while at < min(end, file_end):
            size = _record_bytes(to, at, base, file_end)
            if not size:
                size = _record_bytes(other, at, base, file_end)
                if not size:
                    break
                write_whole(to, read_whole(other, size, at - base), at - base)
                taken += 1
            at += size
        if taken:
            os.fdatasync(to)
    finally:
        os.close(to)
        os.close(other)
    return taken


def _record_bytes(descriptor: int, at: int, base: int, file_end: int) -> int:
    """The length of the record, or of the blank at the end of a file, at a log position; 0 where none is."""
    head = os.pread(descriptor, HEAD_BYTES, at - base)
    if len(head) < LENGTH_AND_MAGIC.size:
        return 0
    size, magic = LENGTH_AND_MAGIC.unpack_from(head)
    if magic == BLANK_MAGIC:
        return int(size) if size == file_end - at else 0
    is_record = magic in RECORD_MAGICS and HEAD_BYTES < size <= min(RECORD_BYTES_MAX, file_end - at)
    return int(size) if is_record and log_position_of(head) == at else 0
