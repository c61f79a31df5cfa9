"""The stress run: the gate's live tests on a machine without time, whose disk syncs and whose keepers are late.

    python -m tests.stress [PATH...]        the tests of the gate in PATHS, else in PLACES

Nothing differs from the gate but what is beside it (disturbances.py), the seed and the patience, so a test that fails
has found what a calm machine hides. Each is printed with the seed, and SHMQ_TEST_SEED repeats the run.
"""

import os
import random
import sys
from typing import Final

import pytest

from tests.second_look import Outcomes
from tests.stress.disturbances import disturbed
from tests.suites import SEED_VARIABLE

PLACES: Final = tuple(f"tests/{name}" for name in ("conformance", "client", "bridge", "keeper", "supervisor", "ha"))
_PATIENCE_SECONDS: Final = 300
_TEST_SECONDS: Final = 1800  # ends a test that hangs
_IMPORTED_BEFORE: Final = "ignore::pytest.PytestAssertRewriteWarning"  # what this module needs of the tests


def stress(paths: list[str]) -> int:
    """Run these tests, print what failed, and return the exit status of pytest."""
    seed = int(os.environ.setdefault(SEED_VARIABLE, str(random.SystemRandom().randrange(1 << 31))))
    os.environ["SHMQ_TEST_PATIENCE"] = str(_PATIENCE_SECONDS)
    options = ["--suite", "gate", "-n", "3", "-o", f"timeout={_TEST_SECONDS}", "-W", _IMPORTED_BEFORE]
    outcomes = Outcomes()
    with disturbed(os.getpid(), seed):
        status = pytest.main([*options, *paths], plugins=[outcomes])
    for nodeid in sorted(outcomes.failed):
        print(f"failed: {SEED_VARIABLE}={seed} {nodeid}", flush=True)
    return int(status)


if __name__ == "__main__":
    sys.exit(stress(sys.argv[1:] or list(PLACES)))
