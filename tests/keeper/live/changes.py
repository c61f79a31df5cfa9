"""What operators and their programs do to the files of a store, and to which of them."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.tools.store.conftest import copy_file

_OTHER_UID = 12345
_CUT_BYTES = 3 * 4096 + 10
GROWTH = b"more"

LOG = ("log file in use", "older log file", "first log file")
LOG_DIRECTORIES = ("commitlog", "store")
TABLES = ("topics.json", "topics.json.bak", "subscriptionGroup.json", "consumerOffset.json", "shmq.json")
FILES = (
    *(f"config/{name}" for name in TABLES),
    *("shmq.durable", "checkpoint", "shmq.units", "shmq.index", "abort", "lock"),
    *("consumequeue/orders/0/00000000000000000000", "index/*"),
)
DIRECTORIES = ("config", "consumequeue", "consumequeue/bills", "index")

Do = Callable[[Path, Path], object]
"""Changes what is at a path; the second one is a free name on the same disk, where an older copy may lie."""


def copy(path: Path, to: Path) -> None:
    """Copy a file or a directory, with holes; what a broker removes meanwhile is left out, as by `cp`."""
    if path.is_dir():
        shutil.copytree(path, to, copy_function=_copy_unless_gone)
    else:
        copy_file(str(path), str(to))


def _copy_unless_gone(one: str, other: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        copy_file(one, other)


def remove(path: Path, _: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # the broker makes it again meanwhile
    else:
        path.unlink()


def move_away(path: Path, room: Path) -> None:
    os.rename(path, room.with_suffix(".moved"))


def put_a_copy(path: Path, room: Path) -> None:
    now = room.with_suffix(".now")
    copy(path, now)
    put(path, now)


def put_an_older(path: Path, room: Path) -> None:
    put(path, room) if room.exists() else put_a_copy(path, room)


def put(path: Path, other: Path) -> None:
    """Let another file or directory take a name."""
    if path.is_dir():
        move_away(path, other.with_suffix(".before"))
    os.rename(other, path)


def put_a_link(path: Path, room: Path) -> None:
    move_away(path, room)
    path.symlink_to(room.with_suffix(".moved"))


def put_a_directory(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def put_a_fifo(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def truncate(path: Path, _: Path) -> None:
    os.truncate(path, min(_CUT_BYTES, path.stat().st_size // 2))


def grow(path: Path, _: Path) -> None:
    with path.open("ab") as file:
        file.write(GROWTH)


def change_mode(path: Path, _: Path) -> None:
    path.chmod(0)


def change_owner(path: Path, _: Path) -> None:
    os.chown(path, _OTHER_UID, _OTHER_UID)


REPLACEMENTS: dict[str, Do] = {
    "removed": remove,
    "moved away": move_away,
    "replaced by a copy": put_a_copy,
    "replaced by an older copy": put_an_older,
}
OF_FILES: dict[str, Do] = {
    **REPLACEMENTS,
    "replaced by a link": put_a_link,
    "replaced by a directory": put_a_directory,
    "replaced by a FIFO": put_a_fifo,
    "truncated": truncate,
    "grown": grow,
}
OF_ACCESS: dict[str, Do] = {"closed": change_mode, **({"given away": change_owner} if os.geteuid() == 0 else {})}
CHANGES: dict[str, Do] = OF_FILES | OF_ACCESS


class Change(NamedTuple):
    """One thing that is done to one file or directory."""

    target: str
    name: str

    @property
    def is_of_log(self) -> bool:
        """Whether acknowledged messages lie there."""
        return self.target in (*LOG, *LOG_DIRECTORIES)

    @property
    def is_of_access(self) -> bool:
        """Whether all bytes stay where they are."""
        return self.name in OF_ACCESS

    def path(self, store: Path, file_bytes: int, log_end: int) -> Path:
        """Where the target is."""
        if self.target in LOG:
            in_use = log_end - log_end % file_bytes
            position = {"log file in use": in_use, "older log file": in_use - file_bytes}.get(self.target, 0)
            return store / "commitlog" / f"{position:020d}"
        if self.target == "store":
            return store
        found = sorted(store.glob(self.target))
        return found[-1] if found else store / self.target


def changes() -> list[Change]:
    """Every one."""
    of_files = [Change(target, name) for target in (*LOG, *FILES) for name in (*OF_FILES, *OF_ACCESS)]
    directories = (*LOG_DIRECTORIES, *DIRECTORIES)
    of_directories = [Change(target, name) for target in directories for name in (*REPLACEMENTS, *OF_ACCESS)]
    # Nothing is in these files; of a hundred thousand directories of queues only what is missing is looked for.
    unseen = [(name, change) for name in ("abort", "lock") for change in ("truncated", "grown")]
    unseen += [("consumequeue/bills", name) for name in OF_ACCESS]
    return [change for change in of_files + of_directories if change not in unseen]
