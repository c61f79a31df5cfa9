"""Checks of what lies in /dev/shm: the owner of each segment, and the ones no longer needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shmq.figures.quantity import plural, size_text
from shmq.figures.verdict import Finding
from shmq.shm.leftovers import Leftover
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import ok, warn

FIX = "shmq doctor --fix"
REMOVABLE = "memory.stale"
"""The check whose finding, if it is not OK, `--fix` would deal with."""
NAMED_MAX = 3


def check_leftovers(case: Case) -> Iterator[Finding]:
    """Generations of segments by state; those that are provably dead can be removed."""
    by_state: dict[str, list[Leftover]] = {}
    for leftover in case.leftovers:
        by_state.setdefault(leftover.state, []).append(leftover)
    dead = by_state.get("dead", [])
    if dead:
        text = f"{plural(len(dead), 'stale generation')} of dead brokers: {_named(dead)} ({_size(dead)})"
        yield warn(REMOVABLE, text, FIX, **_figures(dead))
    own = case.instance.generation if case.instance else None
    waiting = by_state.get("waiting", [])
    others = [entry for entry in waiting if entry.generation != own]
    for leftover in (entry for entry in waiting if entry.generation == own):
        text = f"this broker ended without stopping, its memory ({_size([leftover])}) waits: {leftover.reason}"
        yield warn("memory.waiting", text, case.serve_command, **_figures([leftover]))
    if others:
        text = (
            f"{plural(len(others), 'generation')} of brokers that ended without stopping wait for their next start "
            f"({_size(others)}): {_named(others)}"
        )
        fix = f"shmq serve --name {others[0].broker_name} and shmq stop; or remove its store, then: {FIX}"
        yield warn("memory.waiting", text, fix, **_figures(others))
    for state in ("mapped", "unjudged"):
        for leftover in by_state.get(state, []):
            pids = ", ".join(str(mark.pid) for mark in leftover.holders)
            text = f"{_named([leftover])} ({_size([leftover])}) is of no broker that runs here, but {leftover.reason}"
            fix = (
                f"see pid {pids}, then: {FIX}"
                if pids
                else "look from the container it belongs to, or remove it by hand"
            )
            yield warn(f"memory.{state}", text, fix, **_figures([leftover]))
    living, foreign = by_state.get("living", []), by_state.get("foreign", [])
    if not dead:
        strangers = f", {len(foreign)} of other users" if foreign else ""
        text = f"no stale segments; {plural(len(living), 'generation')} in use ({_size(living)}){strangers}"
        yield ok(REMOVABLE, text, **_figures(living))


def _named(leftovers: Sequence[Leftover]) -> str:
    names = [f"shmq.{entry.broker_name}.{entry.generation:016x}" for entry in leftovers[:NAMED_MAX]]
    return ", ".join(names) + (f" and {len(leftovers) - NAMED_MAX} more" if len(leftovers) > NAMED_MAX else "")


def _size(leftovers: Sequence[Leftover]) -> str:
    return size_text(sum(entry.size_bytes for entry in leftovers))


def _figures(leftovers: Sequence[Leftover]) -> dict[str, object]:
    return {
        "generations": [f"{entry.broker_name}.{entry.generation:016x}" for entry in leftovers],
        "bytes": sum(entry.size_bytes for entry in leftovers),
        "pids": sorted({mark.pid for entry in leftovers for mark in entry.holders}),
    }
