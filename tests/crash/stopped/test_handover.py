"""A queue is never read by two members, and a dead owner is replaced once, wherever one of them is stopped or killed.

handover.c stops and kills an operation on the owner word at its n-th instruction, while others want the queue.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_build import Edit, can_step, program, run

pytestmark = pytest.mark.skipif(not can_step(), reason="single-stepping reads x86-64 Linux registers")

SOURCES = ("crash/stopped/handover.c", "crash/stopped/operations.c", "crash/trace.c", "crash/check.c", "crash/arena.c")


def figures_of(executable: Any, *arguments: object) -> dict[str, dict[str, Any]]:
    lines = [json.loads(line) for line in run(executable, *arguments, statuses=(0, 1)).splitlines()]
    print("", *lines, sep="\n")
    return {line["operation"]: line for line in lines}


def test_stopped_or_killed_anywhere_a_queue_never_has_two_readers(crash_plan: Any) -> None:
    figures = figures_of(program("handover", SOURCES), 1 if crash_plan.long else 3, crash_plan.seed)
    assert len(figures) == 14
    assert [line for line in figures.values() if line["violations"]] == []
    for operation in ("take", "take-dead", "take-over", "lock"):
        line = figures[operation]
        assert line["others_won"] >= 10 and line["victim_won"] >= 5, line
    assert figures["take-live"]["others_won"] == figures["take-live"]["victim_won"] == 0
    assert figures["renew"]["others_won"] == 0
    for operation in ("take-lost", "leave-lost", "commit-lost", "wait-lost"):
        assert figures[operation]["others_won"] >= 5, figures[operation]


_GENERATION_OF_NOW = Edit(
    "shmq.h",
    "    return shmq_client_lives(store, client) ? client : 0;\n",
    "    return client != 0 ? shmq_client_word(store, shmq_client_slot(client)) : 0;\n",
)
_COMMIT = (
    "    for (;;) {\n"
    "        const uint64_t now = atomic_load_explicit(&entry->place, memory_order_acquire);\n"
    "        const uint64_t before = atomic_load_explicit(&entry->committed, memory_order_acquire);\n"
)
_PLACE, _IS_OTHERS = (
    "        if (now != place",
    "(member != NULL && !shmq_owner_is_own(member, entry, place))",
)
MUTANTS: dict[str, tuple[str, Edit]] = {
    "a member takes under the present generation of its slot": ("take-lost", _GENERATION_OF_NOW),
    "a member leaves under the present generation of its slot": ("leave-lost", _GENERATION_OF_NOW),
    "a member commits under the present generation of its slot": ("commit-lost", _GENERATION_OF_NOW),
    "a taker does not look at its own slot again": (
        "take-back",
        Edit("owner.c", " || (shmq_owner_is_local(word) && !shmq_client_lives(store, word))", ""),
    ),
    "a member looks at the owner in front of the offset only": (
        "commit-lost",
        Edit(
            "offset.c",
            f"{_COMMIT}{_PLACE} || {_IS_OTHERS}) {{\n",
            f"    if {_IS_OTHERS} {{ return false; }}\n{_COMMIT}{_PLACE}) {{\n",
        ),
    ),
    "a sleeper changes the state of whatever life its slot has": (
        "wait-lost",
        Edit("sleep.c", "    while (seen >> 32 == client >> 32) {\n", "    for (client = seen;;) {\n"),
    ),
    "a post for another client is kept": (
        "wait-lost",
        Edit("sleep.c", "    } else if (is_posted) {\n", "    } else if (false) {\n"),
    ),
    "a word is put without a look at what it replaces": (
        "take",
        Edit(
            "owner.c",
            "    return atomic_compare_exchange_strong_explicit(&entry->owner, seen, word, memory_order_acq_rel,\n"
            "                                                   memory_order_acquire);\n",
            "    atomic_store(&entry->owner, word);\n    return *seen != word;\n",
        ),
    ),
    "a member that leaves clears whatever word is there": (
        "leave",
        Edit(
            "owner.c",
            "    (void)owner_swap(entry, &own, 0);\n",
            "    atomic_store_explicit(&entry->owner, 0, memory_order_release);\n",
        ),
    ),
    "a living owner is replaced": ("take-live", Edit("owner.c", "shmq_owner_of(store, seen) != SHMQ_NONE)", "false)")),
    "a lock that holds is replaced": (
        "renew",
        Edit("owner.c", "(is_locked(seen, now_ms) || ", "((false && is_locked(seen, now_ms)) || "),
    ),
    "a lock that is over holds on": (
        "take-over",
        Edit("owner.c", " && word >> 32 >= now_ms / LOCK_TICK_MS", " && now_ms"),
    ),
    "a member whose process died stays the owner": (
        "take-dead",
        Edit("owner.c", "shmq_process_died(pid, start) ? SHMQ_NONE : slot", "(void)start, slot"),
    ),
    "a free queue stays with its owner": (
        "free",
        Edit("owner.c", "while (seen != 0 && seen != SHMQ_OWNER_MOVING && holds", "while (seen == 1 && holds"),
    ),
    "the lock of another holder is ended": (
        "unlock",
        Edit(
            "owner.c",
            "(uint32_t)seen == (SHMQ_OWNER_LOCK | holder) && ",
            "seen != 0 && ",
        ),
    ),
}


@pytest.mark.parametrize("defect", MUTANTS)
def test_a_core_that_hands_a_queue_over_wrongly_is_noticed(defect: str) -> None:
    operation, edit = MUTANTS[defect]
    figures = figures_of(program("handover-mutant", SOURCES, edits=(edit,)), 1, 0, operation)
    assert figures[operation]["violations"] > 0, defect
