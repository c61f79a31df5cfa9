"""The disk that can be cut off: what was synced is on every image, the rest on some, what a failure lost on none."""

import errno
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.crash.disk.disk import FaultyDisk, Kind

IMAGES = 40
SYNCED_AND_NOT = """
import os, sys
root = sys.argv[1]
file = os.open(root + "/file", os.O_RDWR | os.O_CREAT, 0o600)
os.pwrite(file, b"1" * 5000, 0)
os.fdatasync(file)
directory = os.open(root, os.O_RDONLY)
os.fsync(directory)
os.pwrite(file, b"2" * 5000, 4096)
os.mkdir(root + "/directory")
with open(root + "/directory/file.tmp", "wb") as other:
    other.write(b"hello")
os.replace(root + "/directory/file.tmp", root + "/directory/file")
"""
MAPPED = """
import mmap, os, sys
root = sys.argv[1]
file = os.open(root + "/file", os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(file, 8192)
os.fsync(os.open(root, os.O_RDONLY))
mapped = mmap.mmap(file, 8192)
mapped[:5] = b"first"
os.fdatasync(file)
mapped[5000:5006] = b"second"
"""
FAILED_AND_AGAIN = """
import os, sys
root, again = sys.argv[1:]
file = os.open(root + "/file", os.O_RDWR | os.O_CREAT, 0o600)
os.fsync(os.open(root, os.O_RDONLY))
os.pwrite(file, b"lost", 0)
try:
    os.fdatasync(file)
except OSError as error:
    print(error.errno)
if again == "write":
    os.pwrite(file, b"lost", 0)
os.fdatasync(file)
"""


def run(disk: FaultyDisk, program: str, *arguments: str) -> str:
    with disk.around():
        command = [sys.executable, "-c", program, str(disk.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def images(disk: FaultyDisk, into: Path) -> list[dict[str, bytes]]:
    """What is on each of many images."""
    (into / "cut").mkdir()
    snapshot = disk.snapshot(into / "cut")
    found = []
    for seed in range(IMAGES):
        image = into / f"image-{seed}"
        snapshot.image(seed, image)
        found.append({str(path.relative_to(image)): path.read_bytes() for path in image.rglob("*") if path.is_file()})
    return found


@pytest.fixture
def disk(tmp_path: Path) -> FaultyDisk:
    (tmp_path / "root").mkdir()
    return FaultyDisk(tmp_path / "root")


def test_what_was_synced_is_on_every_image_and_the_rest_on_some(disk: FaultyDisk, tmp_path: Path) -> None:
    with disk:
        run(disk, SYNCED_AND_NOT)
        found = images(disk, tmp_path)
    assert all(image["file"][:4096] == b"1" * 4096 for image in found)
    seconds = {image["file"][5000:] for image in found}
    assert b"" in seconds
    assert b"2" * (9096 - 5000) in seconds
    assert {image.get("directory/file") for image in found} >= {None, b"hello"}


def test_a_store_into_a_mapping_counts_from_the_next_sync_on(disk: FaultyDisk, tmp_path: Path) -> None:
    with disk:
        run(disk, MAPPED)
        found = images(disk, tmp_path)
    assert all(image["file"][:5] == b"first" for image in found)
    assert {image["file"][5000:5006] for image in found} >= {bytes(6), b"second"}


@pytest.mark.parametrize(("again", "is_lost"), [("sync", True), ("write", False)])
def test_a_failed_sync_loses_its_pages_unless_they_are_written_again(
    disk: FaultyDisk, tmp_path: Path, again: str, is_lost: bool
) -> None:
    with disk:
        disk.fail({Kind.SYNC}, at=1, error=errno.EIO)
        assert run(disk, FAILED_AND_AGAIN, again) == f"{errno.EIO}\n"
        assert disk.failed == 1
        found = images(disk, tmp_path)
    assert {image["file"][:4] == b"lost" for image in found} == {not is_lost}


def test_a_fault_hits_only_the_paths_it_was_given(disk: FaultyDisk) -> None:
    with disk:
        disk.fail({Kind.SYNC}, at=1, error=errno.EIO, after=True, only="other")
        assert run(disk, FAILED_AND_AGAIN, "sync") == ""
        assert (disk.failed, disk.calls(Kind.SYNC)) == (0, 2)


def test_the_wall_clock_stands_where_it_was_put(disk: FaultyDisk) -> None:
    with disk:
        for ahead in (86_400, -86_400):
            disk.wall(ahead * 1000)
            assert abs(float(run(disk, "import time; print(time.time())")) - time.time() - ahead) < 3600
