"""Replacing a file so that a crash at any moment leaves the old content or the new one, never a mixture.

Rules: (1) the new content is synced before it takes the name, and the directory after;
(2) with `backup`, the previous content keeps the name `<file>.bak`, and the first content has it too, so one unreadable
file is never the only one;
(3) this process remembers what it gave each name, so it can tell its own work from that of a stranger.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path
from typing import NamedTuple

from shmq.plain_file import open_plain, read_plain, write_whole


class _Given(NamedTuple):
    """A file's status when it got its name; what comes after a file may get its inode, so the kind counts, too."""

    kind: int
    device: int
    inode: int
    size: int
    modified_ns: int


_given: dict[Path, _Given] = {}
_giving = threading.Lock()


def adopt(path: Path) -> None:
    """Take a file for ours as it is; one that is not there is none."""
    with _giving, contextlib.suppress(FileNotFoundError):
        _given[path] = _look(path)


def forget(path: Path) -> None:
    """Expect nothing of a name any more: we are about to take it away."""
    with _giving:
        _given.pop(path, None)


GROWN, TRUNCATED = "has grown", "was truncated"
ANY_SIZE = 1 << 63


def fault_of(path: Path, *, bytes_most: int | None = None, written_bytes: int | None = None) -> str:
    """Say what happened to a file that this process wrote or adopted; "" when nothing did.

    Args:
        bytes_most: this process also writes into the file, and lets it have so many bytes.
        written_bytes: this process extends the file, and has written so many bytes of it.
    """
    with _giving:
        given = _given.get(path)
        if given is None:
            return ""
        try:
            found = _look(path)
        except (FileNotFoundError, NotADirectoryError):
            return "was removed"
        except OSError:
            return ""  # unknown
    if found[:3] != given[:3]:
        return "was replaced"
    if written_bytes is not None:
        return TRUNCATED if found.size < written_bytes else GROWN if found.size > written_bytes else ""
    if bytes_most is None:
        return "was changed" if found != given else ""
    return "was changed" if found.size < given.size else GROWN if found.size > bytes_most else ""


def _look(path: Path) -> _Given:
    status = os.lstat(path)
    return _Given(stat.S_IFMT(status.st_mode), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _give(temporary: Path, path: Path) -> None:
    with _giving:
        os.replace(temporary, path)
        _given[path] = _look(path)


_CURES = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space, or raise the quota",
    errno.EROFS: "see dmesg, repair the file system, mount it again and restart the broker",
    errno.EIO: "see dmesg and smartctl -a: the disk fails",
    errno.EACCES: "fix the owner and mode",
    errno.EPERM: "fix the owner and mode, or the immutable flag (lsattr)",
}


def sync_directory(directory: Path) -> None:
    """Make names created, renamed or removed in a directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason_of(error: OSError) -> str:
    """Return why a file was refused, in the system's words or in those of the code that raised it."""
    return error.strerror or str(error)


def cure_of(error: OSError) -> str:
    """Return what to do about a file that the system refused to write."""
    return _CURES.get(error.errno or 0, "dmesg tells more")


def write_atomically(path: Path, content: bytes, *, mode: int, gid: int = -1, backup: bool = False) -> None:
    """Replace a file's content; raises OSError and leaves the old content when that fails."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = open_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.fchown(descriptor, -1, gid)
        os.fchmod(descriptor, mode)
        write_whole(descriptor, content, 0)
        os.fsync(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    kept = backup_of(path)
    if backup and path.exists():
        _keep_backup(path, kept)
    _give(temporary, path)
    sync_directory(path.parent)
    if backup and not kept.exists():
        # No second name of one file: what damages the bytes of one would damage both.
        write_atomically(kept, content, mode=mode, gid=gid)


def backup_of(path: Path) -> Path:
    """Return the name of a file's backup."""
    return path.with_name(path.name + ".bak")


def equal_backup(path: Path, *, mode: int, gid: int = -1) -> None:
    """Give a file's backup the content that the file has, in bytes of its own; raises OSError."""
    content, kept = read_plain(path), backup_of(path)
    known = None
    with contextlib.suppress(OSError):  # what cannot be read is written anew
        known = read_plain(kept)
    if content != known:
        write_atomically(kept, content, mode=mode, gid=gid)


def _keep_backup(path: Path, kept: Path) -> None:
    """A second name for the present content, so that there is no moment without the first."""
    linked = path.with_name(path.name + ".bak.tmp")
    linked.unlink(missing_ok=True)
    os.link(path, linked)
    _give(linked, kept)
