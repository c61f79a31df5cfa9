"""Stopped holders and owners, foreign processes, named crash points, and kills at random."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from core_build import (
    ADDRESS,
    BINDINGS,
    END_BEFORE_COPY,
    PLAIN,
    POINTS,
    SOAK,
    Edit,
    attempt,
    core_sources,
    program,
    run,
)

WORLD = ("crash/shapes.c", "crash/scenes.c", "crash/check.c", "crash/arena.c")
HOST_REFUSED = 77


def lines_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def assert_no_violations(lines: list[dict[str, Any]], name: str) -> None:
    bad = [f"{line[name]}: {line['first']}" for line in lines if line["violations"]]
    assert not bad, "\n".join(bad)


# ---- named points: every processor, every point --------------------------------------------------
def point_names() -> set[str]:
    """Every SHMQ_POINT of the core, from its text: a new one must be passed by some shape."""
    texts = [path.read_text() for path in (BINDINGS / "core").rglob("*.[ch]")]
    return {name for text in texts for name in re.findall(r'SHMQ_POINT\("([a-z.]+)"\)', text)}


def test_a_kill_at_every_named_point_and_at_those_of_its_repair_is_repaired() -> None:
    executable = program("points", ("crash/points.c", *WORLD), (*PLAIN, POINTS))
    *shapes, last = lines_of(run(executable, "kill", "--depth2", statuses=(0, 1)))
    totals = {key: sum(shape[key] for shape in shapes) for key in ("points", "repairer_points")}
    print(f"{totals['points']} kills at named points, {totals['repairer_points']} in repair")
    assert_no_violations(shapes, "shape")
    # Those of waiting are passed by tests/race/test_race.py.
    assert set(last["passed"]) == {name for name in point_names() if not name.startswith("wait.")}


def test_beside_a_stopped_holder_others_get_busy_and_nothing_is_broken_after_it_goes_on() -> None:
    executable = program("points", ("crash/points.c", *WORLD), (*PLAIN, POINTS))
    *shapes, _ = lines_of(run(executable, "stop", statuses=(0, 1)))
    print(f"{sum(s['points'] for s in shapes)} stops, {sum(s['stops_inside'] for s in shapes)} of them with the lock")
    assert_no_violations(shapes, "shape")
    assert sum(shape["stops_inside"] for shape in shapes) >= 100


def test_no_waiter_sleeps_beside_a_free_lock_when_a_woken_one_was_killed() -> None:
    locks = lines_of(run(program("waiter", ("crash/waiter.c", "crash/check.c", "crash/arena.c")), statuses=(0, 1)))
    assert [lock["lock"] for lock in locks] == ["append", "table", "flush"]
    assert not [lock for lock in locks if not lock["good"]]


# ---- claims --------------------------------------------------------------------------------------
def test_a_stopped_claim_owner_is_evicted_and_settles_its_hole_when_it_comes_back() -> None:
    variants = lines_of(run(program("evict", ("crash/evict.c", "crash/check.c", "crash/arena.c")), statuses=(0, 1)))
    assert_no_violations(variants, "variant")
    assert {v["variant"]: v["evicted"] for v in variants} == {
        v["variant"]: 0 if v["variant"] == "owner back in time" else 1 for v in variants
    }


def test_a_living_owner_that_looks_dead_keeps_its_memory() -> None:
    executable = program("alive", ("crash/alive.c", "crash/check.c", "crash/arena.c"))
    cases = lines_of(run(executable, statuses=(0, 1, HOST_REFUSED)))
    assert len(cases) >= 3
    assert not [case for case in cases if not case["good"]]
    if len(cases) == 3:
        pytest.skip("this host lets us hide no processes; the other cases passed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        Edit(
            "reserve.c",
            "    bytes = bytes < SHMQ_HOLE_OVERHEAD + body_bytes_max ? SHMQ_HOLE_OVERHEAD + body_bytes_max : bytes;\n",
            "    bytes = bytes < 256 ? 256 : bytes;\n",
        ),
        Edit(
            "claim.c",
            "    hole.body_bytes = hole.body_bytes < SHMQ_BODY_BYTES_MAX ? hole.body_bytes : SHMQ_BODY_BYTES_MAX;\n",
            "",
        ),
        Edit("reserve.c", "                memset(handle->body, 0, view.body_bytes);\n", ""),
    ],
    ids=["tail of the hole inside the body", "hole longer than a record", "hole not settled"],
)
def test_the_eviction_test_notices(edit: Edit) -> None:
    executable = program("evict-mutant", ("crash/evict.c", "crash/check.c", "crash/arena.c"), edits=(edit,))
    assert any(variant["violations"] for variant in lines_of(run(executable, statuses=(0, 1))))


# ---- strangers -----------------------------------------------------------------------------------
def test_a_foreign_process_gets_its_answer_and_touches_nothing() -> None:
    executable = program("foreign", ("crash/foreign.c", "crash/arena.c"))
    done = attempt(executable)
    cases = lines_of(done.stdout)
    assert len(cases) >= 20, done.stderr
    for case in cases:
        assert case["got"] == case["expected"], case
        assert case["untouched"], case
    if done.returncode == HOST_REFUSED:
        pytest.skip("this host lets us make no PID namespace; the other cases passed")
    assert done.returncode == 0, done.stderr


def test_attaching_survives_any_head(crash_plan: Any) -> None:
    executable = program("foreign-address", ("crash/foreign.c", "crash/arena.c"), ADDRESS)
    rounds = 1_000_000 if crash_plan.long else 20_000
    (figures,) = lines_of(run(executable, "fuzz", rounds, crash_plan.seed))
    print(figures)
    assert 0 < figures["accepted"] < rounds


# ---- random kills --------------------------------------------------------------------------------
@pytest.mark.slow
def test_random_kills_lose_nothing_that_was_acknowledged(crash_plan: Any) -> None:
    kills = 100_000 if crash_plan.long else 2_000
    options = ("--kills", kills, "--seed", crash_plan.seed, "--pause-us", 500)
    (figures,) = lines_of(run(program("soak", SOAK), *options, statuses=(0, 1)))
    print(figures)
    assert figures["violations"] == 0, figures
    assert figures["kills"] == kills
    # A soak without a death inside, a rollover or an eviction has proved nothing.
    assert figures["lock_holders_killed"] > kills / 100
    assert figures["evictions"] > 0 and figures["rolled"] > 0 and figures["frames_released"] > 0
    assert figures["table_changes"] > kills / 10


@pytest.mark.slow
def test_the_soak_notices_a_core_that_publishes_before_it_commits() -> None:
    executable = program("soak-mutant", SOAK, edits=END_BEFORE_COPY)
    (figures,) = lines_of(run(executable, "--kills", 2_000, "--seed", 1, statuses=(0, 1)))
    print(figures)
    assert figures["violations"] > 0


def test_the_core_stays_free_of_python() -> None:
    """These programs link every file of the core's folder, and so does a program that uses it as a C library."""
    files = [*core_sources(), *(BINDINGS / "core").rglob("*.h"), BINDINGS / "shmq.h"]
    assert {"append.c", "claim.c", "frame.c", "lock.c", "segment.c", "table.c", "wake.c", "flush.c"} <= {
        path.name for path in files
    }
    for path in files:
        text = path.read_text()
        assert "Python.h" not in text and "face/" not in text, path
