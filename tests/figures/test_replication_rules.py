"""Links to other hosts: each state that a replication process can tell, as every tool judges and shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmq.figures.broker_rules import broker_findings
from shmq.figures.replication import collect_replication
from shmq.figures.snapshot import Snapshot
from shmq.figures.thresholds import SILENT_MS_MAX, Thresholds
from shmq.figures.verdict import Finding, Verdict, worst
from shmq.metrics.exposition import Samples
from shmq.metrics.replication import read_replication
from shmq.shm.core import READ_ONLY_FOLLOWER
from shmq.shm.links import (
    ASYNCHRONOUS,
    CATCHING_UP,
    CONNECTING,
    FOLLOWS,
    LEADS,
    LOST,
    STUCK,
    UP_TO_DATE,
    Links,
    LostLink,
    MasterLink,
    ReplicaLink,
    write_links,
)
from shmq.tools.health.report import Report
from shmq.tools.terminal.rendering import text_of
from shmq.tools.top.rates import picture_of
from shmq.tools.top.view import Choice, page
from tests.tables.rows import every_row
from tests.tools.health.test_rules import BROKER, SNAPSHOT

OK, WARNING, CRITICAL, UNKNOWN = Verdict
NOW_MS = 10**9
SLAVE = BROKER._replace(read_only=READ_ONLY_FOLLOWER, read_only_text="it follows a master")
A, B = "10.0.0.4:10912", "10.0.0.5:40000"


def ago(seconds: float) -> int:
    return NOW_MS - round(seconds * 1000)


def of_master(
    state: str, *, since: float | None = None, heard: float | None = None, lag_ms: int = 0, **more: Any
) -> Links:
    """A slave, and what it tells of its master."""
    row = MasterLink(
        A,
        state,
        "shmq",
        None if since is None else ago(since),
        None if heard is None else ago(heard),
        None if heard is None else 100 * bool(lag_ms),
        None if heard is None else lag_ms,
    )
    return Links(NOW_MS, "slave", master=row._replace(**more), standing=FOLLOWS, leader=A)


def of_slave(state: str, *, since: float, lag_ms: int = 0) -> Links:
    """A master, and what it tells of a slave."""
    spoke = state != CONNECTING
    row = ReplicaLink(B, "shmq" * spoke, state, ago(since), *([7, 7, 100, lag_ms] if spoke else [None] * 4))
    return Links(NOW_MS, "master", replicas=(row,), standing=LEADS)


ERROR, CURE = "these are two logs", "start it again"
WHY: dict[str, Any] = {"error": ERROR, "cure": CURE, "error_ms": ago(1)}
LONG_AGO: dict[str, Any] = {**WHY, "error_ms": ago(60)}
ROWS = [
    (of_master(CONNECTING), OK),
    (of_master(UP_TO_DATE, since=60, heard=5), OK),
    (of_master(UP_TO_DATE, since=60, heard=9), WARNING),  # stopped, and not given up yet
    (of_master(CATCHING_UP, since=60, heard=0, lag_ms=9_000), OK),
    (of_master(CATCHING_UP, since=60, heard=0, lag_ms=11_000), WARNING),
    (of_master(UP_TO_DATE, since=0.5, heard=0, **WHY), OK),  # that was the connection before
    (of_master(UP_TO_DATE, since=60, heard=0, **WHY), WARNING),  # its tables do not come
    (of_master(UP_TO_DATE, since=90, heard=0, **LONG_AGO), OK),
    (of_master(STUCK, since=60, heard=0, lag_ms=3_000, **WHY), CRITICAL),
    (of_master(LOST, heard=35, **WHY), CRITICAL),
    (of_master(LOST, **WHY), CRITICAL),
    (of_slave(CONNECTING, since=4), OK),
    (of_slave(CONNECTING, since=6), WARNING),
    (of_slave(ASYNCHRONOUS, since=60), OK),
    (of_slave(CATCHING_UP, since=60, lag_ms=9_000), OK),
    (of_slave(CATCHING_UP, since=60, lag_ms=11_000), WARNING),  # it is stuck, or slow
    (Links(NOW_MS, "master", gone=(LostLink(B, ERROR, CURE, ago(35)),)), WARNING),
    (Links(NOW_MS, "master", gone=(LostLink(B, "", "", ago(25 * 3600)),)), OK),
    (Links(NOW_MS, "master", refused=(LostLink(B, ERROR, CURE, ago(35), 3),)), WARNING),
    (Links(NOW_MS, "master", refused=(LostLink(B, "", "", ago(700)),)), OK),
]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shmq.figures.replication.time.monotonic_ns", lambda: NOW_MS * 1_000_000)


def told(links: Links, directory: Path) -> Path:
    path = directory / "links.json"
    write_links(path, links, mode=0o600, gid=-1)
    return path


def seen(path: Path) -> Snapshot:
    """A snapshot of a slave with these links."""
    return SNAPSHOT._replace(broker=SLAVE, replication=collect_replication(path))


def judged(path: Path) -> list[Finding]:
    """What `shmq health` has to say of other hosts."""
    found = list(broker_findings(seen(path), Thresholds()))
    assert all(each.what and (each.verdict is OK or (each.why and each.do)) for each in found), found
    return [each for each in found if each.check in ("master", "replica", "replication")]


@every_row(("links", "verdict"), ROWS)
def test_every_tool_says_the_same_of_a_link_with_cause_and_cure(tmp_path: Path, links: Links, verdict: Verdict) -> None:
    path = told(links, tmp_path)
    found = judged(path)
    assert worst(found) is verdict, found
    bad = [each for each in found if each.verdict is not OK]
    report = Report(SNAPSHOT, found)
    assert all(each.why in report.nagios() for each in bad) and report.verdict is verdict
    samples = Samples()
    read_replication(path, samples)
    shown = text_of(page(picture_of(seen(path), seen(path)), Choice(), width=100_000))
    assert all(f"{each.why}; {each.do}" in shown for each in bad), shown
    if ERROR in str(bad):
        assert any(ERROR in labels for values in samples.values.values() for labels in values)


def test_a_silent_slave_is_never_reported_as_well(tmp_path: Path) -> None:
    missing, silent = tmp_path / "none", told(Links(ago(0) - SILENT_MS_MAX - 1000, "slave"), tmp_path)
    broken = tmp_path / "broken"
    broken.write_text("{")
    for path in (missing, broken, silent):
        assert worst(judged(path)) is UNKNOWN
