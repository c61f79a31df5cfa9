"""Kills of a real broker on a slow disk under a jumping clock: nothing acknowledged is lost, nothing wrong delivered.

SHMQ_CRASH_EPISODES asks for the long form; SHMQ_TEST_SEED repeats a run.
"""

import os

import pytest

from tests.crash.broker.soak import soak
from tests.seed import SEED

EPISODES = int(os.environ.get("SHMQ_CRASH_EPISODES", "6"))


@pytest.mark.slow
@pytest.mark.timeout(900 + 200 * EPISODES)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_kills_slow_disks_and_jumping_clocks_lose_and_invent_nothing(flush: str) -> None:
    counts = soak(seed=SEED, episodes=EPISODES, flush=flush)
    print(f"SHMQ_TEST_SEED={SEED}: {counts.kills} kills, {counts.acknowledged} acknowledged, {dict(counts.jumps)}")
    assert counts.failures == [], f"SHMQ_TEST_SEED={SEED}"
    assert counts.kills >= EPISODES
    assert counts.acknowledged > 0
    assert EPISODES < 6 or counts.jumps["during"] > 0
