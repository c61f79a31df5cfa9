"""Power cuts on a real ext4: what was acknowledged is there after a replay of the journal; no process dies of SIGBUS.

Needs root and loop devices. SHMQ_CRASH_CUTS asks for more cuts a mode; SHMQ_TEST_SEED repeats a run.
"""

import mmap
import os
from pathlib import Path

import pytest

from tests.crash.disk.drive import VolatileDrive, mounted, reason_without_drives
from tests.crash.disk.drive_cuts import drive_cuts
from tests.crash.disk.power_cuts import Counts
from tests.seed import SEED

CUTS = int(os.environ.get("SHMQ_CRASH_CUTS", "10"))
_CUTS_OF_A_RUN = 10
BLOCK = 4096

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(reason_without_drives() is not None, reason=str(reason_without_drives())),
]


@pytest.mark.timeout(600 + 10 * CUTS)
@pytest.mark.parametrize(
    ("flush", "slow_ms", "full"),
    [("sync", 0, False), ("sync", 40, False), ("async", 20, False), ("sync", 0, True)],
    ids=["sync", "sync-slow", "async", "sync-full"],
)
def test_a_power_cut_on_a_real_file_system_leaves_what_was_acknowledged(flush: str, slow_ms: int, full: bool) -> None:
    counts = Counts()
    for run in range(max(1, CUTS // _CUTS_OF_A_RUN)):
        counts.add(drive_cuts(seed=SEED + run, cuts=_CUTS_OF_A_RUN, flush=flush, slow_ms=slow_ms, full=full))
    print(f"SHMQ_TEST_SEED={SEED}: {counts.snapshots} cuts, {counts.acknowledged} acknowledged")
    assert counts.failures == [], f"SHMQ_TEST_SEED={SEED}"
    assert counts.acknowledged > 0 or flush == "async"


def test_of_what_was_not_flushed_a_cut_leaves_some(tmp_path: Path) -> None:
    """Each cut follows a write of its own: the file system flushes the drive every five seconds for its journal."""
    stays = []
    with VolatileDrive() as drive, mmap.mmap(-1, BLOCK) as page:
        file = os.open(drive.root / "file", os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(file, bytes(BLOCK * 2), 0)
        os.close(file)
        file = os.open(drive.root / "file", os.O_WRONLY | os.O_DIRECT)
        for seed in range(20):
            os.fsync(file)
            page[:] = bytes([seed + 1]) * BLOCK
            assert os.pwritev(file, [page], BLOCK) == BLOCK  # on the drive now, and in its cache only
            drive.cut(tmp_path / "image", seed=seed)
            with mounted(tmp_path / "image", tmp_path) as root:
                content = (root / "file").read_bytes()
            assert content[:BLOCK] == bytes(BLOCK) and content[BLOCK:] in (bytes([seed]) * BLOCK, page[:])
            stays.append(content[BLOCK:] == page[:])
        os.fsync(file)
        os.close(file)
        drive.cut(tmp_path / "image", seed=1)
        with mounted(tmp_path / "image", tmp_path) as root:
            assert (root / "file").read_bytes() == bytes(BLOCK) + page[:]
    assert True in stays and False in stays
