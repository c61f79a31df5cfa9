"""The Pythons of this host for which a wheel is built."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")


class Interpreter(NamedTuple):
    """A CPython that runs here."""

    version: str
    program: Path


def found(wanted: Sequence[str]) -> list[Interpreter]:
    """Return the interpreters that are named, else all of `VERSIONS` on the path; a name may be there and not run."""
    named = wanted or [f"python{version}" for version in VERSIONS]
    programs = [Path(program) for name in named if (program := shutil.which(name))]
    return [Interpreter(version, program) for program in programs if (version := _version(program))]


def _version(program: Path) -> str:
    ask = "import sys; print('%d.%d' % sys.version_info[:2], sys.implementation.name, sys.base_prefix)"
    done = subprocess.run([program, "-c", ask], capture_output=True, text=True, check=False)
    version, _, rest = done.stdout.partition(" ")
    return version if done.returncode == 0 and rest.startswith("cpython") else ""
