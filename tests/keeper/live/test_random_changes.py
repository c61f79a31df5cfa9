"""A minute of changes to the stores of brokers under load, drawn by chance: nothing acknowledged is lost in silence.

SHMQ_CHANGES_SECONDS asks for the long form; SHMQ_TEST_SEED repeats a run.
"""

import os
import random
import time
from pathlib import Path

import pytest

from tests.keeper.live.changes import changes
from tests.keeper.live.rounds import KILLS, Round
from tests.seed import SEED

SECONDS = float(os.environ.get("SHMQ_CHANGES_SECONDS", "55"))


@pytest.mark.slow
@pytest.mark.timeout(900 + 10 * SECONDS)
def test_changes_of_a_store_lose_no_acknowledged_message_in_silence(tmp_path: Path) -> None:
    chance, until = random.Random(SEED), time.monotonic() + SECONDS
    of_log = [change for change in changes() if change.is_of_log]
    others = [change for change in changes() if not change.is_of_log]
    wrong: list[str] = []
    number = 0
    while number == 0 or time.monotonic() < until:
        change, kill = chance.choice(of_log if chance.random() < 0.6 else others), chance.choice(KILLS)
        # A store that is gone together with its broker leaves no trace.
        is_running = chance.random() < 0.7 or change.target == "store"
        each = Round(change, kill, tmp_path / str(number), is_running=is_running, seed=SEED * 1000 + number)
        each.run()
        print(f"{each}: {'wrong' if each.wrong else 'right'}", flush=True)
        wrong += each.wrong
        number += 1
    assert not wrong, f"SHMQ_TEST_SEED={SEED}: " + "\n".join(wrong)
