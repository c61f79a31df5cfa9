"""One command of a release, run in an environment that nothing of this one leaks into."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

KEPT: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "HTTPS_PROXY")
"""What a command may know of the caller's environment, beside the settings of pip."""


class Failure(Exception):
    """A step did not do what it should; the text says which, and what it printed."""


def run(*command: str | Path, cwd: Path, also: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        Failure: it ended with another status than 0.
    """
    environment = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("PIP_")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**environment, **(also or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"exit status {done.returncode} of {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout
