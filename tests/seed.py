"""The seed of a run, SHMQ_TEST_SEED: whatever a test draws by chance comes from it, so that a run can be repeated.

tests/suites.py chooses it before tests are imported; all processes of a run have the same.
"""

import os
from typing import Final

from tests.suites import SEED_VARIABLE

SEED: Final = int(os.environ[SEED_VARIABLE])
