"""Builds C test programs together with the C core, object by object, so that one changed file costs one compilation.

`program(...)` links `tests/**/x.c` files with every C file of `bindings/core`. `edits` replace text in chosen core
files and headers first (mutants); a file is named without its folder, and the text must occur in it exactly once.
`extension(...)` makes Python's extension module of the core and its face, with such edits.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent.parent
BINDINGS = TESTS.parent / "bindings"
WARNINGS = ("-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE")
PLAIN = ("-O2",)
ADDRESS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
THREAD = ("-O1", "-fsanitize=thread", "-fno-omit-frame-pointer")
POINTS = "-DSHMQ_TEST_POINTS"
SOAK = ("crash/soak/soak.c", "crash/soak/soak_actors.c", "crash/soak/soak_check.c", "crash/arena.c")
LONG = os.environ.get("SHMQ_CRASH_LONG", "") not in ("", "0")
RUN_SECONDS_MAX = 6 * 3600 if LONG else 300  # a watchdog, far above what a run needs


class Edit(NamedTuple):
    """Replace `old` by `new` in one core file or header."""

    file: str
    old: str
    new: str


# The commit point in front of what it commits; the check that would refuse to move the end again goes, too.
END_BEFORE_COPY = (
    Edit(
        "commit.h",
        "    if (commit.data != NULL) {\n",
        "    atomic_store_explicit(&log->end, position + commit.bytes, memory_order_release);\n"
        "    if (commit.data != NULL) {\n",
    ),
    Edit(
        "commit.h",
        "    if (end <= atomic_load_explicit(&log->end, memory_order_relaxed) ||\n        at > ",
        "    if (at > ",
    ),
)


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="shmq-crash-")


def core_sources() -> list[Path]:
    """Every C file of the core: the folder beside the Python face, free of Python."""
    return sorted((BINDINGS / "core").rglob("*.c"))


def core_file(name: str) -> Path:
    """The file or header of that name of the core, or of its Python face; it is unique among their folders."""
    (path,) = BINDINGS.rglob(name)
    return path


def _edited(edits: Iterable[Edit]) -> dict[Path, str]:
    """The texts of the files that `edits` change."""
    texts: dict[Path, str] = {}
    for edit in edits:
        path = core_file(edit.file)
        text = texts.get(path) or path.read_text()
        assert text.count(edit.old) == 1, f"{edit.file} must hold this text once: {edit.old!r}"
        texts[path] = text.replace(edit.old, edit.new)
    return texts


def _overlay(headers: dict[Path, str]) -> tuple[str, ...]:
    """A folder that is searched for headers before ours, with the edited ones."""
    if not headers:
        return ()
    root = Path(_directory().name) / hashlib.sha256("\0".join(headers.values()).encode()).hexdigest()[:20]
    for path, text in headers.items():
        target = root / path.relative_to(BINDINGS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return (f"-I{root}",)


@functools.cache
def _headers_digest() -> str:
    headers = sorted([*BINDINGS.rglob("*.h"), *TESTS.rglob("*.h")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in headers)).hexdigest()


def _object(path: Path, text: str, flags: tuple[str, ...]) -> Path:
    compiler = os.environ.get("CC", "cc")
    key = hashlib.sha256("\0".join([compiler, path.name, text, *flags, _headers_digest()]).encode()).hexdigest()[:20]
    target = Path(_directory().name) / f"{path.stem}-{key}.o"
    if target.exists():
        return target
    source = target.with_suffix(".c")
    source.write_text(f'#line 1 "{path}"\n{text}')
    folders = [f"-I{path.parent}", f"-I{BINDINGS}", f"-I{TESTS / 'crash'}"]
    partial = target.with_suffix(f".{os.getpid()}.o")
    run_checked([compiler, *WARNINGS, *flags, *folders, "-c", str(source), "-o", str(partial)])
    partial.rename(target)
    return target


def run_checked(command: list[str]) -> None:
    """Run a command that must succeed; its words are the error otherwise."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def program(name: str, sources: Iterable[str], flags: tuple[str, ...] = PLAIN, *, edits: Iterable[Edit] = ()) -> Path:
    """Compile and link `sources` (paths below tests/) with the core; returns the executable."""
    objects = _objects([*core_sources(), *(TESTS / source for source in sources)], flags, edits)
    return _linked(name, objects, [*flags, "-Wl,-z,now", "-lpthread"])


def extension(edits: Iterable[Edit]) -> Path:
    """Compile the core and its Python face as setup.py does, but without optimisation; returns the module."""
    flags = ("-O0", "-fPIC", "-fvisibility=hidden", f"-I{sysconfig.get_path('include')}")
    objects = _objects(sorted(BINDINGS.rglob("*.c")), flags, edits)
    return _linked("_core", objects, ["-shared", "-lpthread"])


def _objects(sources: Iterable[Path], flags: tuple[str, ...], edits: Iterable[Edit]) -> list[Path]:
    """Compile files, of which `edits` change some; one that was compiled before is taken as it is."""
    texts = {path: path.read_text() for path in sources}
    _directory()  # made here, once: threads that race for it would each make one
    edited = _edited(edits)
    texts |= {path: text for path, text in edited.items() if path.suffix == ".c"}
    headers = {path: text for path, text in edited.items() if path.suffix == ".h"}
    overlay = _overlay(headers)
    is_public = any(path.parent == BINDINGS for path in headers)  # shmq.h reaches every file, through other headers
    names = _including({path.name for path in headers})
    changed = {
        path
        for path, text in texts.items()
        if is_public or path in edited or any(f'/{name}"' in text for name in names)
    }
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        quiet = {path: (*overlay, *flags, "-w") if path in changed else flags for path in texts}
        return list(pool.map(lambda path: _object(path, texts[path], quiet[path]), texts))


def _including(names: set[str]) -> set[str]:
    """Names of headers, and of all headers that include them."""
    texts = {path.name: path.read_text() for path in BINDINGS.rglob("*.h")} if names else {}
    while more := {
        each for each, text in texts.items() if each not in names and any(f'/{name}"' in text for name in names)
    }:
        names = names | more
    return names


def _linked(name: str, objects: list[Path], options: list[str]) -> Path:
    key = hashlib.sha256(" ".join(sorted(map(str, objects))).encode()).hexdigest()[:16]
    target = Path(_directory().name) / f"{name}-{key}"
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        run_checked([os.environ.get("CC", "cc"), *map(str, objects), "-o", str(partial), *options])
        partial.rename(target)
    return target


@functools.cache
def _without_randomisation() -> tuple[str, ...]:
    """A prefix that switches address randomisation off, where that is allowed: sanitizers want their addresses free."""
    if setarch := shutil.which("setarch"):
        command = [setarch, "-R", "true"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return (setarch, "-R")
    return ()


def attempt(executable: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a test program to its end, whatever that is; what it left in memory goes with it."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="shmq-crash-", dir=memory) as arena_root:
        return subprocess.run(
            [*_without_randomisation(), str(executable), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS_MAX,
            env={**os.environ, "SHMQ_ARENA_ROOT": arena_root, "TSAN_OPTIONS": "halt_on_error=0"},
        )


def run(executable: Path, *arguments: object, statuses: tuple[int, ...] = (0,)) -> str:
    """Run a test program and return what it printed; any other exit status fails with its words."""
    done = attempt(executable, *arguments)
    assert done.returncode in statuses, f"{' '.join(done.args)}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def can_step() -> bool:
    """Whether the single-step programs work on this machine."""
    return platform.machine() == "x86_64" and platform.system() == "Linux"
