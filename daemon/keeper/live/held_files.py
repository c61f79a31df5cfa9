"""Files that are held open to be known again: whether what lies at the path is still what was opened.

A name can be taken away, given to another file or to a link at any time; an open file keeps its bytes until it is
closed. So what is held can be put back.

    HeldFile        one file: its device and inode, its size, who may open it; and its bytes, while it is held
    HeldDirectory   one directory, and where it is now
    FileNews        says what became of a file: in the event log, and in words that `shmq health` reads
    find_open       log files that lost their name and that some process of this host still has open

Rules: (1) what lies at a path in place of our file is moved to `quarantine/`, never removed;
(2) what was mended is reported each time; what lasts is reported once, until it is over.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from shmq.daemon.event_log import EventLog
from shmq.errors import StoreError
from shmq.figures.changed_files import ACCESS, FILES_CHANGED, LOST, ChangedFile
from shmq.plain_file import kind_of, open_plain
from shmq.shm.access import access_rights
from shmq.shm.counters import Counters
from shmq.store.atomic import reason_of, sync_directory
from shmq.store.commitlog import is_given_up
from shmq.store.layout import StoreLayout, position_of

_NEWS_MAX = 100  # a store that went may have thousands of files
_HEAD_BYTES = 8  # size and magic of the first record
_DELETED = " (deleted)"

Access = tuple[int, int, int]  # mode, uid, gid


class FileNews:
    """Says what became of files."""

    def __init__(self, counters: Counters, log: EventLog) -> None:
        self._counters = counters
        self._log = log
        self._told: dict[tuple[Path, str], tuple[str, str]] = {}  # file and fate: what happened, and what to do

    def tell(self, path: Path, fate: str, what: str, do: str = "") -> None:
        """Say what happened to a file, and its fate: LOST, SAVED, RESTORED, ACCESS."""
        if fate in (LOST, ACCESS) and self._told.get((path, fate)) == (what, do):
            return
        self.withdraw(path, fate)
        if len(self._told) < _NEWS_MAX:
            self._told[path, fate] = what, do
            self._count(path, fate, what, do, 1)
        self._log(f"file.{fate}", file=str(path), what=what, **({"do": do} if do else {}))

    def repeat(self, told: Iterable[ChangedFile]) -> None:
        """Report to health what was logged elsewhere, in its words."""
        for file in told:
            if len(self._told) < _NEWS_MAX:
                self._told[Path(file.file), file.fate] = file.what, file.do
                self._count(Path(file.file), file.fate, file.what, file.do, 1)

    @property
    def told(self) -> tuple[ChangedFile, ...]:
        """The changes that are reported now."""
        return tuple(ChangedFile(str(path), fate, *words) for (path, fate), words in self._told.items())

    def withdraw(self, path: Path, fate: str) -> None:
        """Take back a report: it is over."""
        what, do = self._told.pop((path, fate), ("", ""))
        if what:
            self._count(path, fate, what, do, 0)

    def _count(self, path: Path, fate: str, what: str, do: str, value: int) -> None:
        self._counters.counter(FILES_CHANGED, file=str(path), fate=fate, what=what, do=do).set(value)


class HeldFile:
    """One file. Raises OSError where it cannot be opened.

    Args:
        file_bytes: how many it has to have.
    """

    def __init__(self, path: Path, file_bytes: int) -> None:
        self.path = path
        self.file_bytes = file_bytes
        self.descriptor = -1
        try:
            self.descriptor = open_plain(path, os.O_RDWR)
            status = os.fstat(self.descriptor)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            status = os.lstat(path)  # it is known, and not held
        self._identity = status.st_dev, status.st_ino
        self._access = access_of(status)
        self._head = b""

    def fault(self) -> str:
        """Say what is at the path instead of this file as it was; "" when nothing is."""
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return "was removed"
        except OSError:
            return ""  # a directory was closed to us; `access_fault` of that one says so
        if not stat.S_ISREG(found.st_mode):
            return f"was replaced by {kind_of(found.st_mode)}"
        if (found.st_dev, found.st_ino) != self._identity:
            return "was replaced"
        if found.st_size != self.file_bytes:
            return "was truncated" if found.st_size < self.file_bytes else "has grown"
        return ""

    def is_overwritten(self) -> bool:
        """Whether its first bytes changed since there was a record; they never do."""
        head = self.head()
        if not self._head:
            self._head = head if any(head) else b""
        return self._head not in (b"", head)

    def head(self) -> bytes:
        """Return its first bytes."""
        return os.pread(self.descriptor, _HEAD_BYTES, 0) if self.descriptor >= 0 else self._head

    def grow(self) -> int:
        """Give it its size again where it was truncated; returns the size it had. Raises OSError."""
        descriptor = open_plain(self.path, os.O_RDWR)
        try:
            size = os.fstat(descriptor).st_size
            os.posix_fallocate(descriptor, 0, self.file_bytes)
        finally:
            os.close(descriptor)
        return size

    def access_fault(self) -> tuple[str, str]:
        """Call the function of this name for this file."""
        return access_fault(self.path, os.fstat(self.descriptor), self._access) if self.descriptor >= 0 else ("", "")

    def close(self) -> None:
        """Let go of it, and of its bytes if it has no name."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class HeldDirectory:
    """One directory. Raises OSError where it cannot be opened.

    Args:
        locked: a descriptor of it, -1 for none: it is what is at the path now.
    """

    def __init__(self, path: Path, locked: int = -1) -> None:
        self.path = path
        self.is_link = path.is_symlink()
        self.descriptor = -1
        self.open(locked)

    def open(self, locked: int = -1) -> None:
        """Take it by its descriptor if it has a name, else what is at the path now."""
        if locked >= 0 and os.fstat(locked).st_nlink > 0:
            descriptor = os.dup(locked)
        else:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.close()
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self._identity = status.st_dev, status.st_ino
        self._access = access_of(status)

    def fault(self) -> str:
        """Say what is at the path instead of this directory; "" when nothing is."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return "was moved away" if self.where() else "was removed"
        except OSError:
            return ""
        return "" if (found.st_dev, found.st_ino) == self._identity else "was replaced"

    def where(self) -> Path | None:
        """Return the path that it has now; None when it has none."""
        if os.fstat(self.descriptor).st_nlink == 0:
            return None
        try:
            name = os.readlink(f"/proc/self/fd/{self.descriptor}")
        except OSError:
            return None
        return None if name.endswith(_DELETED) else Path(name)

    def put_back(self, where: Path, layout: StoreLayout) -> None:
        """Give it its path again, and put aside what lies there. Raises StoreError.

        Args:
            where: the path that it has.
        """
        path, fault = self.path, self.fault()
        is_hidden = str(where) in (str(path), os.path.realpath(path))  # another file system was mounted there
        if is_hidden or is_in_use(path):
            do = f"shmq stop; then put {where} back to {path}"
            raise StoreError(f"{fault}: another directory that is in use lies there", hint=do)
        try:
            put_aside(layout, path)
            (os.symlink if self.is_link else os.rename)(where, path)
            sync_directory(path.parent)
        except OSError as error:
            do = f"shmq stop; mv {where} {path}"
            raise StoreError(f"{fault} and cannot be put back: {reason_of(error)}", hint=do) from error

    def access_fault(self) -> tuple[str, str]:
        """Call the function of this name for this directory."""
        return access_fault(self.path, os.fstat(self.descriptor), self._access)

    def close(self) -> None:
        """Let go of it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def put_aside(layout: StoreLayout, path: Path, *, stays: bool = False) -> Path | None:
    """Move what lies at a path to `quarantine/`; returns where it is then, None where nothing was. Raises OSError.

    Args:
        stays: it keeps this name, too, until another takes that; a directory cannot.
    """
    if not os.path.lexists(path):
        return None
    if path == layout.root:
        directory, name = layout.root.parent, f"{path.name}.replaced"
    else:
        directory, name = layout.quarantine, "-".join(path.relative_to(layout.root).parts)
        layout.make_directory(directory)
    aside = free_name(directory, name)
    if stays and (path.is_symlink() or not path.is_dir()):
        os.link(path, aside, follow_symlinks=False)
    else:
        os.rename(path, aside)
    sync_directory(directory)
    return aside


