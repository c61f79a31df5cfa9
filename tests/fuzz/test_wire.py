"""Damaged frames and batches are read without one access out of bounds; under ASan and UBSan."""

from __future__ import annotations

import json

import pytest
from core_build import ADDRESS, LONG, Edit, attempt, program, run

from tests.seed import SEED

ROUNDS = 10_000_000 if LONG else 200_000


@pytest.mark.parametrize("mode", ["frame", "batch"])
def test_damaged_bytes_are_read_within_bounds(mode: str) -> None:
    figures = json.loads(run(program("wire", ("fuzz/wire.c", "fuzz/readers.c"), ADDRESS), mode, ROUNDS, SEED))
    print(figures)
    # Neither all nor none: otherwise the damage would have tried nothing, or left nothing.
    assert min(figures["accepted"], figures["left"]) > ROUNDS / 100


MUTANTS = {
    "frame": ("send_frame.c", "        bytes - 4 < counted)", "        false)"),
    "UTF-8": ("send_frame.c", "    if (at[0] < 0xC2 || at[0] > 0xF4 || left < count)", "    if (at[0] < 0xC2)"),
    "name": ("send_frame.c", "(size_t)(in->end - name.data) < (size_t)name.bytes + 4)", "false)"),
    "value": ("send_frame.c", " || (size_t)(in->end - value.data) < value.bytes)", ")"),
    "properties": ("send_answer.c", "    if (*bytes < text_bytes + 1 + suffix_bytes)", "    if (false)"),
    "answer": ("send_answer.c", "    if (needed > room)", "    if (false)"),
    "least": ("batch.c", "    if (left < LEAST_BYTES) {", "    if (false) {"),
    "total": ("batch.c", "    if (total > left || total < LEAST_BYTES) {", "    if (total < LEAST_BYTES) {"),
    "body": ("batch.c", "    if (body_bytes > total - LEAST_BYTES) {", "    if (false) {"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_fuzzing_notices_a_missing_check(name: str) -> None:
    edit = Edit(*MUTANTS[name])
    mode = "batch" if edit.file == "batch.c" else "frame"
    executable = program("wire-mutant", ("fuzz/wire.c", "fuzz/readers.c"), ADDRESS, edits=(edit,))
    for seed in range(1, 6):
        if attempt(executable, mode, 100_000, seed).returncode != 0:
            return
    pytest.fail("five runs passed without the check")
