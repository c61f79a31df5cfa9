"""Results of `shmq bench` that are kept in a file, and a new result beside one of them.

    {
      "shmq_bench": 1               the form of this file
      "saved_at":   "2026-01-31…"   UTC
      "kind":       "short"         or "sync", "sustained": results of one kind only are comparable
      "conditions": {…}             as in `conditions.py`
      "result":     {…}             the document of `shmq bench --json`
    }

Invariants:
1. A file holds a whole result or what it held before.
2. A ratio is now / saved, whichever is better; `better` says which.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shmq.errors import UsageError
from shmq.measurement.conditions import NUMBER_MAX, Conditions, conditions_of, differences
from shmq.store.atomic import write_atomically

FORM = 1
FILE_BYTES_MAX = 16 << 20  # a day's seconds are 3 MiB
NOISE = 0.1  # one run differs from the next by as much
COMMANDS = {"short": "shmq bench", "sync": "shmq bench --sync", "sustained": "shmq bench --sustained 60"}
# figure -> its name for people, and whether more is better; what is left out follows from these
FIGURES = {
    "rate": ("msg/s", True),
    "median": ("median second, msg/s", True),
    "worst": ("worst second, msg/s", True),
    "p50": ("p50, µs", False),
    "p90": ("p90, µs", False),
    "p99": ("p99, µs", False),
    "p999": ("p99.9, µs", False),
    "p9999": ("p99.99, µs", False),
    "max": ("max, µs", False),
    "one_us": ("send, one group asleep, µs", False),
    "many_us": ("send, all asleep, µs", False),
    "last_us": ("last has it after, µs", False),
}
_SETTINGS = ("private", "size_bytes", "count", "batch", "trips", "groups", "seconds")


@dataclass(frozen=True)
class Saved:
    """One result with its conditions."""

    kind: str
    saved_at: str
    conditions: Conditions
    result: dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure of both results; None where one of them has no such figure."""

    name: str
    figure: str
    saved: float | None
    now: float | None

    @property
    def ratio(self) -> float | None:
        """now / saved."""
        return self.now / self.saved if self.now is not None and self.saved else None

    @property
    def better(self) -> bool | None:
        """Whether it is better by more than noise, False: worse; None: neither, or nothing to compare."""
        if self.ratio is None or 1 / (1 + NOISE) <= self.ratio <= 1 + NOISE:
            return None
        return (self.ratio > 1) == FIGURES[self.figure][1]


def check_savable(path: str) -> None:
    """Refuse a file that could not be written, before anything is measured.

    Raises:
        UsageError: its directory is missing or not writable, or it is a directory.
    """
    directory = Path(path).parent
    if not directory.is_dir():
        raise UsageError(f"--save {path}: there is no directory {directory}", hint=f"mkdir -p {directory}")
    if not os.access(directory, os.W_OK | os.X_OK) or Path(path).is_dir():
        raise UsageError(f"--save {path}: this cannot be written", hint="shmq bench --save /tmp/bench.json")


def save(path: str, saved: Saved) -> None:
    """Write a result down; the file holds all of it or what it held before.

    Raises:
        UsageError: it cannot be written.
    """
    document = {"shmq_bench": FORM, **asdict(saved)}
    try:
        write_atomically(Path(path), (json.dumps(document, indent=2) + "\n").encode(), mode=0o644)
    except OSError as error:
        raise UsageError(
            f"the result cannot be written to {path}: {error.strerror}", hint="shmq bench --save /tmp/bench.json"
        ) from None


def taken_now(kind: str, conditions: Conditions, result: dict[str, Any]) -> Saved:
    """Return a result of this moment."""
    return Saved(kind, datetime.now(UTC).isoformat(timespec="seconds"), conditions, result)


def load(path: str, kind: str) -> Saved:
    """Return the result that a file holds.

    Raises:
        UsageError: there is none, it is not whole, is of a newer form, or of another kind.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX)
    except OSError as error:
        kept = path if isinstance(error, FileNotFoundError) else "bench.json"
        hint = f"keep a result first: {COMMANDS[kind]} --save {kept}"
        raise UsageError(f"--against {path} cannot be read: {error.strerror}", hint=hint) from None
    saved = _parsed(path, content, f"keep a result anew: {COMMANDS[kind]} --save bench.json")
    if saved.kind != kind:
        raise UsageError(
            f"--against {path} holds a result of `{COMMANDS[saved.kind]}`, this is `{COMMANDS[kind]}`",
            hint=f"{COMMANDS[saved.kind]} --against {path}",
        )
    return saved


def _parsed(path: str, content: bytes, again: str) -> Saved:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        text = f"--against {path} is not a whole result of `shmq bench --save`: {error}"
        raise UsageError(text, hint=again) from None
    form = document.get("shmq_bench") if isinstance(document, dict) else None
    if type(form) is not int or form < 1:
        raise UsageError(f"--against {path} was not written by `shmq bench --save`: no shmq_bench in it", hint=again)
    if form > FORM:
        raise UsageError(
            f"--against {path} is of form {form}, which a newer shmq writes; this one reads form {FORM}",
            hint=f"update shmq, or {again}",
        )
    try:
        return _saved(document)
    except ValueError as error:
        raise UsageError(f"--against {path} is damaged: {error}", hint=again) from None


def _saved(document: Mapping[str, Any]) -> Saved:
    kind, saved_at = document.get("kind"), document.get("saved_at")
    conditions, result = document.get("conditions"), document.get("result")
    if not isinstance(kind, str) or kind not in COMMANDS or not isinstance(saved_at, str):
        raise ValueError(f"kind {kind!r} and saved_at {saved_at!r} are none that are written")
    if not isinstance(conditions, dict) or not isinstance(result, dict):
        raise ValueError("conditions or result is missing")
    saved = Saved(kind, saved_at, conditions_of(conditions), result)
    if not figures_of(saved):
        raise ValueError("it has no figures")
    return saved


def figures_of(saved: Saved) -> dict[tuple[str, str], float]:
    """Return the figures of a result by measurement and figure.

    Raises:
        ValueError: one of them is not a number, or results is no list of objects.
    """
    rows = [{"name": "one long run", **saved.result}] if saved.kind == "sustained" else saved.result.get("results")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("result.results is no list of objects")
    found = {}
    for row in rows:
        name = str(row.get("name", f"{row.get('processes')} processes"))
        for figure in FIGURES:
            value = row.get(figure, 0)
            if type(value) not in (int, float) or not 0 <= value < NUMBER_MAX:
                raise ValueError(f"{figure} of {name} is {value!r}, not a number")
            if figure in row:
                found[name, figure] = float(value)
    return found


def compared(saved: Saved, now: Saved) -> list[Figure]:
    """Return every figure of both results, in the order of the new one; those that only the old one has are last."""
    old, new = figures_of(saved), figures_of(now)
    return [Figure(*key, old.get(key), new.get(key)) for key in {**new, **old}]


def all_differences(saved: Saved, now: Saved) -> list[str]:
    """Return what differs between two results besides their figures: settings and conditions."""
    settings = [
        f"{name}: {saved.result.get(name)} saved, {now.result.get(name)} now"
        for name in _SETTINGS
        if saved.result.get(name) != now.result.get(name)
    ]
    return settings + differences(saved.conditions, now.conditions)
