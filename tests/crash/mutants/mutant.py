"""Defects put in on purpose, each of which some test has to notice.

A mutant replaces text in modules as they are imported (`inject/sitecustomize.py`), in the process of the tests and in
every process of the broker they start; no file is changed. Where it edits the core, an extension module of its own is
compiled. It is caught when the tests that are to notice it fail; a mutant whose text is not there any more fails by
itself.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.crash.core_build import Edit, core_file, extension

ROOT = Path(__file__).resolve().parents[3]
_INJECT = Path(__file__).with_name("inject")
_RUN_SECONDS = 400
# Without pytest's own importer, which would read the modules of a package with a pytest plugin itself.
_PYTEST = ("-m", "pytest", "-x", "-q", "-n", "0", "--all", "--assert=plain", "-p", "no:cacheprovider", "--durations=0")


@dataclass(frozen=True)
class Outcome:
    """How a run of some tests ended, and what it said."""

    is_passed: bool
    text: str


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes:
        edits: file, old text, new text; a Python file by its path from the root, one of the core by its name.
        noticed_by: the tests of which one has to fail, as pytest names them.
    """

    edits: tuple[Edit, ...]
    noticed_by: tuple[str, ...]

    def missing_texts(self) -> list[str]:
        """The texts to be replaced that do not stand in their file exactly once."""
        return [f"{edit.file}: {edit.old}" for edit in self.edits if _path(edit).read_text().count(edit.old) != 1]

    def missing_tests(self) -> list[str]:
        """The tests it names that are not there."""
        return [name for name in self.noticed_by if not _is_there(*name.partition("[")[0].split("::"))]

    def run(self) -> Outcome:
        """Run the tests that are to notice it."""
        table: dict[str, list[tuple[str, str]]] = {}
        for edit in self.edits:
            if edit.file.endswith(".py"):
                table.setdefault(_module(edit.file), []).append((edit.old, edit.new))
        of_core = [edit for edit in self.edits if not edit.file.endswith(".py")]
        variables = {"SEEDED_MUTANT": json.dumps(table), "PYTHONPATH": f"{_INJECT}"}
        if of_core:
            variables["SEEDED_CORE"] = str(extension(of_core))
        return run_tests(self.noticed_by, variables)


def run_tests(names: Iterable[str], variables: dict[str, str] | None = None) -> Outcome:
    """Run tests in a process of their own, which ends at the first that fails."""
    done = subprocess.run(
        [sys.executable, *_PYTEST, *names],
        cwd=ROOT,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_SECONDS,
    )
    assert done.returncode in (0, 1), f"status {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    return Outcome(done.returncode == 0, done.stdout)


def _is_there(file: str, *names: str) -> bool:
    path = ROOT / file
    return path.is_dir() or (path.is_file() and all(re.search(rf"(def|class) {n}\b", path.read_text()) for n in names))


def _path(edit: Edit) -> Path:
    return ROOT / edit.file if edit.file.endswith(".py") else core_file(edit.file)


def _module(file: str) -> str:
    """The name a file of the tree is imported by: shmq/x.py as shmq.x, daemon/x.py as shmq.daemon.x."""
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.startswith("shmq.") else f"shmq.{name}"
