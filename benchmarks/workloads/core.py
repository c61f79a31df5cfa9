"""The figures of the C core alone: builds append.c, kill.c and wave.c with the sources in `bindings/` and runs them.

The C programs include `bindings/shmq.h`.
"""

from __future__ import annotations

import json
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

BINDINGS = Path(__file__).resolve().parents[2] / "bindings"
HERE = Path(__file__).resolve().parent
FLAGS = ("-std=c11", "-O2", "-flto", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE")
PROGRAM_SECONDS_MAX = 300.0


def core_sources() -> list[Path]:
    """The C files that do not know Python."""
    return sorted((BINDINGS / "core").rglob("*.c"))


@cache
def _workshop() -> tempfile.TemporaryDirectory[str]:
    """The folder in which the programs are built; removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="bench-core-")


@cache
def build(program: str, *defines: str) -> Path:
    """Compile one program of this folder with the core; returns the executable.

    Raises:
        RuntimeError: the compiler's words.
    """
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    built = Path(_workshop().name) / program
    sources = [HERE / f"{program}.c", *core_sources()]
    files = ["-o", str(built), *map(str, sources)]
    command = [compiler, *FLAGS, *defines, f"-I{BINDINGS}", *files, "-pthread", "-lrt"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{compiler} could not build {program}:\n{done.stderr[-2000:]}")
    return built


@contextmanager
def _directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="bench-store-") as directory:
        yield directory


def _run(program: Path, *arguments: str) -> dict[str, float]:
    with _directory() as directory:
        command = [str(program), directory, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX)
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} failed: {done.stderr.strip()}")
    values: dict[str, float] = json.loads(done.stdout)
    return values


def run_program(program: str, *arguments: str) -> dict[str, float]:
    """Build a program of this folder, run it in an empty directory, and return what it printed."""
    return _run(build(program), *arguments)


def append_call(count: int, size: int = 256) -> dict[str, float]:
    """Percentiles of one shmq_append call in nanoseconds, without daemon and flush."""
    return _run(build("append"), str(count), str(size))


def wave(sleepers: int, rounds: int) -> dict[str, float]:
    """Medians in microseconds of messages for which so many processes sleep, and of bare processes woken in a tree.

    Returns:
        send_us (until the writer goes on), one_us (the same with one sleeper), ratio, last_us (until the last sleeper
        is awake), bare_last_us, and to_bare (last_us / bare_last_us).
    """
    one = _run(build("wave"), "1", str(rounds))
    many = _run(build("wave"), str(sleepers), str(rounds))
    return {
        "send_us": many["send"] / 1000,
        "one_us": one["send"] / 1000,
        "ratio": many["send"] / one["send"],
        "last_us": many["last"] / 1000,
        "bare_last_us": many["bare_last"] / 1000,
        "to_bare": many["last"] / many["bare_last"],
    }


def owner_killed(kills: int) -> dict[str, float]:
    """Percentiles, in microseconds, from the SIGKILL of the lock's holder to the next successful append."""
    values = _run(build("kill", "-DSHMQ_TEST_POINTS"), str(kills))
    return {name: value if name == "points" else value / 1000 for name, value in values.items()}
