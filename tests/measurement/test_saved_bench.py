"""Results that `shmq bench --save` keeps, and how a new one stands beside them."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from shmq.errors import UsageError
from shmq.measurement.conditions import Conditions, condition_text, differences, doubts, fresh_share
from shmq.measurement.saved_bench import Saved, all_differences, check_savable, compared, load, save, taken_now
from tests.tables.rows import every_row

QUIET = Conditions("pine", "Processor 9", 8, 16 << 30, "6.1.0", "3.12.1", "0.1.0", load=0.2, fresh=0.1)
RESULT: dict[str, Any] = {
    "private": True,
    "size_bytes": 256,
    "results": [{"name": "send each", "rate": 1000.0, "bytes": 256000.0}, {"name": "latency", "p50": 2.0, "max": 40}],
}
WHOLE = {"shmq_bench": 1, "kind": "short", "saved_at": "2026-01-31T12:00:00+00:00", "conditions": asdict(QUIET)}


def result(rate: float, p50: float, **settings: Any) -> dict[str, Any]:
    rows = [{"name": "send each", "rate": rate}, {"name": "latency", "p50": p50}]
    return {"size_bytes": 256, "results": rows, **settings}


def test_what_was_saved_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    kept = taken_now("short", QUIET, RESULT)
    save(str(path), replace(kept, saved_at="before"))
    save(str(path), kept)
    assert load(str(path), "short") == kept
    assert list(tmp_path.iterdir()) == [path]


def test_ratios_are_now_over_saved_and_better_goes_by_the_figure() -> None:
    base = taken_now("short", QUIET, result(1000.0, 2.0))
    for rate, p50, better in ((1200, 1.5, True), (800, 3.0, False), (1050, 2.1, None)):
        rates, latencies = compared(base, taken_now("short", QUIET, result(rate, p50)))
        assert (rates.ratio, latencies.ratio) == (rate / 1000, p50 / 2)
        assert rates.better is better and latencies.better is better


def test_figures_of_one_result_only_are_shown_without_a_ratio() -> None:
    old = {"results": [{"name": "send 32 at once", "rate": 5.0}, {"name": "stopped", "rate": 0}]}
    new = {"results": [{"name": "send 10 at once", "rate": 7.0}, {"name": "stopped", "rate": 3}]}
    found = compared(taken_now("short", QUIET, old), taken_now("short", QUIET, new))
    assert [(each.name, each.saved, each.now) for each in found] == [
        ("send 10 at once", None, 7.0),
        ("stopped", 0.0, 3.0),
        ("send 32 at once", 5.0, None),
    ]
    assert all(each.ratio is None and each.better is None for each in found)


def test_every_kind_has_its_figures() -> None:
    sync = taken_now("sync", QUIET, {"results": [{"processes": 8, "rate": 9.0}]})
    long = taken_now("sustained", QUIET, {"rate": 9.0, "worst": 3.0, "taken_each": [9]})
    assert [(each.name, each.figure) for each in compared(sync, sync)] == [("8 processes", "rate")]
    assert [each.figure for each in compared(long, long)] == ["rate", "worst"]


@every_row(
    ("change", "said"),
    [
        ({"machine": "oak"}, "machine: pine saved, oak now"),
        ({"kernel": "6.2.0"}, "kernel: 6.1.0 saved, 6.2.0 now"),
        ({"python": "3.13.0"}, "python: 3.12.1 saved, 3.13.0 now"),
        ({"version": "0.2.0"}, "version: 0.1.0 saved, 0.2.0 now"),
        ({"processors": 4}, "processors: 8 saved, 4 now"),
        ({"load": 5.0}, "load: 0.20 saved, 5.00 now"),
        ({"fresh": 0.9}, "log memory: present saved, cold now"),
    ],
)
def test_conditions_that_differ_are_said(change: dict[str, Any], said: str) -> None:
    assert differences(QUIET, replace(QUIET, **change)) == [said]


def test_settings_that_differ_are_said_and_equal_ones_are_not() -> None:
    base, now = taken_now("short", QUIET, RESULT), taken_now("short", replace(QUIET, load=0.4), RESULT)
    assert all_differences(base, now) == []
    assert all_differences(base, taken_now("short", QUIET, {**RESULT, "size_bytes": 64})) == [
        "size_bytes: 256 saved, 64 now"
    ]


def test_a_busy_machine_and_cold_memory_are_doubted() -> None:
    assert doubts(QUIET) == doubts(replace(QUIET, load=2.0, fresh=None)) == []
    busy, cold = doubts(replace(QUIET, load=2.5, fresh=0.75))
    assert "load 2.50 on 8 processors" in busy and "less than 2.00" in busy
    assert "75% of the log's pages" in cold
    assert "log memory cold" in condition_text(replace(QUIET, fresh=0.5))
    assert "not looked at" in condition_text(replace(QUIET, fresh=None))
    assert (fresh_share(0, 1000, 256), fresh_share(10**9, 1000, 256)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a whole result"),
        (json.dumps({**WHOLE, "result": RESULT}).encode()[:-9], "not a whole result"),
        (b"\xff\xfe\x00", "not a whole result"),
        (b"[" * 100_000, "not a whole result"),
        (b"[]", "was not written by"),
        (b'{"shmq_bench": true}', "was not written by"),
        (b'{"shmq_bench": 2, "kind": "other"}', "of form 2, which a newer shmq writes; this one reads form 1"),
        (b'{"shmq_bench": 1, "kind": ["short"]}', "is damaged: kind"),
        (json.dumps(WHOLE).encode(), "conditions or result is missing"),
        (json.dumps({**WHOLE, "result": {}}).encode(), "result.results"),
        (json.dumps({**WHOLE, "result": {"results": []}}).encode(), "no figures"),
        (json.dumps({**WHOLE, "result": {"results": [{"rate": "9"}]}}).encode(), "rate of None processes is '9'"),
        (json.dumps({**WHOLE, "result": {"results": [{"rate": 10**400}]}}).encode(), "is damaged: rate"),
        (json.dumps({**WHOLE, "result": RESULT, "conditions": {}}).encode(), "conditions.machine is missing"),
        (json.dumps({**WHOLE, "result": RESULT, "conditions": {**asdict(QUIET), "load": -1}}).encode(), "is no load"),
    ],
)
def test_a_file_that_is_no_saved_result_is_refused_with_the_reason(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bench.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        load(str(path), "short")
    assert str(path) in str(raised.value) and said in str(raised.value)
    assert "shmq bench --save" in raised.value.hint


def test_a_result_of_another_kind_names_the_command_it_belongs_to(tmp_path: Path) -> None:
    path = str(tmp_path / "bench.json")
    save(path, Saved("sync", "now", QUIET, {"results": [{"processes": 1, "rate": 5}]}))
    with pytest.raises(UsageError, match="holds a result of `shmq bench --sync`") as raised:
        load(path, "short")
    assert raised.value.hint == f"shmq bench --sync --against {path}"


def test_files_that_cannot_be_read_or_written_are_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.json")
    with pytest.raises(UsageError, match="No such file") as raised:
        load(missing, "short")
    assert raised.value.hint.endswith(f"shmq bench --save {missing}")
    with pytest.raises(UsageError, match="there is no directory"):
        check_savable(str(tmp_path / "none/bench.json"))
    with pytest.raises(UsageError, match="cannot be written"):
        check_savable(str(tmp_path))
    check_savable("bench.json")
    kept = tmp_path / "kept"
    kept.write_text("old")
    os.mkdir(tmp_path / "kept.tmp")  # in the way of the new content
    with pytest.raises(UsageError, match="cannot be written"):
        save(str(kept), taken_now("short", QUIET, RESULT))
    assert kept.read_text() == "old"
