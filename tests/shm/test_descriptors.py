"""Descriptors 0 to 2 are never ours: /dev/null in programs of ours that lack them, as missing as before in others."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.tables.rows import every_row

ROOT: Final = Path(__file__).resolve().parents[2]
CLOSED: Final = ("sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-P", "-c")
PRELUDE: Final = """
import errno, os, sys, traceback
from shmq.shm.descriptors import above_standard, open_standard

sys.excepthook = lambda *error: os.write(int(sys.argv[1]), "".join(traceback.format_exception(*error)).encode())

def standard():
    "What 0 to 2 lead to, None where nothing is open."
    paths = [f"/proc/self/fd/{number}" for number in range(3)]
    return [os.readlink(path) if os.path.lexists(path) else None for path in paths]

def opened():
    return os.open("/proc/self/maps", os.O_RDONLY)

NOTHING = [None] * 3
"""


def run(body: str) -> None:
    """Run a program without descriptors 0 to 2 that must not fail."""
    reading, writing = os.pipe()
    with open(reading) as told:
        done = subprocess.run([*CLOSED, PRELUDE + body, str(writing)], pass_fds=(writing,), timeout=120, check=False)
        os.close(writing)
        assert done.returncode == 0, told.read()


def test_what_a_library_opens_lies_above_and_the_three_stay_missing() -> None:
    run("""
with above_standard:
    first = opened()
    for number in (1, 2):
        try:
            os.write(number, b"a line")
            raise AssertionError("was written")
        except OSError as error:
            assert error.errno == errno.EBADF
    with above_standard:
        second = opened()
    third = opened()
assert min(first, second, third) > 2 and standard() == NOTHING, standard()

@above_standard
def decorated():
    return opened()

assert decorated() > 2 and standard() == NOTHING, standard()
""")


def test_what_the_program_does_with_its_three_meanwhile_is_the_programs() -> None:
    run("""
file = os.open("/proc/self/status", os.O_RDONLY)  # the program's own, and 0
assert file == 0
with above_standard:
    os.dup2(file, 1)
    os.close(2)
    with above_standard:  # it was closed by the program, and is missing again
        assert opened() > 2
assert standard() == ["/proc/%d/status" % os.getpid()] * 2 + [None], standard()
""")


def test_a_forked_child_and_other_threads_are_no_worse_off() -> None:
    run("""
import threading

with above_standard:
    if os.fork() == 0:
        with above_standard:
            assert opened() > 2
        os._exit(0 if standard() == NOTHING else 1)
assert os.wait()[1] == 0 and standard() == NOTHING, standard()

found, begin = [], threading.Barrier(4)

def opens():
    begin.wait()
    for _ in range(2000):
        with above_standard:
            found.append(opened())
            os.close(found[-1])