def free_name(directory: Path, name: str) -> Path:
    """Return the first of name.1, name.2 and so on that nothing in a directory has."""
    number = 1
    while os.path.lexists(directory / f"{name}.{number}"):
        number += 1
    return directory / f"{name}.{number}"


def make_room(layout: StoreLayout, path: Path) -> None:
    """Move a directory aside that lies where a file belongs: it is neither unlinked nor replaced as a file is.

    Raises OSError.
    """
    if path.is_dir() and not path.is_symlink():
        put_aside(layout, path)


def is_in_use(directory: Path) -> bool:
    """Whether another broker has locked a directory as its store."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def put_back_directories(store: Path, descriptors: Sequence[int], log: EventLog) -> None:
    """Before a keeper looks at the store: give its locked directories the paths that they had.

    It would make empty ones there, or take what lies there for the store.

    Args:
        descriptors: of the store and of its commitlog/.

    Raises:
        StoreError: that cannot be. Clients go on in the locked ones.
    """
    layout = StoreLayout(store, access_rights())
    for path, descriptor in zip((layout.root, layout.commitlog), descriptors, strict=False):
        if os.fstat(descriptor).st_nlink == 0:
            continue  # the keeper makes it again
        directory = HeldDirectory(path, descriptor)
        try:
            where = directory.where()
            if where is not None and directory.fault():
                directory.put_back(where, layout)
                log("file.saved", file=str(path), what=f"was moved to {where} while no keeper ran")
        except StoreError as error:
            log("file.lost", file=str(path), what=str(error), do=error.hint)
            raise StoreError(f"{path} {error}", hint=error.hint) from error
        finally:
            directory.close()


def find_open(layout: StoreLayout) -> dict[int, str]:
    """Return log files that lost their name and are open somewhere: position -> a path under which one opens.

    What the store itself has removed or replaced does not count. Of one that has a successor, none counts but that of a
    process which has mapped what this one has. One that was moved has another name, and may be of another broker. Of
    several of one position the one counts that lost its name last: a program may still have what was saved before.
    """
    found: dict[int, tuple[int, str]] = {}
    directory, mapped = os.path.realpath(layout.commitlog), _shared_with("self")
    for pid, link in _links():
        with contextlib.suppress(OSError, ValueError):
            name = os.readlink(link)
            path = name.removesuffix(_DELETED)
            position = position_of(os.path.basename(path))
            if path == name or os.path.dirname(path) != directory or position is None:
                continue
            status = os.stat(link)
            if not is_given_up(status) and (not os.path.lexists(path) or mapped & _shared_with(pid)):
                found[position] = max(found.get(position, (-1, "")), (status.st_ctime_ns, link))
    return {position: link for position, (_, link) in found.items()}


def _links() -> Iterator[tuple[str, str]]:
    """Processes that we may look into, and links to all that is open in each."""
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(OSError):
                yield from ((pid, f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd"))


def _shared_with(pid: str) -> set[tuple[str, str]]:
    """Device and inode of the shared memory that a process has mapped. Raises OSError."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    fields = (line.split(maxsplit=5) for line in lines if "/dev/shm/" in line or "/SYSV" in line)
    return {(device, inode) for _, _, _, device, inode, _ in fields}


def access_of(status: os.stat_result) -> Access:
    """Return who may open a file."""
    return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid


def access_fault(path: Path, status: os.stat_result, before: Access) -> tuple[str, str]:
    """Say whether fewer may open a file than before, and the command that mends it; "" when nothing changed."""
    (mode, uid, gid), (mode_now, uid_now, gid_now) = before, access_of(status)
    if (uid, gid) != (uid_now, gid_now):
        what = f"belongs to {uid_now}:{gid_now} now, it was made for {uid}:{gid}"
        return what, f"chown {uid}:{gid} {path} && chmod {mode:o} {path}"
    if mode & ~mode_now:
        return f"has mode {mode_now:o} now, it was made with {mode:o}", f"chmod {mode:o} {path}"
    return "", ""
