"""Power cuts of a real broker: every image that a cut may leave is recovered to what was acknowledged.

The long form takes SHMQ_CRASH_IMAGES images a mode; SHMQ_TEST_SEED repeats a run.
"""

import os

import pytest

from tests.crash.disk.power_cuts import Counts, power_cuts
from tests.seed import SEED

IMAGES = int(os.environ.get("SHMQ_CRASH_IMAGES", "2500"))
_OF_ONE_CUT = 50
_CUTS_OF_A_RUN = 10  # all of them are in memory at once


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("flush", "slow_ms"), [("sync", 0), ("sync", 40), ("async", 0), ("async", 40)])
def test_every_disk_that_a_power_cut_may_leave_holds_what_was_acknowledged(flush: str, slow_ms: int) -> None:
    counts = Counts()
    for run in range(max(1, IMAGES // (_OF_ONE_CUT * _CUTS_OF_A_RUN))):
        seed = SEED + run
        counts.add(power_cuts(seed=seed, snapshots=_CUTS_OF_A_RUN, images=_OF_ONE_CUT, flush=flush, slow_ms=slow_ms))
    print(f"SHMQ_TEST_SEED={SEED}: {counts.images} images, {counts.acknowledged} acknowledged")
    assert counts.failures == []
    assert counts.pages_open > 0
    assert counts.acknowledged > 0 or flush == "async"


def test_a_few_disks_that_a_power_cut_may_leave_hold_what_was_acknowledged() -> None:
    counts = power_cuts(seed=SEED, snapshots=4, images=10, flush="sync", slow_ms=20)
    assert counts.failures == [], f"SHMQ_TEST_SEED={SEED}"
    assert counts.acknowledged > 0
