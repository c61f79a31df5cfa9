"""Killing any operation after any instruction leaves a store that goes on without a violation.

step.c enumerates; this file says how much of it is done, and proves with mutants of the core that it would notice.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from core_build import END_BEFORE_COPY, Edit, can_step, program, run

pytestmark = pytest.mark.skipif(not can_step(), reason="single-stepping reads x86-64 Linux registers")

BED = ("crash/trace.c", "crash/shapes.c", "crash/scenes.c", "crash/check.c", "crash/arena.c")
# Short, and each with another way to change the shared memory: killed for real at every instruction.
KILLED_FOR_REAL = (
    "append-0",
    "append-roll",
    "append-frame-free-one",
    "together-2",
    "replicate-100",
    "replicate-roll",
    "release-one",
    "claim-open",
    "claim-commit",
    "topic-put",
    "topic-free",
    "lock",
)


def step_figures(executable: Any, *arguments: object) -> list[dict[str, Any]]:
    output = run(executable, *arguments, statuses=(0, 1))
    figures = [json.loads(line) for line in output.splitlines()]
    print()
    for line in figures:
        print(
            f"{line['shape']:24} {line['instructions']:7} instructions {line['states']:6} states "
            f"{line['repairs']:5} repairs {line['repair_states']:6} states inside them "
            f"{line['real_kills']:5} real kills {line['checked']:6} checks {line['violations']} violations"
        )
    total = {key: sum(line[key] for line in figures) for key in ("states", "repair_states", "real_kills", "checked")}
    print(f"{len(figures)} shapes: {total}")
    return figures


def assert_clean(figures: list[dict[str, Any]]) -> None:
    bad = [f"{line['shape']}: {line['violations']} violations, first: {line['first']}" for line in figures]
    assert not [text for text, line in zip(bad, figures, strict=True) if line["violations"]], "\n".join(bad)


def test_a_kill_in_any_state_of_any_operation_is_repaired(crash_plan: Any) -> None:
    figures = step_figures(program("step", ("crash/step.c", *BED)), "--seed", crash_plan.seed)
    assert len(figures) >= 50
    assert all(line["states"] >= 10 for line in figures), "an operation that changes nothing was not run"
    assert_clean(figures)


@pytest.mark.slow
def test_a_kill_inside_the_repair_is_repaired_too(crash_plan: Any) -> None:
    executable = program("step", ("crash/step.c", *BED))
    strides = (1, 1) if crash_plan.long else (64, 5)
    options = (
        "--states",
        strides[0],
        "--depth2",
        strides[1],
        "--seed",
        crash_plan.seed,
        "--appends",
        int(crash_plan.long),
    )
    figures = step_figures(executable, *options)
    assert sum(line["repair_states"] for line in figures) >= 1000
    assert_clean(figures)


def test_a_real_sigkill_at_every_instruction_is_repaired(crash_plan: Any) -> None:
    executable = program("step", ("crash/step.c", *BED))
    shapes = () if crash_plan.long else KILLED_FOR_REAL
    figures = step_figures(executable, "--states", 64, "--real", 1, "--seed", crash_plan.seed, *shapes)
    # Only rounds of long loops are left out.
    assert all(line["real_kills"] > 0.5 * min(line["instructions"], 1000) for line in figures)
    assert_clean(figures)


def test_the_hot_path_makes_no_system_call(crash_plan: Any) -> None:
    output = run(program("calls", ("crash/calls.c", *BED)))
    calls = {line["operation"]: line for line in map(json.loads, output.splitlines())}
    assert all(line["finished"] for line in calls.values())
    for operation in ("append-0", "append-256", "append-4096", "batch-3", "append-256-wake-none", "read"):
        assert calls[operation]["calls"] == 0, calls[operation]
    # A long record wakes those who wait for the end of its claim: one futex call, without knowing whether any do.
    assert calls["append-17000"]["calls"] <= 1, calls["append-17000"]


# ---- mutants: what the enumeration must notice, and the shapes that show it ----------------------------------------
KEPT_INTENT = "the intent is not invalidated before its fields change"

PUBLISHED_EARLY = (
    Edit(
        "commit.h",
        "    if (!complete || at != commit.bytes",
        "    atomic_store_explicit(&store->queues[commit.queues[0]].offset_max,\n"
        "                          out[0].queue_offset + commit.units, memory_order_release);\n"
        "    if (!complete || at != commit.bytes",
    ),
)


class Mutant(NamedTuple):
    edits: tuple[Edit, ...]
    shape: str
    options: tuple[object, ...] = ()


MUTANTS: dict[str, Mutant] = {
    "the end of a restored queue is published before its beginning": Mutant(
        (
            Edit(
                "queue.c",
                "    atomic_store_explicit(&entry->offset_min, first, memory_order_release);\n"
                "    atomic_store_explicit(&entry->persisted",
                "    atomic_store_explicit(&entry->offset_max, end, memory_order_release);\n"
                "    atomic_store_explicit(&entry->offset_min, first, memory_order_release);\n"
                "    atomic_store_explicit(&entry->persisted",
            ),
        ),
        "queue-publish",
    ),
    KEPT_INTENT: Mutant(
        (
            Edit(
                "intent.c",
                "    atomic_store_explicit(&intent->kind, SHMQ_INTENT_NONE, memory_order_relaxed);\n"
                "    atomic_thread_fence(memory_order_release);\n",
                "",
            ),
            Edit(
                "commit.h",
                "    log->appended_bytes += at;\n    shmq_intent_clear(store);\n",
                "    log->appended_bytes += at;\n",
            ),
            # The compiler may store the fields in any order; in this one the stale kind shows.
            Edit(
                "commit.h",
                "    intent->log_position = commit.log_position;\n    intent->record_bytes",
                "    atomic_signal_fence(memory_order_seq_cst);\n"
                "    intent->log_position = commit.log_position;\n    intent->record_bytes",
            ),
        ),
        "append-100",
        ("--ignore", 1 << 9),
    ),
    "offset_max is raised before the commit": Mutant(PUBLISHED_EARLY, "append-100"),
    "the log end is moved before the copy": Mutant(
        END_BEFORE_COPY,
        "append-100",
    ),
    "no zeros behind the record": Mutant(
        (Edit("commit.h", "    memset(mapping->data + at, 0, SHMQ_RECORD_BLANK_BYTES);\n", ""),),
        "append-100",
    ),
    "repair does not raise offset_max": Mutant(
        (
            Edit(
                "repair.c",
                "        atomic_store_explicit(&entry->offset_max, next, memory_order_release);\n",
                "",
            ),
        ),
        "append-100",
    ),
    "what is confirmed may be on no disk of this host": Mutant(
        (
            Edit(
                "confirm.c",
                "    confirmed_raise(store, in_sync < durable ? in_sync : durable);\n",
                "    (void)durable;\n    confirmed_raise(store, in_sync);\n",
            ),
        ),
        "confirm",
    ),
    "repair leaves the intent": Mutant(
        (Edit("repair.c", "    shmq_intent_clear(store);\n", ""),),
        "append-exact",
        ("--depth2", 1, "--appends", 1),
    ),
    "repair raises offset_max without a commit": Mutant(
        (Edit("repair.c", "intent->record_bytes) {", "intent->record_bytes && false) {"),),
        "append-100",
    ),
    "the intent names one record of a batch": Mutant(
        (Edit("commit.h", "intent->count = commit.units;", "intent->count = commit.units > 0;"),),
        "batch-3",
    ),
    "the repair of a joint append raises one of its queues": Mutant(
        (
            Edit(
                "repair.c",
                "    const uint32_t count = intent->count < SHMQ_TOGETHER_MAX ? intent->count : SHMQ_TOGETHER_MAX;\n",
                "    const uint32_t count = 1;\n",
            ),
        ),
        "together-2",
    ),
    "a joint append has no intent": Mutant(
        (
            Edit(
                "commit.h",
                "    shmq_intent_set(intent, queue_count == 1 ? SHMQ_INTENT_APPEND : SHMQ_INTENT_TOGETHER);\n",
                "    if (queue_count == 1) shmq_intent_set(intent, SHMQ_INTENT_APPEND);\n",
            ),
        ),
        "together-2",
    ),
    "a joint append is published before its commit": Mutant(
        END_BEFORE_COPY,
        "together-2",
    ),
    "the roll moves the log end before the BLANK is written": Mutant(
        (
            Edit(
                "room.c",
                "    shmq_store32(shmq_store32(blank, (uint32_t)(file_end - end)), SHMQ_RECORD_MAGIC_BLANK);\n",
                "",
            ),
            Edit(
                "room.c",
                "    log->rolled++;\n",
                "    log->rolled++;\n"
                "    shmq_store32(shmq_store32(blank, (uint32_t)(file_end - end)), SHMQ_RECORD_MAGIC_BLANK);\n",
            ),
        ),
        "append-roll",
    ),
    "a frame is taken without an intent": Mutant(
        (Edit("frame.c", "    shmq_intent_set(intent, SHMQ_INTENT_FRAME_TAKE);\n", ""),),
        "append-frame-free-one",
    ),
    "repair does not finish a taken frame": Mutant(
        (
            Edit(
                "frame.c",
                "        log->frame_free = log->intent.frame_next;\n    } else if",
                "        ;\n    } else if",
            ),
        ),
        "append-frame-free-one",
    ),
    "a frame keeps its tag on the free list": Mutant(
        (
            Edit(
                "frame.c",
                "    atomic_store_explicit(&entry->tag, 0, memory_order_release);\n"
                '    SHMQ_POINT("frame.free.untagged");\n',
                "",
            ),
        ),
        "release-three",
    ),
    "a freed frame is listed twice when repair is repeated": Mutant(
        (Edit("frame.c", "    if (log->frame_free != frame + 1) {", "    if (true) {"),),
        "release-three",
    ),
    "repair does not finish a freed frame": Mutant(
        (Edit("frame.c", "        if (link_to(store, bucket, frame) == NULL) {", "        if (false) {"),),
        "release-three",
    ),
    "repair does not free a committed claim": Mutant(
        (Edit("repair.c", "    shmq_claim_repair(store);\n", ""),),
        "append-evicts",
    ),
    "the claim of a dead owner is never freed": Mutant(
        (
            Edit(
                "claim.c",
                "            if (shmq_process_died(claim->owner_pid, claim->owner_start)) {",
                "            if (false) {",
            ),
        ),
        "append-frees-orphan",
    ),
    "a topic is counted before it is written": Mutant(
        (
            Edit(
                "table.c",
                "    status = topic_write(",
                "    atomic_store_explicit(&store->log->topic_count, index + 1, memory_order_release);\n"
                "    status = topic_write(",
            ),
        ),
        "topic-put",
    ),
    "the topic hash is not rebuilt": Mutant(
        (Edit("table.c", "        shmq_names_repair(store);\n", ""),),
        "topic-put",
    ),
    "a replicated record has no intent": Mutant(
        (
            Edit(
                "commit.h",
                "    shmq_intent_set(intent, queue_count == 1 ? SHMQ_INTENT_APPEND : SHMQ_INTENT_TOGETHER);\n",
                "    if (queue_count != 1) shmq_intent_set(intent, SHMQ_INTENT_TOGETHER);\n",
            ),
        ),
        "replicate-100",
    ),
    "a replicated record is published before its commit": Mutant(PUBLISHED_EARLY, "replicate-100"),
    "a replicated record is committed before its copy": Mutant(END_BEFORE_COPY, "replicate-100"),
    "replicated properties are not described": Mutant(
        (Edit("replicate.c", ".described = has_properties(view)", ".described = false && has_properties(view)"),),
        "replicate-256-tags",
    ),
    "a replicated store time does not count": Mutant(
        (Edit("replicate.c", ".now_ms = view->store_ms", ".now_ms = 0"),),
        "replicate-100",
    ),
    "durable_end rises before the sync": Mutant(
        (
            Edit(
                "flush.c",
                "    uint64_t from = shmq_load_acquire(&store->log->durable_end);\n",
                "    uint64_t from = shmq_load_acquire(&store->log->durable_end);\n"
                "    shmq_raise_durable(store, target + 8);\n",
            ),
        ),
        "flush",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_enumeration_notices(name: str) -> None:
    mutant = MUTANTS[name]
    executable = program("step-mutant", ("crash/step.c", *BED), edits=mutant.edits)
    figures = step_figures(executable, *mutant.options, "--enough", 50, mutant.shape)
    print(figures[0]["first"])
    assert figures[0]["violations"] > 0


def test_without_its_invalidation_the_intent_lies_at_a_few_points_only() -> None:
    """What a random soak would miss: stale fields under a valid kind, between two stores."""
    executable = program("step-mutant", ("crash/step.c", *BED), edits=MUTANTS[KEPT_INTENT].edits)
    figures = step_figures(executable, "--ignore", 1 << 9, "append-100", "append-256-tags")
    assert all(0 < line["violations"] <= line["states"] // 3 for line in figures), figures


def test_a_mutant_that_changes_nothing_is_clean() -> None:
    unchanged = Edit("append.c", '#include "core/log/commit.h"', '#include "core/log/commit.h" /* unchanged */')
    assert_clean(step_figures(program("step-mutant", ("crash/step.c", *BED), edits=(unchanged,)), "append-100"))
