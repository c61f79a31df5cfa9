"""A walk over changed, cut off and foreign bytes ends and reads nothing outside; under ASan and UBSan."""

from __future__ import annotations

import json

from core_build import ADDRESS, LONG, program, run

from tests.seed import SEED

ROUNDS = 20_000
WHOLE, BAD_LENGTHS, BAD_POSITION, BAD_CRC = 0, 3, 4, 5


def test_a_walk_over_damaged_records_stays_inside() -> None:
    executable = program("scan", ("fuzz/scan.c",), ADDRESS)
    figures = json.loads(run(executable, ROUNDS * (50 if LONG else 1), SEED))
    assert figures["records"] > ROUNDS
    # The damage neither went unnoticed nor left nothing to do.
    assert all(figures["ends"][end] > 10 for end in (WHOLE, BAD_LENGTHS, BAD_POSITION, BAD_CRC))
