"""Compiles chosen files of the C core on their own and loads them, with or without sanitizers. Tests only.

A test declares the structs and argument types of these files that it needs.

* `load_core("record/crc.c", ...)` gives a `ctypes.CDLL` in this process, built as the product is, with test points.
* `run_sanitized(script, "record/crc.c", ...)` runs a Python script in a child whose copy of the library is built with
  ASan and UBSan; `sys.argv[1]` is the library, every error ends the child with a non-zero status.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BINDINGS = Path(__file__).resolve().parents[2] / "bindings"
_FLAGS = (
    "-std=c11",
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-D_GNU_SOURCE",
    "-DSHMQ_TEST_POINTS",
    "-fPIC",
    "-shared",
)
_SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


@functools.cache
def _build_directory() -> tempfile.TemporaryDirectory[str]:
    """One private directory for this process, removed at its end."""
    return tempfile.TemporaryDirectory(prefix="shmq-core-")


@functools.cache
def build_core(*names: str, flags: tuple[str, ...] = ()) -> Path:
    """Compile `names` (files below bindings/core, or absolute paths of test-only C files) into one shared library.

    Raises AssertionError with the compiler's words when they do not compile.
    """
    sources = [str(BINDINGS / "core" / name) for name in names]
    target = Path(_build_directory().name) / f"core-{abs(hash((names, flags))):x}.so"
    command = [os.environ.get("CC", "cc"), *_FLAGS, *flags, f"-I{BINDINGS}", *sources, "-o", str(target), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return target


def load_core(*names: str) -> ctypes.CDLL:
    """Compile `names` as the product is built and load them; errno is kept for `ctypes.get_errno()`."""
    return ctypes.CDLL(str(build_core(*names)), use_errno=True)


def run_sanitized(
    script: str, *names: str, arguments: Sequence[str] = (), timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run the Python text `script` in a child with a sanitized build of `names`; the caller asserts the status.

    The child allocates with malloc, so every bytes object and ctypes buffer has poisoned neighbours.
    """
    library = build_core(*names, flags=_SANITIZERS)
    compiler = os.environ.get("CC", "cc")
    runtimes = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": ":".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(BINDINGS.parent),  # the script may import the test that runs it
    }
    return subprocess.run(
        [sys.executable, "-c", script, str(library), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment,
        check=False,
    )
