"""Scribbled shared memory makes the core answer, never crash, hang or leave its mappings; under ASan and UBSan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_build import ADDRESS, LONG, Edit, attempt, program, run

from tests.seed import SEED

HOSTILE = ("fuzz/hostile.c", "crash/check.c", "crash/arena.c")
ROUNDS = {"read": 20_000, "write": 20_000, "race": 100}
OK, CORRUPT, DETACHED = "0", "12", "23"


def fuzz(mode: str, rounds: int) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(run(program("hostile", HOSTILE, ADDRESS), mode, rounds, SEED))
    print(figures)
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("mode", ROUNDS)
def test_scribbled_memory_is_answered(mode: str) -> None:
    figures = fuzz(mode, ROUNDS[mode] * (50 if LONG else 1))
    assert figures["mode"] == mode
    # The scribbling neither went unnoticed nor left nothing to do.
    assert figures["answers"][OK] > 1000
    assert figures["answers"][CORRUPT] > 0  # how many depends on how the two threads are scheduled
    assert figures["answers"][DETACHED] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "edit"),
    [
        (
            "read",
            Edit(
                "frame.c",
                "        for (int step = 0; link != 0 && link <= store->sizes.frame_max &&",
                "        for (int step = 0; link != 0 &&",
            ),
        ),
        (
            "read",
            Edit("names.c", "        if (link > store->sizes.topic_max) {", "        if (false) {"),
        ),
        ("write", Edit("room.c", "        if (file_end - end < SHMQ_RECORD_BLANK_BYTES) {", "        if (false) {")),
        (
            "write",
            Edit(
                "frame.c", "    if (frame >= ready || frame >= store->sizes.frame_max) {", "    if (frame >= ready) {"
            ),
        ),
        ("write", Edit("frame.c", "        if (frame == SHMQ_NONE) {\n            return false;\n        }\n", "")),
        (
            "write",
            Edit(
                "claim.c",
                "        bytes > SHMQ_RECORD_BYTES_MAX || bytes + SHMQ_RECORD_BLANK_BYTES > room) {",
                "        false) {",
            ),
        ),
        ("write", Edit("internal.h", "    return found < most ? found : most;", "    return found;")),
        (
            "write",
            Edit("repair.c", "= shmq_queue_entry(store, queue);", "= &store->queues[queue];"),
        ),
        ("read", Edit("owner.c", "    if (!shmq_owner_lock_fits(lock)) {", "    if (false) {")),
    ],
    ids=["frame link", "topic link", "BLANK", "frame taken", "frame gone", "claim", "queue count", "intent", "lock"],
)
def test_the_fuzzing_notices_a_missing_check(mode: str, edit: Edit) -> None:
    executable = program("hostile-mutant", HOSTILE, ADDRESS, edits=(edit,))
    for seed in range(1, 6):
        if attempt(executable, mode, 20_000, seed).returncode != 0:
            return
    pytest.fail("five runs passed without the check")
