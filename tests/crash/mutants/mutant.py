"""Defects put in on purpose, each of which a scenario of this folder has to notice.

A mutant replaces text in modules as they are imported (`inject/sitecustomize.py`), in the scenario's own process and in
every process of the broker it starts; no file is changed. It is caught when the scenario ends with exit code 1 for one
of the seeds it is given; a mutant whose text is not there any more fails by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_INJECT = Path(__file__).with_name("inject")
_TRY_SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """One defect.

    Attributes:
        name: what is wrong, in words.
        edits: module, old text, new text.
        scenario: the turn of `python -m tests.crash` that notices.
        tries: how many seeds it may take.
    """

    name: str
    edits: tuple[tuple[str, str, str], ...]
    scenario: tuple[str, ...]
    tries: int = 4

    def check_texts(self) -> None:
        """Import the changed modules. Raises AssertionError when a text to be replaced is not there."""
        modules = sorted({module for module, _, _ in self.edits})
        done = self._run(["-c", "; ".join(f"import {module}" for module in modules)])
        assert done.returncode == 0, done.stderr[-2000:]

    def caught(self, seed: int) -> str:
        """What the scenario said about it, or "" when it noticed nothing."""
        for number in range(self.tries):
            arguments = ["-m", "tests.crash", "--minutes", "0", "--seed", str(seed + number), "--only", *self.scenario]
            done = self._run(arguments)
            assert done.returncode in (0, 1), done.stderr[-2000:]
            if done.returncode == 1:
                return done.stdout
        return ""

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        table: dict[str, list[tuple[str, str]]] = {}
        for module, old, new in self.edits:
            table.setdefault(module, []).append((old, new))
        environment = {**os.environ, "SEEDED_MUTANT": json.dumps(table), "PYTHONPATH": f"{_INJECT}"}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRY_SECONDS,
        )
