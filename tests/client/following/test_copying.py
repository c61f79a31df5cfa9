"""What links.json says of a slave's copy, written here as the replication process writes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from shmq.client.following.copying import Copying, copying
from shmq.shm.links import CATCHING_UP, CONNECTING, LOST, STUCK, UP_TO_DATE, Links, MasterLink, write_links
from tests.tables.rows import every_row

CUT_OFF, BEHIND, GOES_ON = Copying(is_cut_off=True), Copying(), Copying(is_up_to_date=True)
LATE = Copying(is_late=True)
AN_HOUR_MS = 3_600_000


@every_row(
    ("state", "master", "told", "expected"),
    [
        (UP_TO_DATE, {}, 0, GOES_ON),
        (UP_TO_DATE, {"heard_ms": 0}, 0, GOES_ON),
        (CATCHING_UP, {"heard_ms": 1_000}, 0, BEHIND),
        (CATCHING_UP, {"lag_ms": 9_999}, 0, BEHIND),
        (CATCHING_UP, {"lag_ms": 10_000}, 0, LATE),
        (CATCHING_UP, {"lag_ms": 10_000, "heard_ms": AN_HOUR_MS}, 0, CUT_OFF),
        (CATCHING_UP, {"lag_ms": 10_000}, AN_HOUR_MS, CUT_OFF),
        (CONNECTING, {"lag_ms": 10_000}, 0, BEHIND),
        (CONNECTING, {}, 0, BEHIND),
        (LOST, {}, 0, CUT_OFF),
        (STUCK, {"heard_ms": 0}, 0, CUT_OFF),
        (LOST, {"is_refused": True}, 0, Copying(is_refused=True, is_cut_off=True)),
        (UP_TO_DATE, {"heard_ms": AN_HOUR_MS}, 0, CUT_OFF),
        (UP_TO_DATE, {"heard_ms": 0}, AN_HOUR_MS, CUT_OFF),
    ],
)
def test_a_copy_goes_on_while_the_master_is_heard(
    tmp_path: Path, state: str, master: dict[str, Any], told: int, expected: Copying
) -> None:
    now_ms = round(time.monotonic() * 1000)
    if "heard_ms" in master:
        master = master | {"heard_ms": now_ms - master["heard_ms"]}
    links = Links(now_ms - told, "slave", master=MasterLink("h:1", state, **master))
    write_links(tmp_path / "links.json", links, mode=0o600, gid=-1)
    assert copying(tmp_path / "links.json") == expected


def test_a_host_without_a_master_is_cut_off_from_nothing(tmp_path: Path) -> None:
    assert copying(tmp_path / "links.json") == Copying()
    write_links(tmp_path / "links.json", Links(1, "sync-master"), mode=0o600, gid=-1)
    assert copying(tmp_path / "links.json") == Copying()
