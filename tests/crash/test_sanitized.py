"""Every operation of the core, killed, repaired and left in peace, under AddressSanitizer and UBSan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from core_build import ADDRESS, LONG, POINTS, SOAK, program, run

pytestmark = pytest.mark.slow

WORLD = ("crash/shapes.c", "crash/scenes.c", "crash/check.c", "crash/arena.c")


def test_every_operation_and_its_repair_is_clean_under_sanitizers() -> None:
    executable = program("points-sanitized", ("crash/points.c", *WORLD), (*ADDRESS, POINTS))
    depth = ("--depth2",) if LONG else ()
    lines = [json.loads(line) for line in run(executable, "kill", *depth).splitlines()]
    assert not [line for line in lines if line.get("violations")]


def test_evictions_are_clean_under_sanitizers() -> None:
    run(program("evict-sanitized", ("crash/evict.c", "crash/check.c", "crash/arena.c"), ADDRESS))


@pytest.mark.parametrize(
    ("name", "sources", "arguments"),
    [
        (
            "soak",
            SOAK,
            ("--kills", 100),
        ),
        ("threads", ("race/threads.c", "crash/check.c", "crash/arena.c"), (1000,)),
        ("wake", ("race/wake.c", "crash/check.c", "crash/arena.c"), (500,)),
    ],
)
def test_processes_and_threads_are_clean_under_sanitizers(
    name: str, sources: tuple[str, ...], arguments: tuple[Any, ...]
) -> None:
    print(run(program(f"{name}-sanitized", sources, ADDRESS), *arguments))
