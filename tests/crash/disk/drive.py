"""A real file system on a drive whose cache a power cut empties: ext4 on a loop device on `volatile_drive.c`.

    with VolatileDrive() as drive:              # as root
        ...                                     # files below drive.root
        drive.slow(40)                          # each flush of the drive takes up to 40 ms
        drive.cut(image, seed=7)                # what the medium may hold if the power goes now
    with mounted(image, directory) as root:     # the file system replays its journal
        ...

The file system goes on after a cut: nothing is frozen, synced or unmounted for it. Of a cut the drive decides which
blocks of its cache reached the medium: none, all, the first ones, or each by itself; everything that it was asked to
flush before is there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

DRIVE_BYTES = 128 << 20
_SOURCE = Path(__file__).with_name("volatile_drive.c")
_FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror")
_PROGRAMS = ("losetup", "mkfs.ext4", "mount", "umount")
_BLOCK_BYTES = "4096"
_JOURNAL = "size=8"
_WAIT_SECONDS = 120


@functools.cache
def reason_without_drives() -> str | None:
    """Say why this host cannot have such a drive; None when it can."""
    if os.geteuid() != 0:
        return "only root may mount file systems"
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not os.access(path, os.R_OK | os.W_OK):
            return f"{path} cannot be opened"
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    try:
        with VolatileDrive():
            return None
    except (OSError, RuntimeError) as refused:
        return f"this host refuses to mount: {refused}"


class VolatileDrive:
    """A drive with one ext4 file system, mounted at `root`."""

    def __init__(self, size_bytes: int = DRIVE_BYTES) -> None:
        self._size_bytes = size_bytes
        self._stack = contextlib.ExitStack()
        self._process: subprocess.Popen[str]
        self.root: Path

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shmq-drive-", dir="/tmp")))
            (place / "device").mkdir()
            (place / "root").mkdir()
            program = place / "volatile_drive"
            _run("cc", *_FLAGS, "-o", str(program), str(_SOURCE))
            stack.enter_context(self._served(program, place / "device"))
            loop = stack.enter_context(_looped(place / "device" / "drive"))
            made = ("-E", "nodiscard", "-J", _JOURNAL, "-b", _BLOCK_BYTES, "-m", "0")
            _run("mkfs.ext4", "-q", "-F", *made, loop)
            stack.enter_context(_mounted(loop, place / "root"))
            self.root = place / "root"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def slow(self, flush_ms_max: int) -> None:
        """Let each flush take up to that long."""
        self._tell(f"slow {flush_ms_max}")

    def cut(self, into: Path, *, seed: int) -> str:
        """Write what the medium may hold if the power goes now to the file `into`; returns how that was chosen."""
        chance = random.Random(seed)
        manner = chance.choice(("first", "each", "each"))
        percent = chance.choice((0, 100, 10, 50, 90))
        self._tell(f"cut {seed} {manner} {percent} {into}")
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the drive ended")
        return f"seed {seed}: {percent} % of {int(answer)} blocks, {'the first' if manner == 'first' else 'each'}"

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    @contextlib.contextmanager
    def _served(self, program: Path, mount: Path) -> Iterator[None]:
        command = [str(program), str(mount), str(self._size_bytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert self._process.stdout is not None
            if self._process.stdout.readline() != "ready\n":
                raise RuntimeError("the drive did not get ready; its reason stands above")
            yield
        finally:
            self._process.communicate(timeout=_WAIT_SECONDS)


@contextlib.contextmanager
def mounted(image: Path, directory: Path) -> Iterator[Path]:
    """Mount the file system of an image below `directory`, as the next start of the machine does."""
    root = directory / "mounted"
    root.mkdir(exist_ok=True)
    with _looped(image) as loop, _mounted(loop, root):
        yield root


@contextlib.contextmanager
def _looped(file: Path) -> Iterator[str]:
    loop = _run("losetup", "--find", "--show", "--sector-size", _BLOCK_BYTES, str(file)).strip()
    try:
        yield loop
    finally:
        _run("losetup", "--detach", loop)


@contextlib.contextmanager
def _mounted(device: str, root: Path) -> Iterator[None]:
    _run("mount", "-t", "ext4", device, str(root))
    try:
        yield
    finally:
        # A process that is about to end may have files open there: the name goes now, the rest with it.
        _run("umount", "--lazy", str(root))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_WAIT_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
