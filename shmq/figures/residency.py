"""Measures how much of the log is in the page cache, so that a read of it costs no disk.

The kernel is asked page by page (mincore) about mappings that are never touched, so that asking loads nothing. The
newest files come first; `seconds` bounds how long it may take.

The kernel answers truthfully only to users who own the file or may write it; it tells others that every page is
resident.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

from shmq.plain_file import open_plain

_CHUNK_BYTES = 256 << 20
_PROT_READ, _MAP_SHARED = mmap.PROT_READ, mmap.MAP_SHARED
_MAP_FAILED = ctypes.c_void_p(-1).value


def log_paths(store_path: str) -> list[Path]:
    """Return the files of the log, the newest first."""
    directory = Path(store_path, "commitlog")
    return sorted((path for path in directory.iterdir() if path.name.isdigit()), reverse=True)


def residency(paths: Iterable[Path], *, seconds: float = 0.5) -> tuple[int, int]:
    """Return (bytes in the page cache, bytes asked about); raises OSError."""
    libc = _libc()
    resident = examined = 0
    until = time.monotonic() + seconds
    for path in paths:
        descriptor = open_plain(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            for begin in range(0, size, _CHUNK_BYTES):
                if time.monotonic() > until:
                    return resident, examined
                part = min(_CHUNK_BYTES, size - begin)
                resident += min(part, _resident_pages(libc, descriptor, begin, part) * mmap.PAGESIZE)
                examined += part
        finally:
            os.close(descriptor)
    return resident, examined


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return libc


def _resident_pages(libc: ctypes.CDLL, descriptor: int, begin: int, size: int) -> int:
    address = libc.mmap(None, size, _PROT_READ, _MAP_SHARED, descriptor, begin)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if libc.mincore(address, size, pages) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return pages.raw.count(1)  # the lowest bit; the others are reserved and zero
    finally:
        libc.munmap(address, size)
