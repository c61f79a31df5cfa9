"""Checks of what lies in /dev/shm: whose it is, and what nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shmq.shm.leftovers import Leftover
from shmq.tools.doctor.case import Case
from shmq.tools.doctor.finding import Finding, ok, warn
from shmq.tools.quantity import plural, size_text

FIX = "shmq doctor --fix"


def check_leftovers(case: Case) -> Iterator[Finding]:
    """Generations of segments by state; those that are provably dead can be removed."""
    by_state: dict[str, list[Leftover]] = {}
    for leftover in case.leftovers:
        by_state.setdefault(leftover.state, []).append(leftover)
    dead = by_state.get("dead", [])
    if dead:
        text = f"{plural(len(dead), 'stale generation')} of dead brokers: {_named(dead)} ({_size(dead)})"
        yield replace(warn("memory.stale", text, FIX, **_figures(dead)), is_removable=True)
    own = f"{case.instance.generation:016x}" if case.instance else ""
    for leftover in by_state.get("waiting", []):
        command = (
            case.serve_command if f"{leftover.generation:016x}" == own else f"shmq serve --name {leftover.broker_name}"
        )
        text = (
            f"{_named([leftover])} ({_size([leftover])}) is of a broker that ended without stopping: {leftover.reason}"
        )
        yield warn("memory.waiting", text, f"{command}, and shmq stop if it is not to go on", **_figures([leftover]))
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
        others = f", {len(foreign)} of other users" if foreign else ""
        text = f"no stale segments; {plural(len(living), 'generation')} in use ({_size(living)}){others}"
        yield ok("memory.stale", text, **_figures(living))


def _named(leftovers: Sequence[Leftover]) -> str:
    return ", ".join(f"shmq.{entry.broker_name}.{entry.generation:016x}" for entry in leftovers)


def _size(leftovers: Sequence[Leftover]) -> str:
    return size_text(sum(entry.size_bytes for entry in leftovers))


def _figures(leftovers: Sequence[Leftover]) -> dict[str, object]:
    return {
        "generations": [f"{entry.broker_name}.{entry.generation:016x}" for entry in leftovers],
        "bytes": sum(entry.size_bytes for entry in leftovers),
        "pids": sorted({mark.pid for entry in leftovers for mark in entry.holders}),
    }
