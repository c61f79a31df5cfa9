"""The pictures of reports: axes begin at zero, counts are whole, and every job that takes --plot has one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from shmq.errors import UsageError
from shmq.spark.jobs.plots import draw, picture_of

QUEUE = {"topic": "orders", "queue_id": 0}
STEPS = {"p50_ms": 0, "p90_ms": 0, "p99_ms": 0, "p999_ms": 0, "max_ms": 0}
CHECK = {"check": "continuity", "queues": [{**QUEUE, "messages": 7, "missing": 0, "doubled": 0}]}
LOOK = {**QUEUE, "at_ms": 1_000, "group": "billing", "lag": 0}
LETTERS = {"consumer_group": "billing", "cause": "card # declined", "letters": 0}
QUIET: dict[str, dict[str, Any]] = {  # nothing has happened, nothing is wrong
    "archive": {"steps": [], "queues": [{**QUEUE, "archived_until": 0, "behind": 0}]},
    "replay": {
        "target": "again",
        "dry_run": False,
        "samples": [{"at_seconds": 0.0, "messages": 0}],
        "queues": [{**QUEUE, "sent": 0, "in_already": 0, "loops": 0}],
    },
    "reconcile": {"checks": [CHECK]},
    "lag": {
        "samples": [LOOK],
        "born_to_stored": [{"topic": "orders", "from_ms": None, **STEPS}],
        "stored_to_consumed": [],
    },
    "dlq": {"groups": [LETTERS], "ages": [{"age": "< 1h", "letters": 0}]},
}
COUNTED = {"archive": "yx", "replay": "yx", "reconcile": "xx", "lag": "y", "dlq": "xx"}  # the axes, left and right


@pytest.mark.parametrize("job", QUIET)
def test_a_report_of_nothing_is_drawn_from_zero_and_with_whole_numbers(job: str) -> None:
    picture = picture_of({"job": job, **QUIET[job]})
    picture.draw_without_rendering()  # type: ignore[no-untyped-call, unused-ignore]
    for plot, direction in zip(picture.axes, COUNTED[job], strict=False):
        axis = plot.yaxis if direction == "y" else plot.xaxis
        low, high = plot.get_ylim() if direction == "y" else plot.get_xlim()
        ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert low == 0 and high >= 1 and all(tick == int(tick) for tick in ticks), (direction, low, high, ticks)


def test_an_archive_is_drawn_step_by_step_and_what_is_behind_stands_behind(tmp_path: Path) -> None:
    steps = [{"at_seconds": 1.5, "messages": 30}, {"at_seconds": 2.5, "messages": 10}]
    report = {"job": "archive", "steps": steps, "queues": [{**QUEUE, "archived_until": 40, "behind": 2}]}
    left, right = picture_of(report).axes
    assert [list(line) for line in left.lines[0].get_xydata().tolist()] == [[0, 0], [1.5, 30], [2.5, 40]]
    assert [(bar.get_x(), bar.get_width()) for bar in right.patches] == [(0, 40), (40, 2)]
    draw(report, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_each_check_of_a_reconciliation_has_a_bar_also_where_nothing_differs() -> None:
    checks = [{**CHECK}, {"check": "archive", "kinds": {}}, {"check": "ledger", "kinds": {"lost": 1200}}]
    left, _ = picture_of({"job": "reconcile", "checks": checks}).axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["continuity: missing", "continuity: doubled", "archive: none", "ledger: lost"]
    assert [text.get_text() for text in left.texts] == ["0", "0", "0", "1,200"]


def test_a_picture_that_cannot_be_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="job cooking has no picture"):
        picture_of({"job": "cooking"})
    with pytest.raises(UsageError, match=r"the picture cannot be written to .*: No such file"):
        draw({"job": "archive", **QUIET["archive"]}, str(tmp_path / "none" / "a.png"))