threads = [threading.Thread(target=opens) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert min(found) > 2 and standard() == NOTHING, standard()
""")


def test_a_program_of_ours_has_dev_null_in_their_place_and_its_children_too() -> None:
    run("""
import subprocess

open_standard()
open_standard()
assert standard() == ["/dev/null"] * 3 and opened() > 2, standard()
print("dropped", flush=True)
print("dropped", file=sys.stderr, flush=True)
assert sys.stdin.read() == "" and sys.__stdout__ is sys.stdout
found = subprocess.run(["readlink", "/proc/self/fd/0", "/proc/self/fd/2"], stdout=subprocess.PIPE).stdout
assert found == b"/dev/null\\n" * 2, found
""")


def test_what_a_program_of_ours_has_already_is_left_alone() -> None:
    run("""
for _ in range(2):
    os.open("/proc/self/status", os.O_RDONLY)  # 0, and 1, to which nothing can be written
open_standard()
assert standard() == ["/proc/%d/status" % os.getpid()] + ["/dev/null"] * 2, standard()
print("dropped", flush=True)
""")


def test_no_import_leaves_a_descriptor_open() -> None:
    """So that what runs before `open_standard` has no place to take."""
    run("""
import importlib, pkgutil
import shmq, shmq.client, shmq.daemon, shmq.shm, shmq.tools

optional = ("shmq.tools.console", "shmq.spark", "shmq.contrib", "shmq.tools.spark_command")
for package in (shmq.client, shmq.daemon, shmq.shm, shmq.tools):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith(optional) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
for name in ("shmq.aio", "shmq.testing", "shmq.daemon.__main__", "shmq.tools.start"):
    importlib.import_module(name)
assert standard() == NOTHING, standard()
""")


# -- the sources

_C_OPENS: Final = re.compile(
    r"\b(open(?:64|at|at2|dir)?|creat|shm_open|sem_open|memfd_create|mkos?temps?|tmpfile|f?dopen(?:dir)?|fopen|dup[23]?"
    r"|socket(?:pair)?|accept4?|pipe2?|eventfd|epoll_create1?|timerfd_create|signalfd|inotify_init1?|pidfd_open|popen"
    r"|userfaultfd|perf_event_open)\s*\("
    r"|\b(?:F_DUPFD|SYS_open\w*|SYS_memfd_create|SYS_pidfd_open)\b|F_DUPFD_CLOEXEC, [012]\b"
)
_C_HELD: Final = r"shmq_standard_hold\(\);\s*(?:sem_t \*)?\w+ = sem_open\([^;]*;\s*shmq_standard_release\(\);"
_C_COMMENTS: Final = re.compile(r"/\*.*?\*/|\"[^\"\n]*\"", re.DOTALL)


def c_opens(text: str) -> list[str]:
    """The lines of a C source that make a descriptor; a member of the I/O table is no call of the kernel."""
    code = _C_COMMENTS.sub(lambda found: "\n" * found[0].count("\n"), text)
    code = re.sub(_C_HELD, "", code)
    return [
        line.strip()
        for line in code.splitlines()
        if (found := _C_OPENS.search(line)) and not re.search(r"(?:->|\.|\(\*)$", line[: found.start()])
    ]


def test_the_core_opens_in_one_place_alone() -> None:
    sources = [*ROOT.joinpath("bindings").rglob("*.c"), *ROOT.joinpath("bindings").rglob("*.h")]
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sources
        if path.name != "descriptors.c" and (lines := c_opens(path.read_text()))
    }
    assert len(sources) > 100 and not found, found


@every_row(
    ("text", "finds"),
    [
        ("int fd = open(path, O_RDWR);", True),
        ("int fd = socket (AF_UNIX, SOCK_STREAM, 0);", True),
        ("sem_t *opened = sem_open(name, 0);", True),
        ("int fd = fcntl(other, F_DUPFD, 0);", True),
        ("int fd = fcntl(other, F_DUPFD_CLOEXEC, 0);", True),
        ("int fd = fcntl(other, F_DUPFD_CLOEXEC, 3);", False),
        ("int fd = shmq_open(path, O_RDWR);", False),
        ("int fd = store->io->open(path, O_RDWR);", False),
        ("int (*open)(const char *path, int flags);", False),
        ("/* open(O_PATH) */", False),
        ("shmq_standard_hold();\n    sem_t *opened = sem_open(name, 0);\n    shmq_standard_release();", False),
    ],
)
def test_what_opens_in_c_is_recognised(text: str, finds: bool) -> None:
    assert bool(c_opens(text)) is finds


_OPENS: Final = {
    *("open", "os.open", "os.dup", "os.pipe", "os.eventfd", "os.memfd_create", "os.pidfd_open", "os.openpty"),
    *("socket.socket", "socket.create_connection", "socket.create_server", "socket.socketpair", "mmap.mmap"),
    *("asyncio.new_event_loop", "posix_ipc.SharedMemory", "posix_ipc.Semaphore", "tempfile.NamedTemporaryFile"),
    *("select.epoll", "selectors.DefaultSelector", "pyarrow.parquet.ParquetFile", "pyarrow.parquet.ParquetWriter"),
    *("tempfile.mkdtemp", "tempfile.TemporaryDirectory", "shutil.rmtree", "socket.getfqdn", "socket.getaddrinfo"),
    *("self.loop.getaddrinfo", "self.loop.create_server", "asyncio.open_connection", "asyncio.open_unix_connection"),
}
_IN_LIBRARIES: Final = ("shmq/client", "shmq/shm", "shmq/aio", "shmq/contrib", "shmq/testing.py", "spark")
_OF_PROGRAMS: Final = {"spark/jobs/driver/java_output.py", "spark/jobs/driver/session.py"}
"""What only the jobs of Spark call, which are programs of ours."""


def python_opens(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each call that makes a descriptor outside `above_standard`."""
    yield from _opens(ast.parse(text), False)


def _opens(node: ast.AST, is_above: bool) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        is_above = any(ast.unparse(each) == "above_standard" for each in node.decorator_list)
    if isinstance(node, ast.Call) and not is_above:
        name = ast.unparse(node.func)
        opens_path = name.endswith(".open") and isinstance((node.args or [node])[0], ast.Constant)
        if name in _OPENS or opens_path or name.endswith((".write_text", ".write_bytes")):
            yield node.lineno, name
    if isinstance(node, ast.With | ast.AsyncWith):
        above = is_above
        for item in node.items:
            yield from _opens(item, above)
            above = above or ast.unparse(item.context_expr) == "above_standard"
        for each in node.body:
            yield from _opens(each, above)
        return
    for child in ast.iter_child_nodes(node):
        yield from _opens(child, is_above)


def test_the_client_opens_above_the_three() -> None:
    roots = [ROOT / name for name in _IN_LIBRARIES]
    paths = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*.py")))]
    found = [
        f"{name}:{line}: {call}"
        for path in paths
        if (name := str(path.relative_to(ROOT))) not in _OF_PROGRAMS and name != "shmq/shm/descriptors.py"
        for line, call in python_opens(path.read_text())
    ]
    assert len(paths) > 100 and not found, "\n".join(found)


@every_row(
    ("text", "finds"),
    [
        ("open(path)", True),
        ("def read():\n    with open(path) as file, above_standard:\n        pass", True),
        ("@above_standard\ndef outer():\n    def inner():\n        return os.open(path, 0)", True),
        ("path.open('rb')", True),
        ("socket.socket()", True),
        ("with above_standard, open(path) as file:\n    pass", False),
        ("with above_standard:\n    file = open(path)", False),
        ("@above_standard\ndef read():\n    return open(path)", False),
        ("session.poppers.open(owner, self._spec)", False),
    ],
)
def test_what_opens_in_python_is_recognised(text: str, finds: bool) -> None:
    assert bool(list(python_opens(text))) is finds
