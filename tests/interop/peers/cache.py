"""Owns the cache directory of the peers: one entry a name, made once, by the first process that needs it.

It does not know what an entry holds. An entry is complete when it has its final name: it is built in a directory beside
it and renamed. A file lock keeps two test runs from building the same one.

(1) `PeerMissing` is the only way to say that a peer cannot be had; its text is the reason for a skip.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

FETCH_TIMEOUT = 600.0
DIRECTORY_VARIABLE = "SHMQ_PEERS_DIR"
REQUIRE_VARIABLE = "SHMQ_REQUIRE_INTEROP"


class PeerMissing(Exception):
    """A tool chain, a registry or an artifact is not there."""


def is_required() -> bool:
    """Whether a missing peer is a failure instead of a skip."""
    return os.environ.get(REQUIRE_VARIABLE, "") not in ("", "0")


def directory() -> Path:
    """Where entries are kept; made when it does not exist."""
    path = Path(os.environ.get(DIRECTORY_VARIABLE) or Path.home() / ".cache" / "shmq-peers")
    path.mkdir(parents=True, exist_ok=True)
    return path


def program(name: str, package: str) -> str:
    """Return the path of a tool; the Debian package that has it is named when it is missing."""
    found = shutil.which(name)
    if found is None:
        raise PeerMissing(f"{name} is not installed  (apt-get install {package})")
    return found


def entry(name: str, build: Callable[[Path], None]) -> Path:
    """Return the directory of an entry, after building it if it is not there.

    Raises:
        PeerMissing: `build` raised it; nothing is left behind, and the next call tries again.
    """
    final = directory() / name
    if final.is_dir():
        return final
    with open(directory() / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=directory()))
        try:
            build(scratch)
            scratch.rename(final)
        finally:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(scratch)
    return final


def run(command: Sequence[str | Path], directory: Path, what: str, **environment: str) -> None:
    """Run a step of a build.

    Raises:
        PeerMissing: it failed or did not end; the last lines of its output are the reason.
    """
    words = [str(word) for word in command]
    try:
        result = subprocess.run(
            words,
            cwd=directory,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=FETCH_TIMEOUT,
            check=False,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{what}: {words[0]} did not end within {FETCH_TIMEOUT:g} s") from None
    if result.returncode != 0:
        lines = [line for line in (result.stdout + result.stderr).splitlines() if line.strip()]
        raise PeerMissing(f"{what}: {words[0]} ended with {result.returncode}: " + " | ".join(lines[-4:])[:800])
