"""Makes `core_build` importable for the tests of this folder; `crash_plan` says how much they do."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from core_build import LONG


class Plan(NamedTuple):
    """Short by default; SHMQ_CRASH_LONG=1 does everything, SHMQ_CRASH_SEED=n repeats a run."""

    long: bool
    seed: int


@pytest.fixture(scope="session")
def crash_plan() -> Plan:
    seed = int(os.environ.get("SHMQ_CRASH_SEED", random.randrange(1 << 30)))
    print(f"crash plan: {'long' if LONG else 'short'} form, SHMQ_CRASH_SEED={seed}")
    return Plan(LONG, seed)
