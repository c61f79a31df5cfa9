"""The C programs build with the core alone, and what they print has the promised keys."""

from __future__ import annotations

import pytest

from benchmarks.workloads import core

pytestmark = pytest.mark.slow


def test_the_core_builds_without_python() -> None:
    names = {source.name for source in core.core_sources()}
    assert {"append.c", "lock.c", "record.c"} <= names
    assert not any("Python.h" in source.read_text() for source in core.core_sources())


def test_one_append_call_is_timed() -> None:
    times = core.append_call(20_000)
    assert 0 < times["p50"] <= times["p99"] <= times["p99.9"] <= times["max"]
    assert times["mean"] > 0


def test_a_wave_wakes_every_sleeper() -> None:
    times = core.wave(20, 5)
    assert all(times[name] > 0 for name in ("one_us", "send_us", "last_us", "bare_last_us"))
    assert times["ratio"] > 0 and times["to_bare"] > 0


def test_every_killed_holder_is_followed_by_a_successful_append() -> None:
    times = core.owner_killed(12)
    assert 0 < times["p50"] <= times["p99"] <= times["max"]
    assert times["points"] >= 4
