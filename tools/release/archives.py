"""The archives of a release, each made from the one before: checkout → source archive → wheels; pages.

A wheel is built from the source archive, so what the archive lacks is noticed. auditwheel names the oldest system that
it runs on, by the symbols of the C library that it uses.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shmq.tools.release.interpreters import Interpreter
from shmq.tools.release.machines import Machine
from shmq.tools.release.steps import Failure, run

NATIVE: Final = ("shmq/bindings/_core.", "shmq/bindings/libshmq.so.")


class Archives:
    """Builds into one folder, with environments in another."""

    def __init__(self, root: Path, work: Path, target: Path) -> None:
        self._root = root
        self._work = work
        self._target = target

    def source(self) -> Path:
        """Build the source archive."""
        into = self._work / "source"
        run(sys.executable, "-P", "-m", "build", "--sdist", "--outdir", into, self._root, cwd=self._work)
        [made] = into.glob("*.tar.gz")
        return made.replace(self._target / made.name)

    def wheel(self, source: Path, interpreter: Interpreter, machine: Machine) -> Path:
        """Build a wheel, and give it the name of the oldest system it runs on.

        Raises:
            Failure: it cannot be built, or carries a library of this host.
        """
        builder = self._work / f"build-{interpreter.version}-{machine.name}"
        settings = machine.settings(interpreter.version)
        run(interpreter.program, "-m", "venv", builder, cwd=self._work)
        into = builder / "wheel"
        pip = (builder / "bin/python", "-m", "pip")
        run(*pip, "wheel", "-q", "--no-deps", "-w", into, source, cwd=self._work, also=settings)
        [made] = into.glob("*.whl")
        named = builder / "named"
        run(sys.executable, "-P", "-m", "auditwheel", "repair", "--wheel-dir", named, made, cwd=self._work)
        [wheel] = named.glob("*.whl")
        return checked(wheel).replace(self._target / wheel.name)

    def pages(self) -> Path:
        """Build the site of all pages, in which every link leads somewhere."""
        site = self._work / "site"
        run(
            sys.executable,
            "-P",
            "-m",
            "sphinx",
            "-q",
            "-W",
            "-c",
            self._root / "docs",
            self._root,
            site,
            cwd=self._root,
        )
        version = next(self._target.glob("shmq-*.tar.gz")).name.split("-")[1].removesuffix(".tar.gz")
        archive = self._target / f"shmq-{version}-pages.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(
                site, arcname=f"shmq-{version}-pages", filter=lambda each: None if ".doctrees" in each.name else each
            )
        return archive


def checked(wheel: Path) -> Path:
    """Return the wheel when it holds what it needs, each file once, and no library of the host that built it.

    Raises:
        Failure: names what is wrong, and all its files.
    """
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    missing = [start for start in NATIVE if not any(name.startswith(start) for name in names)]
    if missing or len(names) != len(set(names)) or any(".libs/" in name for name in names):
        raise Failure(
            f"{wheel.name} lacks {missing}, has a file twice, or a library of this host:\n" + "\n".join(names)
        )
    return wheel


def checksums(archives: Iterable[Path]) -> str:
    """Return the lines of SHA256SUMS."""
    return "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(archives))
