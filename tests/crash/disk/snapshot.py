"""What a power cut leaves: any of the many directories that a moment of a `FaultyDisk` allows.

    durable for certain      what files held at their last sync; names whose directory was synced after them
    open                     every 4 KiB page written since then, every name given or taken since then

An image decides each open question by a seed and writes the directory that results. Four manners take turns: nothing
that was open reached the disk; everything did; each page and name by itself did or did not; the same with pages that
are torn at 512 bytes and sectors in flight that hold garbage. Names go by themselves, or the first few of them in
order, which is what a journalling file system leaves.

A page that a failed sync lost never reaches the disk, unless it was written again (`faulty_disk.c`).
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PAGE = 4096
_SECTOR = 512
_ZEROS = bytes(_PAGE)


@dataclass
class _File:
    """One inode: pages as they are on disk for certain, and how they read now."""

    size_durable: int = 0
    size_live: int = 0
    durable: dict[int, bytes] = field(default_factory=dict)  # page number -> content, where it is not zeros
    live: dict[int, bytes] = field(default_factory=dict)  # only pages that differ and may still reach the disk


@dataclass(frozen=True)
class _Change:
    """A name that was given (inode) or taken away (None), or a directory; durable once `home` is synced."""

    homes: frozenset[str]
    names: tuple[tuple[str, int | None], ...]


class Snapshot:
    """A copy of a disk at one moment.

    Args:
        directory: holds `live`, `shadow`, `lost` and `journal`.
        inodes: the inode of each file below `live`.
    """

    def __init__(self, directory: Path, inodes: Mapping[Path, int]) -> None:
        self._directory = directory
        self._durable: dict[str, int | None] = {}  # path -> inode; None is a directory
        self._open: list[_Change] = []
        self._read_journal((directory / "journal").read_text().splitlines())
        self._files = {inode: self._file(inode, directory / "live" / path) for path, inode in inodes.items()}
        for inode in {inode for change in self._open for _, inode in change.names if inode is not None}:
            self._files.setdefault(inode, self._file(inode, None))
        for inode in self._durable.values():
            if inode is not None:
                self._files.setdefault(inode, self._file(inode, None))

    @property
    def pages_open(self) -> int:
        """How many pages may or may not have reached the disk."""
        return sum(len(each.live) for each in self._files.values())

    @property
    def names_open(self) -> int:
        """How many changes of names may or may not have reached the disk."""
        return len(self._open)

    def image(self, seed: int, into: Path, *, share: float | None = None) -> str:
        """Write one directory that a power cut may leave, and return in words how it was chosen.

        Args:
            share: how much of what was open reached the disk; None draws it.
        """
        chance = random.Random(seed)
        manner = chance.choice(("nothing", "everything", "pages", "pages", "sectors"))
        if share is None:
            share = {"nothing": 0.0, "everything": 1.0}.get(manner, chance.choice((0.1, 0.5, 0.9)))
        else:
            manner = {0.0: "nothing", 1.0: "everything"}.get(share, "pages")
        names, how = self._names(chance, manner, share)
        into.mkdir(parents=True)
        for path in sorted(path for path, inode in names.items() if inode is None):
            (into / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for path, inode in names.items():
            target = into / path.lstrip("/")
            # A directory whose name did not reach the disk takes what is in it along.
            if inode is not None and target.parent.is_dir() and path:
                self._write(self._files[inode], target, chance, manner, share)
        return f"seed {seed}: {manner} {share:g}, names {how}, {self.pages_open} pages and {self.names_open} names open"

    def _names(self, chance: random.Random, manner: str, share: float) -> tuple[dict[str, int | None], str]:
        in_order = chance.random() < 0.5
        until = round(len(self._open) * (share if manner in ("nothing", "everything") else chance.random()))
        names = dict(self._durable)
        for number, change in enumerate(self._open):
            if number < until if in_order else chance.random() < share:
                _apply(names, change)
        return names, f"the first {until}" if in_order else "each by itself"

    def _write(self, file: _File, target: Path, chance: random.Random, manner: str, share: float) -> None:
        size = file.size_live if chance.random() < share else file.size_durable
        pages = dict(file.durable)
        for number, content in file.live.items():
            if chance.random() >= share:
                continue
            pages[number] = _torn(pages.get(number, _ZEROS), content, chance) if manner == "sectors" else content
            size = max(size, min(file.size_live, (number + 1) * _PAGE))
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.ftruncate(descriptor, size)
            for number, content in pages.items():
                if number * _PAGE < size:
                    os.pwrite(descriptor, content[: size - number * _PAGE], number * _PAGE)
        finally:
            os.close(descriptor)

    def _read_journal(self, lines: list[str]) -> None:
        for line in lines:
            word, *rest = line.split(" ")
            if rest[0] == "":
                rest[0] = "/"  # the root itself
            if word == "syncdir":
                self._sync_names(rest[0])
            elif word in ("set", "mkdir"):
                self._change([(rest[0], int(rest[1]) if word == "set" else None)])
            elif word in ("unset", "rmdir"):
                self._change([(rest[0], _GONE)])
            elif word == "rename":
                self._change([(rest[0], _GONE), (rest[1], int(rest[2]))])

    def _change(self, names: list[tuple[str, int | None]]) -> None:
        self._open.append(_Change(frozenset(os.path.dirname(path) for path, _ in names), tuple(names)))

    def _sync_names(self, directory: str) -> None:
        rest: list[_Change] = []
        for change in self._open:
            if directory in change.homes:
                _apply(self._durable, change)
                paths = {path for path, _ in change.names}
                # What was done to these names before is part of it.
                rest = [each for each in rest if not paths.issuperset(path for path, _ in each.names)]
            else:
                rest.append(change)
        self._open = rest

    def _file(self, inode: int, live_path: Path | None) -> _File:
        found = _File()
        shadow = self._directory / "shadow" / str(inode)
        if shadow.exists():
            found.size_durable = shadow.stat().st_size
            found.durable = _pages(shadow)
        found.size_live = found.size_durable
        if live_path is None or not live_path.exists():
            return found
        found.size_live = live_path.stat().st_size
        now, then = _pages(live_path), self._directory / "lost" / f"{inode}.content"
        marks = self._directory / "lost" / str(inode)
        lost = marks.read_bytes() if marks.exists() else b""
        before = _pages(then) if lost else {}
        for number in now.keys() | found.durable.keys():
            content = now.get(number, _ZEROS)
            is_lost = number < len(lost) and lost[number] and before.get(number, _ZEROS) == content
            if content != found.durable.get(number, _ZEROS) and not is_lost:
                found.live[number] = content
        return found


_GONE = -1


def _apply(names: dict[str, int | None], change: _Change) -> None:
    for path, inode in change.names:
        if inode == _GONE:
            names.pop(path, None)
        else:
            names[path] = inode


def _pages(path: Path) -> dict[int, bytes]:
    """The pages of a file that hold something else than zeros, each filled up to 4 KiB."""
    found: dict[int, bytes] = {}
    with path.open("rb") as file:
        at, end = 0, os.fstat(file.fileno()).st_size
        while at < end:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # only holes are left
                break
            at -= at % _PAGE
            hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            for begin in range(at, hole, _PAGE):
                content = os.pread(file.fileno(), _PAGE, begin).ljust(_PAGE, b"\0")
                if content != _ZEROS:
                    found[begin // _PAGE] = content
            at = max(hole, at + _PAGE)
    return found


def _torn(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """A page of which some sectors are old, some new, and one that was in flight may be neither."""
    parts = [(new if chance.random() < 0.5 else old)[at : at + _SECTOR] for at in range(0, _PAGE, _SECTOR)]
    changed = [
        index for index in range(len(parts)) if old[index * _SECTOR :][:_SECTOR] != new[index * _SECTOR :][:_SECTOR]
    ]
    if changed and chance.random() < 0.3:
        index = chance.choice(changed)
        parts[index] = _in_flight(old[index * _SECTOR :][:_SECTOR], new[index * _SECTOR :][:_SECTOR], chance)
    return b"".join(parts)


def _in_flight(old: bytes, new: bytes, chance: random.Random) -> bytes:
    """A sector with garbage where it was changed; disks keep the bytes that a write leaves as they are."""
    differ = [at for at in range(_SECTOR) if old[at] != new[at]]
    first, end = differ[0], differ[-1] + 1
    return old[:first] + chance.randbytes(end - first) + old[end:]
