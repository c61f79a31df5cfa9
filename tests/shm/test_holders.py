"""A file of shared memory counts as free only when the kernel and /proc both say that no process has it."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shmq.shm.holders import StillHeld, identity, mapping_processes, proven_free
from shmq.shm.liveness import mark_of, status_of
from shmq.shm.segment import SHM_DIRECTORY
from tests.deadline import eventually

HOLDER = """
import mmap, os, sys
path, how = sys.argv[1:]
descriptor = os.open(path, os.O_RDWR if how == "written" else os.O_RDONLY)
if how != "open":
    mapping = mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ | (mmap.PROT_WRITE if how == "written" else 0))
    os.close(descriptor)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(broker_name: str) -> Iterator[Path]:
    path = SHM_DIRECTORY / f"{broker_name}.held"
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["written", "read", "open"])
def test_a_file_that_a_living_process_has_is_held_until_it_ends(path: Path, how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"held\n"
        file = identity(path)
        assert file is not None
        mapped = mapping_processes([file])[file]
        assert mapped == ([] if how == "open" else [mark_of(process.pid)])
        who = "cannot be looked into" if how == "open" else f"pid {process.pid}"
        with pytest.raises(StillHeld, match=who), proven_free([path], uid=os.geteuid()):
            raise AssertionError("the proof must not hold")
        process.kill()
    with proven_free([path], uid=os.geteuid()):
        path.unlink()


def test_our_own_mapping_counts_too(path: Path) -> None:
    with open(path, "r+b") as opened, mmap.mmap(opened.fileno(), 4096), pytest.raises(StillHeld) as raised:
        proven_free([path], uid=os.geteuid()).__enter__()
    assert f"pid {os.getpid()}" in str(raised.value)
    with proven_free([path], uid=os.geteuid()):
        pass


def test_who_only_looks_for_a_moment_does_not_stand_in_the_way_of_the_patient(path: Path) -> None:
    program = "import sys; held = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read(); held.close()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as looker:
        assert looker.stdout and looker.stdin and looker.stdout.readline() == b"open\n"
        with pytest.raises(StillHeld), proven_free([path], uid=os.geteuid(), patience_seconds=0.02):
            pass
        looker.stdin.close()
        with proven_free([path], uid=os.geteuid(), patience_seconds=30.0):
            path.unlink()


def test_another_file_at_the_place_of_the_held_one_is_not_taken_for_it(path: Path) -> None:
    with open(path, "rb") as opened, mmap.mmap(opened.fileno(), 4096, prot=mmap.PROT_READ):
        path.unlink()
        path.write_bytes(bytes(4096))
        with proven_free([path], uid=os.geteuid()):
            pass


def test_what_is_no_file_of_that_user_cannot_be_proven(path: Path) -> None:
    link = path.with_suffix(".link")
    link.symlink_to(path)
    try:
        for wrong, uid in ((link, os.geteuid()), (path, os.geteuid() + 1)):
            with pytest.raises(StillHeld), proven_free([wrong], uid=uid):
                pass
    finally:
        link.unlink()


def test_a_missing_file_is_proven_free(path: Path) -> None:
    path.unlink()
    assert identity(path) is None
    with proven_free([path], uid=os.geteuid()):
        pass


@pytest.mark.parametrize("is_main", [True, False], ids=["main thread", "another thread"])
def test_an_open_during_the_removal_waits_and_finds_a_file_without_a_name(path: Path, is_main: bool) -> None:
    if is_main:
        _removes(path)
        return
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_removes, path).result()


def _removes(path: Path) -> None:
    program = "import os, sys; print('open', flush=True); print(os.fstat(os.open(sys.argv[1], os.O_RDWR)).st_nlink)"
    with proven_free([path], uid=os.geteuid()):
        opener = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
        assert opener.stdout and opener.stdout.readline() == b"open\n"
        eventually(lambda: _waits_in_the_kernel(opener.pid), "the opener waits")
        path.unlink()
    assert opener.communicate()[0] == b"0\n"


def _waits_in_the_kernel(pid: int) -> bool:
    return status_of(pid).get("State", "?")[0] in "SD"
