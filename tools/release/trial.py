"""A wheel tried as a new user would: a new environment, no compiler, no checkout, and the tutorial as it is printed.

A wheel for another processor is tried inside the folder of a whole system for it, whose programs this host's kernel
gives to qemu. The system stays as it was: what it sees of this host is mounted for the one command only.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final, NamedTuple

from shmq.tools.release.interpreters import Interpreter
from shmq.tools.release.steps import Failure, run

PROGRAMS: Final = ("bash", "sh", "env", "cat", "sleep", "kill", "ldconfig", "uname")
"""What a host without a compiler has."""
ENTER: Final = """
root=$1 folder=$2; shift 2
for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
mount --bind "$folder" "$root/mnt"
for each in /etc/resolv.conf /etc/ssl/certs; do test ! -e "$root$each" || mount --bind "$each" "$root$each"; done
exec chroot "$root" "$@"
"""
TUTORIAL: Final = """
import pathlib
import platform
import shmq
from shmq.testing import Broker
from snippets import run, steps_of

folder = pathlib.Path("pasted")
folder.mkdir()
with Broker(tcp=True) as broker:
    for step in steps_of(pathlib.Path("tutorial.md"), folder):
        run(step, folder, broker.url)
print(platform.machine(), shmq.__file__)
"""


class Place(NamedTuple):
    """The place where a wheel is tried.

    Attributes:
        folder: as this host names it.
        inner: as the programs that run there name it.
        enter: what stands before each command.
    """

    folder: Path
    inner: Path
    enter: tuple[str, ...] = ()


def place(folder: Path, system: Path | None) -> Place:
    """Return a folder of this host, or the same folder as the other system's `/mnt`."""
    if system is None:
        return Place(folder, folder)
    return Place(folder, Path("/mnt"), ("unshare", "--mount", "sh", "-ec", ENTER, "enter", str(system), str(folder)))


def tried(root: Path, work: Path, wheel: Path, interpreter: Interpreter, system: Path | None = None) -> str:
    """Install a wheel where nothing else is, and do what the tutorial says; returns the processor it ran on.

    Args:
        system: the root folder of the system to do this in; this host's own where there is none.

    Raises:
        Failure: the tutorial does not work with it.
    """
    folder = work / f"trial-{wheel.stem}"
    programs = folder / "programs"
    programs.mkdir(parents=True)
    there = place(folder, system)
    for name in PROGRAMS:
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    shutil.copy(wheel, folder)
    shutil.copy(root / "docs/tutorial.md", folder)
    shutil.copy(root / "tests/documents/snippets.py", folder)
    name = f"python{interpreter.version}"
    path = f"PATH={there.inner}/venv/bin:{there.inner}/programs"

    def do(program: str | Path, *arguments: str | Path, environment: tuple[str, ...] = (path,)) -> str:
        command = ("env", "-C", there.inner, *environment, program, *arguments)
        return run(*there.enter, *command, cwd=folder)

    do(interpreter.program if system is None else name, "-m", "venv", "venv", environment=())
    python = there.inner / "venv/bin/python"
    do(python, "-m", "pip", "install", "-q", "--only-binary", "shmq", wheel.name, "pytest")
    printed = do(python, "-c", TUTORIAL)
    machine, _, where = printed.rstrip().rpartition("\n")[2].partition(" ")
    if where != f"{there.inner}/venv/lib/{name}/site-packages/shmq/__init__.py":
        raise Failure(f"the tutorial ran with another shmq: {printed}")
    return machine
