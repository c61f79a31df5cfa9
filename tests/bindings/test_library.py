"""The core as a C library: a program is compiled against the installed header and linked with the shipped library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shmq.bindings import _core, config
from shmq.version import __version__
from tests.bindings.live_store import LiveStore

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "c"
LIBRARY = config.HERE / f"libshmq.so.{_core.ABI}"


def said(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False)


def configured(*options: object) -> list[str]:
    done = said(sys.executable, "-P", "-m", "shmq.bindings.config", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def compiled(name: str, folder: Path) -> Path:
    program = folder / name
    flags = configured("--cflags", "--libs")
    warnings = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Wpedantic")
    done = said(os.environ.get("CC", "cc"), *warnings, EXAMPLES / f"{name}.c", *flags, "-o", program)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled("hello", tmp_path_factory.mktemp("library"))


@pytest.fixture
def segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths of the segments of the next LiveStore: files, for a memfd can be opened by a link only."""
    paths = [tmp_path / part for part in ("control", "units", "readers")]
    left = iter(paths)
    monkeypatch.setattr(os, "memfd_create", lambda _: os.open(next(left), os.O_RDWR | os.O_CREAT, 0o600))
    return paths


def test_a_c_program_appends_and_reads_beside_python(hello: Path, segments: list[Path]) -> None:
    with LiveStore() as live:
        live.topic()
        live.producer().send("orders", b"hello from Python", queue_id=0)
        done = said(hello, "orders", "hello from C", *segments)
        assert done.returncode == 0, done.stderr
        version, appended, first, second = done.stdout.splitlines()
        assert version == f"libshmq {__version__}"
        assert appended.startswith("appended offset 1 at ")
        assert (first, second) == ("0 hello from Python", "1 hello from C")
        messages = live.reader().poll()
        assert [message.body for message in messages] == [b"hello from Python", b"hello from C"]


def test_a_c_program_reads_for_a_group_unless_a_living_member_does(segments: list[Path], tmp_path: Path) -> None:
    group = compiled("group", tmp_path)
    with LiveStore() as live:
        (queue, *_) = live.topic()
        for body in (b"one", b"two"):
            live.producer().send("orders", body, queue_id=0)
        slot = live.tables.offset_put(live.tables.group_put("workers"), queue)
        live.store.offset_set(slot, 1)
        mine = live.use_client()
        assert live.store.offset_take(slot)
        refused = said(group, "orders", "workers", *segments)
        assert (refused.returncode, refused.stdout) == (0, f"client slot {mine} reads the queue\n"), refused.stderr
        assert live.store.offset_get(slot) == 1
        live.tables.client_drop(mine)
        done = said(group, "orders", "workers", *segments)
        assert (done.returncode, done.stdout) == (0, "1 two\n"), done.stderr
        assert (live.store.offset_get(slot), live.store.offset_owner(slot)) == (2, -1)


def test_what_cannot_be_opened_or_found_is_said(hello: Path, segments: list[Path], tmp_path: Path) -> None:
    missing = said(hello, "orders", "x", *[tmp_path / "none"] * 3)
    assert (missing.returncode, missing.stderr) == (1, "opening the segments: status 15\n")
    foreign = tmp_path / "foreign"
    foreign.write_bytes(bytes(8192))
    wrong = said(hello, "orders", "x", *[foreign] * 3)
    assert (wrong.returncode, wrong.stderr) == (1, f"opening the segments: status {_core.CORRUPT}\n")
    with LiveStore():
        unknown = said(hello, "orders", "x", *segments)
        assert (unknown.returncode, unknown.stderr) == (1, f"finding the topic: status {_core.NO_TOPIC}\n")


def test_the_library_exports_what_the_header_marks_and_nothing_else() -> None:
    header = (config.HERE / "shmq.h").read_text()
    marked = set(re.findall(r"^SHMQ_API .*?\b(shmq_\w+)(?:\(|;)", header, re.M))
    done = said("nm", "-D", "--defined-only", LIBRARY)
    assert done.returncode == 0, done.stderr
    assert {line.split()[-1] for line in done.stdout.splitlines()} == marked
    assert "shmq_append" in marked
    prototypes = re.findall(r"^(?!static|SHMQ_API|typedef| )[\w *]*\b(shmq_\w+)\([^;{]*\);", header, re.M)
    assert set(prototypes) == {"shmq_test_point"}


def test_the_versions_of_header_library_and_package_agree() -> None:
    header = (config.HERE / "shmq.h").read_text()
    parts = [re.search(rf"^#define SHMQ_VERSION_{part} (\d+)$", header, re.M) for part in ("MAJOR", "MINOR", "PATCH")]
    assert ".".join(part[1] for part in parts if part) == __version__
    assert config.abi() == _core.ABI
    assert f"[libshmq.so.{_core.ABI}]" in said("readelf", "-d", LIBRARY).stdout


def test_the_paths_of_a_brokers_segments_are_those_of_its_instance(tmp_path: Path) -> None:
    names = [f"/shmq.default.00c0.{part}" for part in ("control", "units", "readers")]
    (tmp_path / "instance.json").write_text(json.dumps({"kind": "posix", "segments": names}))
    assert configured("--segments", tmp_path) == [f"/dev/shm{name}" for name in names]
    (tmp_path / "instance.json").write_text(json.dumps({"kind": "sysv", "segments": [1, 2, 3]}))
    refused = said(sys.executable, "-P", "-m", "shmq.bindings.config", "--segments", tmp_path)
    assert refused.returncode == 1 and "sysv have no paths" in refused.stderr
