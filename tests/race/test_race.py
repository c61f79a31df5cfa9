"""No wake-up is lost, and the lock-free paths race with nothing: processes, threads, ThreadSanitizer."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from core_build import LONG, PLAIN, POINTS, THREAD, Edit, attempt, program, run

WAKE = ("race/wake.c", "crash/check.c", "crash/arena.c")
WAKE_POINTS = ("race/wake_points.c", "crash/check.c", "crash/arena.c")
THREADS = ("race/threads.c", "crash/check.c", "crash/arena.c")


def lines_of(output: str) -> dict[str, dict[str, Any]]:
    return {line["scenario"]: line for line in map(json.loads, output.splitlines())}


# ---- wake-ups ----------------------------------------------------------------------------------------
def test_no_wake_up_is_lost() -> None:
    rounds = 200_000 if LONG else 6_000
    scenarios = lines_of(run(program("wake", WAKE), rounds, statuses=(0, 1)))
    for line in scenarios.values():
        print(line)
    assert set(scenarios) == {
        "ping-pong", "crowd", "shared bit", "wave", "dead errand", "stopped", "dead writer", "nudge", "sync flush",
    }  # fmt: skip
    assert not [line for line in scenarios.values() if line["lost"]]
    # They did sleep: a test in which all are awake has proved nothing.
    for name in ("ping-pong", "crowd", "shared bit"):
        assert scenarios[name]["wakes"] > rounds / 20, scenarios[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        Edit(
            "sleep.c",
            "        raise_hands(store, sleeper.client, watch->queues, watch->count);\n"
            "        if (has_news(store, watch)) {\n            return rise",
            "        if (has_news(store, watch)) {\n            return rise",
        ),
        Edit("wake.c", "    range->last = high - 1;\n", "    range->last = high < 64 ? high - 1 : 63;\n"),
        Edit("wake.c", "        half.last = last;\n        wake_range(store, half);\n", ""),
        Edit("wake.c", "            slot = (slot | 63) + 1;\n", "            slot = slot + 64;\n"),
        Edit("sleep.c", "        shmq_errand_run(store, shmq_client_slot(sleeper.client));\n", "        ;\n"),
        Edit("member.c", "    shmq_errand_run(store, slot);\n", ""),
        Edit("sleep.c", "now + store->sleep_ns_max : deadline_ns", "deadline_ns : deadline_ns"),
        Edit(
            "sleep.c",
            "    store->wait_leader = false;\n"
            "    store->wait_round++;\n"
            "    pthread_cond_broadcast(&store->wait_turn);\n",
            "    store->wait_leader = false;\n",
        ),
    ],
    ids=[
        "no hand raised",
        "one slot a bit",
        "half an errand",
        "a row of slots is left out",
        "errands are not carried out",
        "the errand of a dead process is lost",
        "no sleeper looks again",
        "the leader wakes no thread",
    ],
)
def test_the_wake_test_notices(edit: Edit) -> None:
    scenarios = lines_of(run(program("wake-mutant", WAKE, edits=(edit,)), 2_000, 300, statuses=(0, 1)))
    assert any(line["lost"] for line in scenarios.values()), scenarios


def cases_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_message_between_two_steps_of_falling_asleep_is_noticed() -> None:
    cases = cases_of(run(program("wake-points", WAKE_POINTS, (*PLAIN, POINTS)), statuses=(0, 1)))
    assert len(cases) == 8
    assert not [case for case in cases if not case["noticed"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "edit",
    [
        Edit(
            "sleep.c",
            "        if (has_news(store, watch)) {\n            return rise(store, sleeper, SHMQ_OK);\n        }\n",
            "",
        ),
        Edit("sleep.c", "        if (has_news(store, watch)) {\n            return SHMQ_OK;\n        }\n", ""),
    ],
    ids=["the leader does not look twice", "a follower does not look twice"],
)
def test_the_test_of_the_steps_notices(edit: Edit) -> None:
    executable = program("wake-points-mutant", WAKE_POINTS, (*PLAIN, POINTS), edits=(edit,))
    assert [case for case in cases_of(run(executable, 300, statuses=(0, 1))) if not case["noticed"]]


# ---- threads -----------------------------------------------------------------------------------------
def test_threads_see_each_others_work_whole() -> None:
    figures = json.loads(run(program("threads", THREADS), 20_000 if LONG else 2_000, statuses=(0, 1)))
    print(figures)
    assert figures["wrong"] == 0
    counts = ("appended", "claimed", "units_seen", "waits", "looked_up", "released", "owned")
    assert all(figures[name] > 0 for name in counts)


# The sanitizer knows neither pthread_mutex_clocklock nor an expanded memcpy, and says of fences that it ignores them.
SANITIZED = (*THREAD, "-Wno-tsan", "-fno-builtin", "-Dpthread_mutex_clocklock=race_clocklock")


@pytest.fixture(scope="module")
def sanitizer_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tsan")
    (folder / "try.c").write_text("int main(void) { return 0; }\n")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-fsanitize=thread", str(folder / "try.c"), "-o", str(folder / "try")]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("this compiler has no ThreadSanitizer")
    if attempt(folder / "try").returncode != 0:
        pytest.skip("ThreadSanitizer does not run on this kernel")


@pytest.mark.slow
@pytest.mark.usefixtures("sanitizer_works")
def test_thread_sanitizer_finds_no_race() -> None:
    done = attempt(program("threads-sanitized", THREADS, SANITIZED), 60_000 if LONG else 5_000)
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:8000]
    assert done.returncode == 0, done.stderr[:8000]
    print(done.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("sanitizer_works")
def test_thread_sanitizer_notices_an_extent_that_is_read_in_halves() -> None:
    halves = Edit(
        "table.c", "extent_load(&entry->extents[i]);\n        if (queue_id", "entry->extents[i];\n        if (queue_id"
    )
    done = attempt(program("threads-mutant", THREADS, SANITIZED, edits=(halves,)), 5_000)
    assert "WARNING: ThreadSanitizer: data race" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("sanitizer_works")
def test_thread_sanitizer_notices_a_queue_that_is_handed_over_without_order() -> None:
    swap = "(&entry->owner, seen, word, memory_order_"
    relaxed = Edit("owner.c", f"{swap}acq_rel,", f"{swap}relaxed,")
    done = attempt(program("threads-mutant", THREADS, SANITIZED, edits=(relaxed,)), 5_000)
    assert "WARNING: ThreadSanitizer: data race" in done.stderr and "member_thread" in done.stderr


def test_the_plain_build_is_the_one_that_ships() -> None:
    """The kill and wake tests say something about the product only if they run its optimisation level."""
    setup = ast.parse((Path(__file__).resolve().parents[2] / "setup.py").read_text())
    names = {
        target.id: node.value
        for node in ast.walk(setup)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    given = {word.arg: word.value for word in ast.walk(setup) if isinstance(word, ast.keyword)}["extra_compile_args"]
    assert set(PLAIN) <= set(ast.literal_eval(names[given.id] if isinstance(given, ast.Name) else given))
