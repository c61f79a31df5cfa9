"""The n-th sync, write, allocation or change of a name fails: no acknowledgement depends on it.

SHMQ_CRASH_CALLS asks for more of the calls; SHMQ_TEST_SEED repeats a run.
"""

import os

import pytest

from tests.crash.disk.failing_calls import failing_call
from tests.seed import SEED

CALLS = int(os.environ.get("SHMQ_CRASH_CALLS", "24"))
OF = 400


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(CALLS))
def test_no_acknowledgement_depends_on_a_call_that_failed(part: int) -> None:
    step = max(1, OF // CALLS)
    counts = failing_call(1 + part * step + SEED % step, seed=SEED)
    assert counts.failures == [], f"SHMQ_TEST_SEED={SEED}"
    assert counts.snapshots == 1
