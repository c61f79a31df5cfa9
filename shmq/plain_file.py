"""Opens files by their names, and nothing else that has such a name: of stores, runtime directories and users.

And reads and writes bytes at a place of one: all of them, where the kernel may give or take a part of what was asked.

Other programs can put a FIFO, a directory, a link or a device in the place of a file. Opening a FIFO waits for its
other end, for good; a reader that has opened a link reads what its owner likes.

    open_plain        a descriptor of a plain file
    read_plain        the bytes of one
    NoPlainFile       says what lies there instead; an OSError
    read_whole        so many bytes at a place
    read_past_errors  likewise, with zeros for the pages that the disk does not give
    write_whole       likewise
    allocated_bytes   what one takes of the disk, or of memory

Links are followed where an administrator or a user put the file there, as certificates and settings often are links.

Rule: files are opened here (`tests/shm/test_plain_file.py`), but for what a command was given by its user to read or
write: `<(…)` and /dev/stdin are FIFOs on purpose.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own block is
_PAGE_BYTES = 4096  # what is left out where one byte cannot be read
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_OF_OTHER_KINDS = (errno.EISDIR, errno.ELOOP, errno.ENXIO)


class NoPlainFile(OSError):
    """What has the name of a file and is none."""


def kind_of(mode: int) -> str:
    """Name what a mode of `stat` says that lies there and is no plain file."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


def open_plain(path: str | os.PathLike[str], flags: int, mode: int = 0o600, *, follows_links: bool = False) -> int:
    """Return a descriptor of a plain file, never waiting for one; it is closed in programs that this process executes.

    Args:
        flags: O_RDONLY, O_RDWR, O_CREAT and the like.
        mode: of a file that is made.
        follows_links: whether the last part of the path may be a link.

    Raises:
        NoPlainFile: something else lies there.
        OSError: it cannot be opened.
    """
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (0 if follows_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno in _OF_OTHER_KINDS and not stat.S_ISREG(found := os.lstat(path).st_mode):
            raise _no_plain_file(path, found) from error
        raise
    found = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(found):
        os.close(descriptor)
        raise _no_plain_file(path, found)
    return descriptor


def read_plain(path: str | os.PathLike[str], bytes_max: int = -1, *, follows_links: bool = False) -> bytes:
    """Return the bytes of a plain file, of a longer one so many; raises as `open_plain` does."""
    with open(open_plain(path, os.O_RDONLY, follows_links=follows_links), "rb") as file:
        return file.read(bytes_max)


def read_whole(descriptor: int, size: int, at: int) -> bytes:
    """Return the bytes at a place of a file, fewer only where the file ends; raises OSError.

    One call of the system may give a part, as in front of a page that the disk does not give.
    """
    data = os.pread(descriptor, size, at)
    while 0 < len(data) < size and (more := os.pread(descriptor, size - len(data), at + len(data))):
        data += more
    return data


def read_past_errors(
    read: Callable[[int, int], bytes],
    size: int,
    at: int,
    on_unread: Callable[[int, int], None] = lambda begin, end: None,
) -> bytes:
    """Return the bytes at a place, with zeros for the pages that the disk does not give; fewer only where a file ends.

    Args:
        read: returns up to so many bytes at a place.
        on_unread: gets begin and end of each page, or part of one, that stands as zeros.

    Raises:
        OSError: something else than EIO.
    """
    data, asked = bytearray(), size
    while len(data) < size:
        begin = at + len(data)
        end = min(at + size, begin - begin % _PAGE_BYTES + _PAGE_BYTES)
        try:
            piece = read(min(asked, at + size - begin), begin)
            asked = size
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if asked > end - begin:
                asked = end - begin  # what lies before the bad page may be good
                continue
            piece = bytes(end - begin)
            on_unread(begin, end)
        if not piece:
            break
        data += piece
    return bytes(data)


def write_whole(descriptor: int, content: bytes | memoryview, at: int) -> None:
    """Write all bytes at a place of a file; raises OSError where that cannot be, and a part of them may be there.

    One call of the system may take a part, as where the disk gets full.
    """
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


def _no_plain_file(path: str | os.PathLike[str], mode: int) -> NoPlainFile:
    return NoPlainFile(errno.EINVAL, f"it is {kind_of(mode)} and no plain file", os.fspath(path))


def allocated_bytes(status: os.stat_result) -> int:
    """Return how many bytes a file takes, which has holes or is kept ahead of what is written."""
    return status.st_blocks * _BLOCK_BYTES
