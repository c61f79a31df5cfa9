"""Leases: they keep what is behind them, end by themselves, and no clock or rubbish makes them last."""

import os
import time
from pathlib import Path

from shmq.shm.lease import LEASE_SECONDS_MAX, leased_position, renew_lease, take_lease


def test_the_lowest_position_that_is_leased_counts(tmp_path: Path) -> None:
    assert leased_position(tmp_path, time.time()) is None
    assert take_lease(tmp_path, 4096, 60) and take_lease(tmp_path, 1 << 40, 60)
    assert leased_position(tmp_path, time.time()) == 4096


def test_a_lease_ends_by_itself_and_is_removed(tmp_path: Path) -> None:
    early, late = take_lease(tmp_path, 100, 60), take_lease(tmp_path, 200, 600)
    assert early is not None and late is not None
    assert leased_position(tmp_path, time.time() + 120) == 200
    assert not early.exists() and late.exists()
    assert not renew_lease(early, 60)
    assert leased_position(tmp_path, time.time() + 3600) is None


def test_renewing_counts_from_now(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, 100, 1)
    assert lease is not None and renew_lease(lease, 3600)
    assert leased_position(tmp_path, time.time() + 1800) == 100


def test_no_lease_outlasts_a_day_whatever_was_asked_for_or_written(tmp_path: Path) -> None:
    lease = take_lease(tmp_path, 100, 10 * LEASE_SECONDS_MAX)
    assert lease is not None and lease.stat().st_mtime <= time.time() + LEASE_SECONDS_MAX
    far = time.time() + 3 * LEASE_SECONDS_MAX
    os.utime(lease, (far, far))
    (lease.parent / "rubbish").touch()
    assert leased_position(tmp_path, time.time()) is None and not lease.exists()


def test_who_may_not_write_gets_none(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file where the directory should be")
    assert take_lease(tmp_path, 100, 60) is None
    assert leased_position(tmp_path, time.time()) is None
