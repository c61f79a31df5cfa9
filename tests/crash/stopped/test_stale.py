"""A process that was stopped with the number of a queue, or group, that is no more leaves the next one alone.

stale.c stops an operation at its n-th instruction, lets others give the entry to a new topic, or group, and goes on.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_build import Edit, can_step, program, run

pytestmark = pytest.mark.skipif(not can_step(), reason="single-stepping reads x86-64 Linux registers")

SOURCES = ("crash/stopped/stale.c", "crash/stopped/operations.c", "crash/trace.c", "crash/check.c", "crash/arena.c")


def figures_of(executable: Any, *arguments: object) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in run(executable, *arguments, statuses=(0, 1)).splitlines()]
    print("", *lines, sep="\n")
    return lines


def test_a_process_stopped_anywhere_leaves_the_next_queue_alone(crash_plan: Any) -> None:
    stride = 1 if crash_plan.long else 11
    figures = figures_of(program("stale", SOURCES), stride, crash_plan.seed)
    assert len(figures) == 22
    assert [line for line in figures if line["violations"]] == []
    for line in figures:
        assert line["cases"] - line["held"] >= 5, line
    assert sum(line["held"] for line in figures) > 0, "no process was stopped with the lock"


_QUEUE_ONLY = Edit(
    "owner.c",
    "    return atomic_load_explicit(&entry->place, memory_order_acquire) == place;\n",
    "    return (uint32_t)atomic_load_explicit(&entry->place, memory_order_acquire) == (uint32_t)place;\n",
)
_QUEUE_ONLY_COMMITTED = Edit("offset.c", "if (now != place || ", "if ((uint32_t)now != (uint32_t)place || ")
MUTANTS: dict[str, tuple[str, tuple[Edit, ...]]] = {
    "append": (
        "a writer looks at the number before it has the lock, and not again",
        (Edit("room.c", "q < commit->queue_count && status == SHMQ_OK; q++) {", "q < 0; q++) {"),),
    ),
    "together": (
        "only the first queue of a commit is looked at",
        (Edit("room.c", "q < commit->queue_count && status == SHMQ_OK; q++) {", "q < 1; q++) {"),),
    ),
    "claim": (
        "the number is not looked at when a claim is committed",
        (Edit("reserve.c", "        status = shmq_writable_check(store, handle->queue); /* as in room.c */\n", ""),),
    ),
    "read": (
        "neither tags of frames nor a second look tell the lives of an entry apart",
        (
            Edit("log/log.h", "(queue + 1u) << 32) | ordinal", "((queue & 31u) + 1u) << 32) | ordinal"),
            Edit(
                "reader.c",
                "    if (!shmq_queue_lives(store, cursor->queue)) { /* the name",
                "    if (false) { /* the name",
            ),
        ),
    ),
    "acknowledge": (
        "the offset is stored without its place",
        (
            Edit(
                "offset.c",
                "        if (pair_change(entry, before, now, committed, now)) {\n",
                "        atomic_store_explicit(&entry->committed, committed, memory_order_release);\n"
                "        if (before != UINT64_MAX) {\n",
            ),
        ),
    ),
    "take": (
        "a taker does not look at the place again",
        (Edit("owner.c", "if (!holds(entry, place) || (shmq_owner", "if (false || (shmq_owner"),),
    ),
    "take-own": (
        "a taker believes its own word, whatever queue the slot is for",
        (Edit("owner.c", "    return holds(entry, place); /* ours already", "    return true; /* ours already"),),
    ),
    "find": (
        "the number of a topic is not looked at behind what was read under it",
        (
            Edit("table.c", " && shmq_topic_holds(store, topic) ? queue", " ? queue"),
            Edit("table.c", "shmq_topic_holds(store, number) && same", "same"),
        ),
    ),
    "offset-put": (
        "a slot goes back to a queue that is no more",
        (
            Edit(
                "offset.c",
                "    if (shmq_queue_entry(store, queue) == NULL) {\n        return SHMQ_NO_QUEUE;\n    }\n",
                "",
            ),
        ),
    ),
    "group-take": ("a taker looks at the queue of a slot only", (_QUEUE_ONLY,)),
    "group-take-own": ("a taker that has a word there looks at the queue of the slot only", (_QUEUE_ONLY,)),
    "group-acknowledge": (
        "an acknowledgement looks at the queue of a slot only",
        (_QUEUE_ONLY, _QUEUE_ONLY_COMMITTED),
    ),
    "group-commit": ("a commit looks at the queue of a slot only", (_QUEUE_ONLY_COMMITTED,)),
    "group-offset-put": (
        "a slot goes back to a group that is no more",
        (Edit("offset.c", "    if (!shmq_group_holds(store, group)) {\n", "    if (false) {\n"),),
    ),
    "group-find": (
        "the number of a group is read behind the name, and not again",
        (
            Edit(
                "member.c",
                "            return number;\n",
                "            return atomic_load(&store->groups[index].number);\n",
            ),
        ),
    ),
    "group-set": (
        "the number of a group is not looked at under the lock",
        (
            Edit(
                "member.c",
                "    struct shmq_group *entry = group_of(store, group);\n    if (entry == NULL) {\n",
                "    struct shmq_group *entry = &store->groups[group & store->group_mask];\n    if (false) {\n",
            ),
        ),
    ),
    "group-settings": (
        "the number of a group is not looked at behind its settings",
        (
            Edit(
                "member.c",
                "            return shmq_group_holds(store, group) ? bytes : 0;\n",
                "            return bytes;\n",
            ),
        ),
    ),
}


@pytest.mark.parametrize("operation", MUTANTS)
def test_a_core_without_one_of_the_looks_is_noticed(operation: str) -> None:
    defect, edits = MUTANTS[operation]
    (figures,) = figures_of(program("stale-mutant", SOURCES, edits=edits), 1, 0, operation)
    assert figures["violations"] > 0, defect
