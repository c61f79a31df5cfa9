"""What an operator, a cleaner or a bad copy does to a file of a store that is stopped."""

import os
from pathlib import Path


def moved(path: Path) -> Path:
    """Where `linked` moves a file to."""
    return path.with_name(f"{path.name}.moved")


def removed(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x" * 100)


def linked(path: Path) -> None:
    path.rename(moved(path))
    path.symlink_to(moved(path))


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


SIZES = (removed, emptied, halved, zeroed, grown)
NO_FILES = (linked, dangling, directory, pipe)
