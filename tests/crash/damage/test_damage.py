"""Damaged bytes and pages of a small store: nothing wrong is read, nothing else is lost, and all of it is said.

SHMQ_TEST_SEED repeats a run. The long forms: SHMQ_CRASH_DAMAGE=all takes every byte and page of both stores,
SHMQ_CRASH_LIVES=300 flips 3,000 bytes under running brokers.
"""

import os

import pytest

from tests.crash.damage.damage import ENDS, all_cases, check, page_cases, sample
from tests.crash.damage.running import running_damage
from tests.crash.damage.stores import make_stores
from tests.seed import SEED

IS_LONG = os.environ.get("SHMQ_CRASH_DAMAGE") == "all"
LIVES = int(os.environ.get("SHMQ_CRASH_LIVES", "4"))
_SAMPLE = 260  # of each of the two stores


@pytest.mark.timeout(14400)
@pytest.mark.parametrize("end", ENDS)
def test_whatever_byte_or_page_is_damaged_nothing_else_is_lost_and_it_is_said(end: str) -> None:
    stores = make_stores(end=end)
    cases = list(all_cases(stores)) if IS_LONG else [*sample(stores, _SAMPLE, SEED), *page_cases(stores)]
    counts, wrong = check(stores, cases)
    print(f"SHMQ_TEST_SEED={SEED}: {dict(counts)}")
    assert wrong == []
    assert counts["damaged_bytes"] >= _SAMPLE and counts["damaged_pages"] > 0 and counts["records_hit"] > 0


@pytest.mark.timeout(14400)
def test_bytes_flipped_under_a_running_broker_do_no_more_than_their_records() -> None:
    counts, wrong = running_damage(SEED, lives=LIVES)
    print(f"SHMQ_TEST_SEED={SEED}: {dict(counts)}")
    assert wrong == []
    assert counts["flipped_while_running"] > 5 * LIVES and counts["restarts"] == LIVES
