"""Makes `core_build` importable for the tests of this folder; `crash_plan` says how much they do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from core_build import LONG


class Plan(NamedTuple):
    """Short by default; SHMQ_CRASH_LONG=1 does everything, SHMQ_TEST_SEED=n repeats a run."""

    long: bool
    seed: int


@pytest.fixture(scope="session")
def crash_plan() -> Plan:
    from tests.seed import SEED  # not above: this file is read before the run has one

    print(f"crash plan: {'long' if LONG else 'short'} form, SHMQ_TEST_SEED={SEED}")
    return Plan(LONG, SEED)
