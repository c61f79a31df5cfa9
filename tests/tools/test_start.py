"""`shmq health --fast` stays quick because its process imports little, and nothing of what is slow."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from shmq.testing import SharedBroker

# What takes long to import, and whole parts of shmq that a look at shared memory has no use for.
_SLOW = """
    argparse ast asyncio click concurrent copy ctypes dataclasses datetime decimal difflib dis email hashlib http
    importlib.metadata inspect linecache lark logging lz4 msgspec multiprocessing numpy psutil pydoc random rich
    secrets selectors shutil socket ssl statistics string subprocess tempfile textwrap tokenize traceback unicodedata
    urllib.request uuid uvloop zstandard shmq.aio shmq.client shmq.compat shmq.daemon shmq.filter shmq.message
    shmq.metrics shmq.protocol shmq.shm.counters shmq.spark shmq.tools.cli shmq.tools.command shmq.tools.doctor
    shmq.tools.health.group_rules shmq.figures.progress shmq.figures.residency shmq.tools.top
"""
SLOW = frozenset(_SLOW.split())
OWN_MODULES_MAX = 52  # each costs a look into folders, a file and a quarter of a millisecond


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where shmq lies as `pip install` lays it; an editable install brings the imports of its finder along."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "shmq").mkdir()
    for name in ("shmq", "shmq.bindings", "shmq.daemon", "shmq.tools", "shmq.spark"):
        spec = find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        [place] = spec.submodule_search_locations
        if name == "shmq":
            for entry in Path(place).iterdir():
                (folder / "shmq" / entry.name).symlink_to(entry)
        elif not (link := folder / name.replace(".", "/")).exists():
            link.symlink_to(place)
    for name in ("posix_ipc", "sysv_ipc"):
        spec = find_spec(name)
        assert spec is not None and spec.origin
        (folder / Path(spec.origin).name).symlink_to(spec.origin)
    return folder


def imported(packages: Path, *words: str, libraries: Sequence[str] = ()) -> tuple[int, list[str]]:
    """Run `shmq` in a process of its own; return its status and every module that this process imported."""
    path = os.pathsep.join([str(packages), *libraries])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "SHMQ_CONFIG_DIR": "/nonexistent"}
    command = [sys.executable, "-S", "-X", "importtime", "-m", "shmq", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith("import time:")] == []
    return done.returncode, [line.rpartition("|")[2].strip() for line in lines]


@pytest.mark.parametrize("form", [[], ["--json"], ["--format", "nagios"], ["--quiet"]], ids=" ".join)
def test_a_fast_check_imports_nothing_slow(packages: Path, shmq_shared_broker: SharedBroker, form: list[str]) -> None:
    status, modules = imported(packages, "health", "--fast", *form, "-u", shmq_shared_broker.url)
    assert status in (0, 1)
    assert [name for name in modules if any(name == each or name.startswith(f"{each}.") for each in SLOW)] == []
    own = [name for name in modules if name.startswith("shmq")]
    assert "shmq.tools.health.room_rules" in own and len(own) <= OWN_MODULES_MAX


def test_the_whole_check_is_seen_to_import_what_the_fast_one_may_not(
    packages: Path, shmq_shared_broker: SharedBroker
) -> None:
    """Else the list above could name what is imported nowhere, or the way to see it could be blind."""
    libraries = [entry for entry in sys.path if entry.endswith("site-packages")]
    _, whole = imported(packages, "health", "-u", shmq_shared_broker.url, libraries=libraries)
    assert {"click", "psutil", "dataclasses", "inspect", "shmq.tools.health.group_rules"} <= SLOW.intersection(whole)


_DROPPED = """
import sys, weakref
from shmq.tools.start import keep_interrupts

class Thing:
    pass

def drop(_):  # as the interpreter's own callback does that frees the lock of an import
    raise KeyboardInterrupt

if "kept" in sys.argv:
    keep_interrupts()
thing = Thing()
reference = weakref.ref(thing, drop)
del thing
print("begun", flush=True)
sys.stdin.read()
print("ended", flush=True)
"""


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_ctrl_c_that_the_interpreter_has_dropped_comes_again(is_kept: bool) -> None:
    words = ["kept"] if is_kept else []
    with subprocess.Popen(
        [sys.executable, "-c", _DROPPED, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        if is_kept:
            out, err = process.stdout.read(), b""  # it ends by itself, while it waits for what does not come
        else:
            out, err = process.communicate(timeout=60)
    assert (b"ended" in out) is not is_kept, err
    assert (process.returncode == 0) is not is_kept


_IN_A_STRING = """
import sys
from shmq.tools import start

def whole(words):
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return 130

start._whole = whole
sys.exit(start.run())
"""


def test_a_ctrl_c_in_code_of_a_string_ends_a_command_with_its_status(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(_IN_A_STRING)
    ended = subprocess.run([sys.executable, "-m", "probe"], cwd=tmp_path, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, b"")
